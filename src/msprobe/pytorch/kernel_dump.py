"""Level L2: kernel data of one API, which torch_npu writes by itself once it is asked in the right order."""

from __future__ import annotations

from msprobe.config import Config


class KernelDump:
    """To be filled."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def start(self) -> None: ...

    def stop(self) -> None: ...
