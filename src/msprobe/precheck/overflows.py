"""run_overflow_check: each overflow of a recording, and whether higher precision would have prevented it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msprobe.name import BACKWARD, FORWARD
from msprobe.precheck.calls import Lists, calls_of, reason_to_skip
from msprobe.precheck.check import read_recording
from msprobe.precheck.overflow_kind import NORMAL, Overflow, not_finite, overflows
from msprobe.precheck.pool import Lost, Pool
from msprobe.precheck.protocol import OVERFLOW, Order, call_line, read_overflow
from msprobe.precheck.work import REPLAYED
from msprobe.record import Recording

_LONE = (
    "only its gradients overflowed, and the call itself is not in this recording; record the step with task "
    "tensor to have both."
)


class Judged(NamedTuple):
    """Each call that overflowed, in the order of the recording."""

    found: tuple[tuple[str, Overflow], ...]

    @property
    def all_normal(self) -> bool:
        return all(
            not overflow.reason and {overflow.forward, overflow.backward} <= {NORMAL, ""}
            for _, overflow in self.found
        )

    def told(self) -> Iterator[str]:
        for name, overflow in self.found:
            for side, kind in (("forward", overflow.forward), ("backward", overflow.backward)):
                if kind:
                    article = "a" if kind == NORMAL else "an"
                    yield f"The {name}.{side} overflow is {article} {kind} overflow."
            if overflow.reason:
                yield f"The overflow of {name} could not be judged: {overflow.reason}"
        if not self.found:
            yield "No call of this recording overflowed."


def judge_overflows(
    api_info: str, worker: list[str], seconds: float, progress: Callable[[int, int], None]
) -> Judged:
    recording = read_recording(api_info)
    lone = [(name, Overflow(reason=_LONE)) for name in _lone_gradients(recording)]
    if len(lone) == len(recording.records) > 0:
        return Judged(tuple(lone))
    calls = [call for call in calls_of(recording) if any(overflows(call))]
    reasons = {call.text: reason_to_skip(call, Lists()) for call in calls}
    todo = [call for call in calls if reasons[call.text] is None]
    answers = {name: Overflow(reason=reason) for name, reason in reasons.items() if reason is not None}
    if todo:
        order = Order(OVERFLOW, recording.folder, 0, REPLAYED, None, 0)
        with Pool(worker, [order], seconds) as pool:
            pool.start()
            for done, (number, line) in enumerate(pool.answers(map(call_line, todo)), 1):
                answer = Overflow(reason=line.reason) if isinstance(line, Lost) else read_overflow(line)
                answers[todo[number].text] = answer
                progress(done, len(todo))
    return Judged((*((call.text, answers[call.text]) for call in calls), *lone))


def _lone_gradients(recording: Recording) -> list[str]:
    """Gradients that overflowed, of calls that did not: overflow_check keeps what overflowed."""
    return [
        record.name.call
        for record in recording.records.values()
        if record.name.direction == BACKWARD
        and not record.name.is_module
        and str(record.name.facing(FORWARD)) not in recording.records
        and not_finite(record)
    ]
