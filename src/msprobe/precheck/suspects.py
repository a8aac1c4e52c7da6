"""compare --replay: the suspects of a comparison called again in worker processes, in float64, both runs."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msprobe.dtypes import roundoff
from msprobe.errors import HardwareError
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.pairing.match import Pair
from msprobe.precheck.calls import Call, Lists, reason_to_skip
from msprobe.precheck.exact_call import Suspect
from msprobe.precheck.pool import Lost, Pool
from msprobe.precheck.protocol import SUSPECT, Order, read_evidence, suspect_line
from msprobe.precheck.work import RECORDED
from msprobe.record import Leaf, Record, Recording, leaves
from msprobe.store.recordings import tensors_of
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.levels import ENTERED
from msprobe.verdict.locate import MOST_SUSPECTS, Divergence, with_replay
from msprobe.verdict.loss import loss_of
from msprobe.verdict.replay_evidence import NOT_REPLAYABLE, PROVEN, REFUTED, ReplayCount, ReplayEvidence

_FRAMEWORK = "pytorch"
_NO_TORCH = "PyTorch is not installed in this Python, and it is needed to call the suspects again."
_NO_PYTORCH = "Only calls of PyTorch can be made again, and neither run was recorded with it."
_NO_TENSORS = (
    "{} recorded without tensors, and the suspects are called again on their recorded inputs; record with "
    "task tensor."
)
_BEFORE = "The value differs when it comes in: this call did not make it, and cannot show what did."
_MODULE = "It is a module, and only calls of APIs can be made again; record at level L1 or mix."
_GRADIENT = "It is the gradient of a parameter, which is a sum over several calls."
_ALONE = "One of the runs has no such call."
_NO_FORWARD = "Its forward call was not recorded."


class Worker(NamedTuple):
    """How a worker process is started."""

    command: list[str]
    seconds: float = 300.0  # that one suspect may take
    threads: int = 0  # 0: as many as the framework likes


def replay_suspects(comparison: Comparison, worker: Worker) -> Comparison:
    """Return the comparison with evidence for its suspects, ranked by it; or with the reason why not.

    What is missing costs the evidence alone: the comparison stands as it is.
    """
    chosen = comparison.located.origins[:MOST_SUSPECTS]
    missing = _missing(comparison) if chosen else ""
    found: dict[int, ReplayEvidence] = {}
    if not missing:
        try:
            found = _replayed(comparison, chosen, worker)
        except HardwareError as error:
            missing = f"The suspects were not called again: {error}"
    if missing or not chosen:
        return comparison._replace(replay=ReplayCount(missing=missing))
    counts = Counter(evidence.outcome for evidence in found.values())
    count = ReplayCount(counts[PROVEN], counts[REFUTED], counts[NOT_REPLAYABLE])
    return comparison._replace(located=with_replay(comparison.located, found), replay=count)


def _missing(comparison: Comparison) -> str:
    """What is needed and is not there, as a sentence."""
    recordings = {"The target": comparison.target, "The golden run": comparison.golden}
    callable_runs = {whose: one for whose, one in recordings.items() if _is_callable(one)}
    if not callable_runs:
        return _NO_PYTORCH
    bare = [whose for whose, one in callable_runs.items() if not _has_tensors(one)]
    if bare:
        return _NO_TENSORS.format("Both runs were" if len(bare) == 2 else f"{bare[0]} was")
    return "" if importlib.util.find_spec("torch") is not None else _NO_TORCH


def _is_callable(recording: Recording) -> bool:
    return recording.header.framework == _FRAMEWORK


def _has_tensors(recording: Recording) -> bool:
    return recording.header.task == "tensor" and Path(tensors_of(recording)).is_dir()


def _replayed(
    comparison: Comparison, chosen: tuple[Divergence, ...], worker: Worker
) -> dict[int, ReplayEvidence]:
    """The evidence for each suspect, by its number."""
    found: dict[int, ReplayEvidence] = {}
    todo: list[tuple[int, Suspect]] = []
    calls = _Calls(comparison)
    for number, each in enumerate(chosen):
        suspect = calls.suspect(each)
        if isinstance(suspect, Suspect):
            todo.append((number, suspect))
        else:
            found[number] = ReplayEvidence(NOT_REPLAYABLE, suspect)
    if todo:
        target, golden = (str(tensors_of(one)) for one in (comparison.target, comparison.golden))
        order = Order(SUSPECT, target, 0, RECORDED, None, worker.threads, golden)
        with Pool(worker.command, [order], worker.seconds) as pool:
            pool.start()
            for number, line in pool.answers(suspect_line(suspect) for _, suspect in todo):
                if isinstance(line, Lost):
                    evidence = ReplayEvidence(NOT_REPLAYABLE, line.reason)
                else:
                    evidence = read_evidence(line)
                found[todo[number][0]] = evidence
    difference = calls.loss_difference()
    return {
        number: each._replace(loss_difference=difference) if each.loss_share is not None else each
        for number, each in found.items()
    }


class _Calls:
    """The calls of two runs, and which belongs to which."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._golden: dict[str, str] = {}  # by the name of the target's record
        self._target: dict[str, str] = {}
        for pair in comparison.pairs:
            if pair.target is not None and pair.golden is not None:
                ours, theirs = pair.target.call, pair.golden.call
                self._golden.setdefault(ours, theirs)
                self._target.setdefault(theirs, ours)

    def suspect(self, found: Divergence) -> Suspect | str:
        """What is to be called again, or why nothing can be."""
        name = found.place.record.name
        if name.is_module:
            return _MODULE
        if name.direction not in (FORWARD, BACKWARD):
            return _GRADIENT
        is_entered = found.verdict.level == ENTERED
        if is_entered and (name.direction == BACKWARD or self._is_plain_tensor(found)):
            return _BEFORE
        golden_name = found.golden or self._golden.get(str(name), "")
        target_name = self._target.get(golden_name, "") if self._is_of_golden(found) else str(name)
        target = self._call(self._comparison.target, target_name)
        golden = self._call(self._comparison.golden, golden_name)
        if isinstance(target, str) or isinstance(golden, str):
            return target if isinstance(target, str) else str(golden)
        if not _is_callable(self._comparison.golden):
            return "The golden run was not recorded with PyTorch, so that its call cannot be made again."
        replaced = found.place.slot if is_entered else ""
        own_units = self._comparison.precision is not None or not _loses_precision(target, golden)
        ours = target if _is_callable(self._comparison.target) else None
        return Suspect(ours, golden, name.direction, replaced, own_units)

    def _is_of_golden(self, found: Divergence) -> bool:
        """Whether only the golden run has this value, so that the place is one of its."""
        name = found.place.call
        return found.golden == name and self._pair_of(found).target is None

    def _pair_of(self, found: Divergence) -> Pair:
        return next(pair for pair in self._comparison.pairs if pair.place == found.place)

    def _is_plain_tensor(self, found: Divergence) -> bool:
        """Whether both runs were given numbers with a fraction there: an input, and no setting."""
        pair = self._pair_of(found)
        given = [place.leaf for place in (pair.target, pair.golden) if place is not None]
        return len(given) == 2 and all(leaf is not None and _has_fractions(leaf) for leaf in given)

    def _call(self, recording: Recording, name: str) -> Call | str:
        """Both directions of a recorded call, or why it cannot be made again."""
        if not name or name not in recording.records:
            return _ALONE
        forward = recording.records.get(str(CallName.parse(name).facing(FORWARD)))
        if forward is None:
            return _NO_FORWARD
        backward = recording.records.get(str(forward.name.facing(BACKWARD)))
        call = Call(forward.name, forward, backward)
        return reason_to_skip(call, Lists()) or call

    def loss_difference(self) -> float | None:
        """The loss of the target minus that of the golden run, if both are known and belong together."""
        ours, theirs = loss_of(self._comparison.target), loss_of(self._comparison.golden)
        if ours is None or theirs is None or self._golden.get(ours.name) != theirs.name:
            return None
        return ours.value - theirs.value


def _has_fractions(leaf: Leaf) -> bool:
    return leaf.is_tensor and roundoff(leaf.dtype) > 0


def _loses_precision(target: Call, golden: Call) -> bool:
    """Whether two calls get numbers of the same dtypes and return others, so that one of them is coarser."""
    given, returned = (
        [_dtypes(call.forward, fields) for call in (target, golden)]
        for fields in (("input_args", "input_kwargs"), ("output",))
    )
    return given[0] == given[1] and returned[0] != returned[1]


def _dtypes(record: Record, fields: Sequence[str]) -> set[str | None]:
    """The dtypes of the numbers with a fraction in these fields."""
    found = (leaf for field in fields for leaf in leaves(record.fields.get(field)))
    return {leaf.dtype for leaf in found if _has_fractions(leaf)}
