"""Which cells are compiled with taps: from start() to stop() or step(), those of the recorded model."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from mindspore import Parameter, nn

from msprobe.adapter import Undo
from msprobe.capture.patch import replace
from msprobe.log import logger
from msprobe.mindspore.arrivals import Arrivals, Name, Tapped
from msprobe.mindspore.framework import api, executor

_PARSED = "MS_JIT_MODULES"  # packages whose functions are compiled although they were installed
_OURS = "msprobe"


class _Numbers:
    """Gives each cell and each parameter a number, and holds none of them alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._given = 0

    def of(self, thing: Any) -> int:
        known = self._known.get(id(thing))
        if known is None or known[0]() is not thing:
            known = self._known[id(thing)] = (weakref.ref(thing), self._given)
            self._given += 1
        return known[1]


class Tapping:
    """Puts taps into cells. What is compiled with them keeps them, and shows nothing while nobody listens."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._cells = _Numbers()
        self._parameters = _Numbers()
        self._installs: dict[tuple[str, int], Callable[[], Undo]] = {}  # what stands in cells and parameters
        self._undo: list[Undo] = []
        self._left_alone: set[str] = set()
        self._failed = False

    def put(self, found: Iterable[tuple[Name, nn.Cell]]) -> None:
        """Have these cells compiled with taps from now on; they are recorded, and no others."""
        names: dict[int, list[Name]] = {}
        parameters: dict[int, tuple[tuple[str, int | None], ...]] = {}
        for name, cell in () if self._failed else found:
            if getattr(cell, "_has_config_recompute", False):
                self._leave_alone(name.owner)
            elif hasattr(cell.construct, "__func__"):
                number = self._cells.of(cell)
                names.setdefault(number, []).append(name)
                parameters[number] = tuple((key, self._follow(value)) for key, value in cell._params.items())
                install = functools.partial(self._arrivals.taps.install, cell, number, tuple(cell._params))
                self._install(("cell", number), install)
        self._arrivals.cells = {
            number: Tapped(tuple(known), parameters[number]) for number, known in names.items()
        }

    def remove(self) -> None:
        self._installs.clear()
        self._step_aside()

    def _leave_alone(self, owner: str) -> None:
        if owner not in self._left_alone:
            self._left_alone.add(owner)
            logger().warning(
                "%s is not recorded: a graph computes it again during backward, and cannot be compiled with "
                "taps in it. Without recompute() it could.",
                owner,
            )

    def _follow(self, parameter: Parameter) -> int | None:
        if not parameter.requires_grad:
            return None
        number = self._parameters.of(parameter)
        follow = functools.partial(self._arrivals.taps.follow, parameter, number)
        self._install(("parameter", number), follow)
        return number

    def _install(self, key: tuple[str, int], install: Callable[[], Undo]) -> None:
        if not self._undo:
            self._undo = [_parsed(), self._guard(api._JitExecutor), self._guard(api._CellGraphExecutor)]
        if key not in self._installs:
            self._installs[key] = install
            self._undo.append(install())

    def _step_aside(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _guard(self, kind: type) -> Undo:
        """What fails to compile with taps is compiled without; an error that remains is that of training."""

        def make(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(compile_graph)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                try:
                    return compile_graph(*args, **kwargs)
                except Exception as error:
                    if not self._installs:
                        raise
                    return self._compiled_without(error, functools.partial(compile_graph, *args, **kwargs))

            return guarded

        return replace(kind, "compile", make)

    def _compiled_without(self, error: Exception, compile_graph: Callable[[], Any]) -> Any:
        installs = dict(self._installs)
        self.remove()
        executor.clear_res()
        try:
            compiled = compile_graph()
        except BaseException:
            for key, install in installs.items():
                self._install(key, install)
            raise
        self._failed = True
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        logger().error(
            "a graph could not be compiled with the taps that show its cells, and was compiled without them: "
            "no cell of it is recorded. MindSpore said: %s",
            reason,
        )
        return compiled


def _parsed() -> Undo:
    """MindSpore may take what was installed for code that it need not compile."""
    before = os.environ.get(_PARSED)
    os.environ[_PARSED] = ",".join(filter(None, (before, _OURS)))

    def undo() -> None:
        if before is None:
            os.environ.pop(_PARSED, None)
        else:
            os.environ[_PARSED] = before

    return undo
