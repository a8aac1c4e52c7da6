"""The methods of PrecisionDebugger that are the same for every framework: what a training script calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from msprobe.capture.single import Single
from msprobe.config import Config, Scene, load
from msprobe.log import logger


class OpenDebugger(Protocol):
    """The debugger of a framework, as far as its public door needs it."""

    def start(self, model: Any = None, token_range: Any = None) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None: ...

    def set_init_step(self, step: int) -> None: ...

    def register(self, module: Any, name: str, prefix: str | None) -> None: ...

    def forget(self, module: Any, name: str) -> None: ...


class Door:
    """A process has one debugger, so that its methods may be called on the class as well as on an object."""

    the: ClassVar[Single[Any]]

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: Sequence[int | str] | None = None,
    ) -> None:
        self.open(config_path, self.build, task=task, dump_path=dump_path, level=level, step=step)

    @classmethod
    def open(cls, config_path: str | None, build: Callable[[Config], OpenDebugger], **given: Any) -> None:
        """Make the debugger of this process, or find that there is one with this very configuration."""
        config, notices = load(config_path, scene=cls.scene(), **given)

        def make() -> OpenDebugger:
            for notice in notices:
                logger().warning("%s", notice)
            return build(config)

        cls.the.make(config, make)

    @classmethod
    def scene(cls) -> Scene:
        """Where this process trains; what a configuration may say depends on it."""
        raise NotImplementedError

    @classmethod
    def build(cls, config: Config) -> OpenDebugger:
        """The debugger of the framework."""
        raise NotImplementedError

    @classmethod
    def _debugger(cls) -> OpenDebugger:
        debugger: OpenDebugger = cls.the.get()
        return debugger

    @classmethod
    def start(cls, model: Any = None, token_range: Any = None) -> None:
        """Record from here on; `model` is needed at levels L0 and mix."""
        cls._debugger().start(model, token_range)

    @classmethod
    def stop(cls) -> None:
        """Record no further call. A backward that follows is still recorded, until step()."""
        cls._debugger().stop()

    @classmethod
    def step(cls) -> None:
        """The training step is over: its recording is complete on disk when this returns."""
        cls._debugger().step()

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """The old name of stop()."""
        logger().warning("forward_backward_dump_end() is deprecated; call stop().")
        cls.stop()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a variable and its gradient under a name (level debug)."""
        cls._debugger().save(variable, name, save_backward)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Count steps from this number; call it before the training loop."""
        cls._debugger().set_init_step(step)

    @classmethod
    def register_custom_api(cls, module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record a function of your own too, as `{api_prefix}.{api_name}.{n}.forward`, from now on."""
        cls._debugger().register(module, api_name, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api_name: str) -> None:
        """Record that function no longer."""
        cls._debugger().forget(module, api_name)
