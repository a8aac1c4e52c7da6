"""A torch_npu that notes what it is asked, where no device is."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest


def noting_npu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What it is asked to dump and to seed, in order."""
    noted: list[str] = []
    module: Any = types.ModuleType("torch_npu")
    module.npu = types.SimpleNamespace(
        init_dump=lambda: noted.append("init_dump"),
        set_dump=lambda path: noted.append(f"set_dump {os.path.basename(path)}"),
        finalize_dump=lambda: noted.append("finalize_dump"),
        synchronize=lambda: noted.append("synchronize"),
        manual_seed=lambda seed: noted.append(f"manual_seed {seed}"),
        manual_seed_all=lambda seed: noted.append(f"manual_seed_all {seed}"),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return noted
