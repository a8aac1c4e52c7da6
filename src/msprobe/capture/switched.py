"""A task that is switched on and off: every call is counted, those that are asked for are written."""

from __future__ import annotations

from pathlib import Path

from msprobe.capture.overflow import Kernels, OverflowRecorder
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.overflow_verdict import VERDICTS
from msprobe.capture.recorder import Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.tasks import Opening, Task, tell_how_overflows_are_found
from msprobe.record import Leaf, Record
from msprobe.store.guarded import GuardedSink

_OFF = "made while recording was switched off"


class Switched(GuardedSink, Task):
    """For packages with files of their own: a subclass writes each record, with the contents that it wants.

    Calls keep their numbers however often it is switched, so that two runs agree on names.
    """

    saves_tensors = False

    def __init__(self, folder: Path, most: int | None = None, kernels: Kernels | None = None) -> None:
        """`most`: only calls that overflow are written, and so many of them end training.

        `kernels`: dumps the kernels of these calls.
        """
        super().__init__(folder)
        self._kernels = kernels
        self.limit = None if most is None else Limit(most, VERDICTS)

    def recorder(self, opening: Opening) -> Recorder:
        plan = opening.plan._replace(fills=self.wants, with_state=False)
        parts = (opening.adapter, self, opening.scope, opening.stacks, plan)
        if self.limit is None:
            self._recorder = Recorder(*parts)
        else:
            tell_how_overflows_are_found(opening.adapter)
            self._recorder = OverflowRecorder(*parts, self.limit, self._kernels)
        self._stacks = opening.stacks
        opening.scope.shut(_OFF)
        return self._recorder

    def wants(self, leaf: Leaf) -> bool:
        """Whether its record brings the content of this leaf along."""
        raise NotImplementedError

    def switch_on(self, scope: Scope) -> None:
        """From here on the calls in this scope are written."""
        self._before = self.records
        self._recorder.scope = scope

    def switch_off(self) -> int | None:
        """Write what waits on a device. What comes later is counted only, gradients of earlier calls too.

        Returns how many were written since it was switched on, None if it was not.
        """
        with self._recorder.guarded("fetch the last statistics"):
            self._recorder.settle()
        was_on = not self._recorder.scope.is_shut
        self._recorder.scope.shut(_OFF)
        return self.records - self._before if was_on else None

    def append(self, record: Record) -> None:
        """Gradients have the stack of where backward was called; what raised, or runs again, is left out."""
        if "exception" not in record.fields and not record.fields.get("is_recompute"):
            super().append(record if record.stack else record._replace(stack=self._stacks.here().stack))
