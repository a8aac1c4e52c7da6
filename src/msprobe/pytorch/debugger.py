"""PrecisionDebugger for PyTorch: the class a training script makes, bound to the framework-free Debugger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe.adapter import Undo
from msprobe.capture.debugger import Debugger
from msprobe.capture.door import Door
from msprobe.capture.single import Single
from msprobe.capture.stacks import Stacks
from msprobe.capture.tasks import Task
from msprobe.config import Config, Scene, Tensor
from msprobe.errors import UsageError
from msprobe.pytorch.adapter import TorchAdapter
from msprobe.pytorch.dataloader import follow_dataloader
from msprobe.pytorch.kernel_dump import CallKernels, KernelDump
from msprobe.pytorch.modules import models_of
from msprobe.pytorch.replay import TorchReplay
from msprobe.pytorch.seeds import remove_dropout, seed_all

if TYPE_CHECKING:
    from msprobe.online.task import OnlineChecking


class TorchDebugger(Debugger):
    """The Debugger with what only PyTorch has: a model given early, seeds, dropout, kernel dumps."""

    def __init__(self, config: Config, model: Any = None, task: Task | None = None) -> None:
        if config.enable_dataloader and config.level in ("L0", "mix") and model is None:
            raise UsageError(
                f"level {config.level} records modules, and with enable_dataloader nobody calls start(); "
                "so pass the model here: PrecisionDebugger(..., model=your_model)."
            )
        self._kernels = KernelDump(config) if config.level == "L2" else None
        self._at_close: list[Undo] = []
        adapter = TorchAdapter()
        stacks = Stacks(adapter.hidden_files, adapter.frame_groups)
        super().__init__(adapter, config, stacks, TorchReplay(), task)
        self.adapter = adapter
        self.register, self.forget = adapter.custom.register, adapter.custom.forget
        self._model = model
        if config.seeding is not None:
            seed_all(*config.seeding)
        if config.rm_dropout:
            self._at_close.append(remove_dropout())
        if config.enable_dataloader:
            self._at_close.append(follow_dataloader(self))

    @classmethod
    def of_task(cls, task: Task) -> TorchDebugger:
        """One that follows the calls for a task of another package, and changes nothing in training."""
        return cls(Config(dump_path=".", rm_dropout=False), task=task)

    @staticmethod
    def call_kernels(acl_config: str, refusal: str) -> CallKernels:
        """What has torch_npu dump the kernels of single calls; without it a HardwareError says `refusal`."""
        return CallKernels(acl_config, refusal)

    @classmethod
    def of_kernels(cls, call: str, acl_config: str, backward_input: Sequence[str] = ()) -> TorchDebugger:
        """One that has torch_npu dump the kernels of a call; of a backward one, with these gradients."""
        section = Tensor(scope=(call,), backward_input=tuple(backward_input))
        return cls(
            Config(
                dump_path=".",
                task="tensor",
                level="L2",
                acl_config=acl_config,
                rm_dropout=False,
                section=section,
            )
        )

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


def _online(config: Config) -> OnlineChecking | None:
    """The online pre-check, which sends calls instead of recording them, if that is wanted."""
    if not isinstance(config.section, Tensor) or not config.section.online_run_ut:
        return None
    from msprobe.online.task import OnlineChecking  # what few need

    return OnlineChecking(config.section)


_the: Single[TorchDebugger] = Single()


class PrecisionDebugger(Door):
    """Records what a training run computes. A process has one, and its methods may be called on the class.

    debugger = PrecisionDebugger("config.json")
    for batch in loader:
        debugger.start(model)
        loss = model(batch)
        loss.backward()
        debugger.stop()
        debugger.step()
    """

    the = _the

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        model: Any = None,
        step: Sequence[int | str] | None = None,
    ) -> None:
        if model is not None:
            models_of(model)
        self.open(
            config_path,
            lambda config: TorchDebugger(config, model, _online(config)),
            task=task,
            dump_path=dump_path,
            level=level,
            step=step,
        )

    @classmethod
    def scene(cls) -> Scene:
        return Scene.PYTORCH

    @classmethod
    def start(cls, model: Any = None, token_range: Any = None) -> None:
        if not _left_to_dataloader("start"):
            super().start(model, token_range)

    @classmethod
    def stop(cls) -> None:
        if not _left_to_dataloader("stop"):
            super().stop()

    @classmethod
    def step(cls) -> None:
        if not _left_to_dataloader("step"):
            super().step()


def _left_to_dataloader(method: str) -> bool:
    debugger = _the.get()
    if debugger.config.enable_dataloader:
        debugger.tell_once(
            f"enable_dataloader is true, so {method}() has no effect; the data loader decides."
        )
    return debugger.config.enable_dataloader
