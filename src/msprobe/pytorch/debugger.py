"""PrecisionDebugger for PyTorch: the class a training script makes, bound to the framework-free Debugger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.adapter import Undo
from msprobe.capture.debugger import Debugger
from msprobe.capture.single import Single
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Scene, load
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.pytorch.adapter import TorchAdapter
from msprobe.pytorch.dataloader import follow_dataloader
from msprobe.pytorch.kernel_dump import KernelDump
from msprobe.pytorch.modules import models_of
from msprobe.pytorch.seeds import remove_dropout, seed_all


class TorchDebugger(Debugger):
    """The Debugger with what only PyTorch has: a model given early, seeds, dropout, kernel dumps."""

    def __init__(self, config: Config, model: Any) -> None:
        if config.enable_dataloader and config.level in ("L0", "mix") and model is None:
            raise UsageError(
                f"level {config.level} records modules, and with enable_dataloader nobody calls start(); "
                "so pass the model here: PrecisionDebugger(..., model=your_model)."
            )
        self._kernels = KernelDump(config) if config.level == "L2" else None
        self._at_close: list[Undo] = []
        adapter = TorchAdapter()
        super().__init__(adapter, config, Stacks(adapter.hidden_files, adapter.frame_groups))
        self.adapter = adapter
        self._model = model
        if config.seeding is not None:
            seed_all(*config.seeding)
        if config.rm_dropout:
            self._at_close.append(remove_dropout())
        if config.enable_dataloader:
            self._at_close.append(follow_dataloader(self))

    def start(self, model: Any = None, token_range: Any = None) -> None:
        model = self._model if model is None else model
        if model is not None:
            models_of(model)
        if self._kernels is None:
            super().start(model, token_range)
        elif self.is_wanted():
            self._kernels.start(self.adapter)

    def stop(self) -> None:
        if self._kernels is not None:
            self._kernels.stop()
        super().stop()

    def step(self) -> None:
        if self._kernels is not None:
            self._kernels.step()
        super().step()

    def close(self) -> None:
        if self._kernels is not None:
            self._kernels.step()
        super().close()
        while self._at_close:
            self._at_close.pop()()


_the: Single[TorchDebugger] = Single()


class PrecisionDebugger:
    """Records what a training run computes. A process has one, and its methods may be called on the class.

    debugger = PrecisionDebugger("config.json")
    for batch in loader:
        debugger.start(model)
        loss = model(batch)
        loss.backward()
        debugger.stop()
        debugger.step()
    """

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        model: Any = None,
        step: Sequence[int | str] | None = None,
    ) -> None:
        config, notices = load(
            config_path, scene=Scene.PYTORCH, task=task, dump_path=dump_path, level=level, step=step
        )
        if model is not None:
            models_of(model)

        def build() -> TorchDebugger:
            for notice in notices:
                logger().warning("%s", notice)
            return TorchDebugger(config, model)

        _the.make(config, build)

    @staticmethod
    def start(model: Any = None, token_range: Any = None) -> None:
        """Record from here on; `model` is needed at levels L0 and mix."""
        if not _left_to_dataloader("start"):
            _the.get().start(model, token_range)

    @staticmethod
    def stop() -> None:
        """Record no further call. A backward that follows is still recorded, until step()."""
        if not _left_to_dataloader("stop"):
            _the.get().stop()

    @staticmethod
    def step() -> None:
        """The training step is over: its recording is complete on disk when this returns."""
        if not _left_to_dataloader("step"):
            _the.get().step()

    @staticmethod
    def forward_backward_dump_end() -> None:
        """The old name of stop()."""
        logger().warning("forward_backward_dump_end() is deprecated; call stop().")
        PrecisionDebugger.stop()

    @staticmethod
    def save(variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a variable and its gradient under a name (level debug)."""
        _the.get().save(variable, name, save_backward)

    @staticmethod
    def set_init_step(step: int) -> None:
        """Count steps from this number; call it before the training loop."""
        _the.get().set_init_step(step)

    @staticmethod
    def register_custom_api(module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record a function of your own too, as `{api_prefix}.{api_name}.{n}.forward`, from now on."""
        if not isinstance(api_name, str) or not callable(getattr(module, api_name, None)):
            raise UsageError(f"register_custom_api: {module!r} has no function {api_name!r}.")
        if api_prefix is not None and not (isinstance(api_prefix, str) and api_prefix):
            raise UsageError(f"register_custom_api: api_prefix is {api_prefix!r}; it must be a str or None.")
        _the.get().adapter.register(module, api_name, api_prefix)

    @staticmethod
    def restore_custom_api(module: Any, api_name: str) -> None:
        """Record that function no longer."""
        _the.get().adapter.forget(module, api_name)


def _left_to_dataloader(method: str) -> bool:
    debugger = _the.get()
    if debugger.config.enable_dataloader:
        debugger.tell_once(
            f"enable_dataloader is true, so {method}() has no effect; the data loader decides."
        )
    return debugger.config.enable_dataloader
