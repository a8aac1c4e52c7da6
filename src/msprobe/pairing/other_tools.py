"""Recordings of mindstudio-probe beside ours: what its gradients are the gradients of.

Of an API it records the gradients that the last step of its backward graph gives, in the order of that step:
bias, input and transposed weight of a linear layer, one flattened gradient of a batched matmul, those of the
logarithms of a cross entropy. Ours are those of the tensors that the API was given, in their order. Release
26.2.0 records the gradients of parameters as they have accumulated, once for each accumulation; ours are
those of the last backward pass. The inputs of modules it describes after the module ran, so that those of a
module that works in place are what it gave out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from msprobe.graph import Graph
from msprobe.graph_values import is_equal
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD
from msprobe.operators import operator_of
from msprobe.pairing.likeness import SAME_PARAMETERS, apart
from msprobe.pairing.match import ELSEWHERE, Pair, Place, Rename, places, slot_of
from msprobe.record import Leaf, Record, Recording

Slots = Mapping[str, str]
_CHANGED = "the other tool recorded this input after the module had changed it"
_PYTORCH = "pytorch"  # in MindSpore its gradients are those of the tensors that an API was given, too


def understood(rename: Rename, target: Recording, golden: Recording) -> Rename:
    """Return the rename with gradients paired by what they are of, if one run is of another tool."""
    if {target.header.framework, golden.header.framework} != {_PYTORCH}:
        return rename
    if are_of_last_steps(target) == are_of_last_steps(golden):
        return rename
    several = _accumulated(target) | _accumulated(golden)
    return rename._replace(slots=_slots(rename.slots, several))


def are_of_last_steps(recording: Recording) -> bool:
    """Whether gradients of APIs are those of their last steps: some fit no tensor that the API was given."""
    return any(
        record.name.direction == BACKWARD and not record.name.is_module and not _fits(record, recording)
        for record in recording.records.values()
    )


def _fits(record: Record, recording: Recording) -> bool:
    forward = recording.records.get(str(record.name.facing(FORWARD)))
    gradients = record.fields.get("output")
    if forward is None or not isinstance(gradients, list):
        return True
    given = [place.leaf for place in places(forward) if place.side == "input" and _is_tensor(place)]
    return len(gradients) <= len(given) and all(
        not isinstance(gradient, Leaf) or leaf is None or gradient.shape == leaf.shape
        for gradient, leaf in zip(gradients, given, strict=False)
    )


def _is_tensor(place: Place) -> bool:
    return place.leaf is not None and place.leaf.is_tensor


def _accumulated(recording: Recording) -> set[str]:
    """The modules whose gradients were recorded after several accumulations."""
    names = (record.name for record in recording.records.values())
    return {name.owner for name in names if name.direction == PARAMETERS_GRAD and name.count}


def _slots(others: Callable[[Record, Record], Slots], several: set[str]) -> Callable[[Record, Record], Slots]:
    def slots(ours: Record, theirs: Record) -> Slots:
        found = others(ours, theirs)
        if ours.name.direction == PARAMETERS_GRAD and ours.name.owner in several:
            return dict.fromkeys(map(slot_of, places(ours)), ELSEWHERE)
        if ours.name.direction == BACKWARD and not ours.name.is_module:
            return {**found, **gradient_slots(ours, theirs)}
        return found

    return slots


def gradient_slots(ours: Record, theirs: Record) -> dict[str, str]:
    """Return the golden slot of each gradient of an API, by shapes; ELSEWHERE if that is not certain."""
    here, there = ([place for place in places(record) if place.side == "output"] for record in (ours, theirs))
    found = {slot_of(place): ELSEWHERE for place in here}
    mine, others = ([place for place in side if _is_tensor(place)] for side in (here, there))
    operator = operator_of(ours.name)
    if len(mine) != len(others) or operator.has_inner_steps:
        return found
    if operator.is_weight_transposed:
        mine = [place for place in mine if not _is_second(place)]
    by_shape = _by_shape(others)
    for shape, gradients in _by_shape(mine).items():
        if len(gradients) == len(by_shape.get(shape, ())):
            found.update(zip(map(slot_of, gradients), map(slot_of, by_shape[shape]), strict=True))
    return found


def _is_second(place: Place) -> bool:
    """Whether it is the gradient of a weight: of the second tensor."""
    return slot_of(place).endswith("output.1")


def _by_shape(found: Sequence[Place]) -> dict[tuple[int, ...] | None, list[Place]]:
    groups: dict[tuple[int, ...] | None, list[Place]] = defaultdict(list)
    for place in found:
        groups[place.leaf.shape if place.leaf is not None else None].append(place)
    return groups


# ---- inputs that were recorded too late ----


def without_changed_inputs(pairs: list[Pair], graphs: tuple[Graph, Graph]) -> list[Pair]:
    """Mark the inputs of modules that one tool described after the module had changed them.

    `graphs`: of the target and of the golden run.
    """
    names_makers = [graph.is_recorded for graph in graphs]
    if all(names_makers) or not any(names_makers):  # both are of one tool
        return pairs
    return [_marked(pair, other=names_makers.index(False)) for pair in pairs]


def _marked(pair: Pair, other: int) -> Pair:
    """Mark a pair if the run of the other tool shows the module's output where its input should be."""
    name, both = pair.place.record.name, pair[:2]
    if not name.is_module or name.direction != FORWARD or pair.place.side != "input":
        return pair
    late, own = both[other], both[1 - other]
    if late is None or own is None or not _is_output(late) or _is_output(own):
        return pair
    error = apart(late, own)
    if error is not None and error <= SAME_PARAMETERS:  # the module gave back its input in this run alone
        return pair
    return pair._replace(unjudged=_CHANGED)


def _is_output(place: Place) -> bool:
    """Whether an input looks like an output of its call, as far as statistics tell."""
    leaf = place.leaf
    outputs = (each.leaf for each in places(place.record) if each.side == "output")
    return leaf is not None and any(
        other is not None and other.is_tensor and _look_alike(leaf, other) for other in outputs
    )


def _look_alike(ours: Leaf, theirs: Leaf) -> bool:
    return is_equal(ours, theirs) or (ours.shape, ours.stats) == (theirs.shape, theirs.stats)
