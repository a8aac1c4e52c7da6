"""What one framework does in one call and the other in several: such calls in a row, seen as that one.

A Dense of MindSpore multiplies and adds, between two reshapes if its input has more than two dimensions;
PyTorch calls linear. Inputs, weights and the result are the same values, at places of several calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from msprobe.kernels import Statistics
from msprobe.name import BACKWARD, slot_name
from msprobe.pairing.likeness import Likeness, Node, agree, shapes
from msprobe.pairing.match import Certainty, Place

_SAME_WEIGHTS = Certainty(0.95, "one does in several calls what the other does in one, with the same weights")
_SAME_SHAPES = Certainty(0.8, "one does in several calls what the other does in one, on the same shapes")


def wholes(calls: Sequence[Node]) -> list[Node]:
    """The single calls that the other framework may do in several."""
    return [call for call in calls if call.operator.has_parts]


def runs(calls: Sequence[Node]) -> list[Node]:
    """Calls in a row that do together what the other framework may do in one; each seen as that one."""
    told = [call for call in calls if not call.operator.is_shape]
    cores = [number for number, call in enumerate(told) if call.operator.core_of is not None]
    return [run for at in cores for run in _runs(told[max(at - 1, 0) : at], told[at], told[at + 1 : at + 3])]


def _runs(before: Sequence[Node], core: Node, after: Sequence[Node]) -> Iterator[Node]:
    whole = core.operator.core_of
    if whole is None or len(core.inputs) != 2 or not core.outputs:
        return
    inputs, parts, output = [core.inputs[place] for place in whole.order], [core], core.outputs[0]
    if after and _adds_bias(after[0], output):
        bias, *after = after
        inputs, parts, output = [*inputs, bias.inputs[1]], [*parts, bias], bias.outputs[0]
    elif whole.needs_bias:
        return
    yield _seen_as(whole.concept, core, inputs, output, parts)
    if not before or not after or not _reshapes(before[-1]) or not _reshapes(after[0]):
        return
    if _same(before[-1].outputs[0], inputs[0]) and _same(output, after[0].inputs[0]):
        outer = [before[-1].inputs[0], *inputs[1:]]
        yield _seen_as(whole.concept, core, outer, after[0].outputs[0], [before[-1], *parts, after[0]])


def _adds_bias(call: Node, output: Place) -> bool:
    if call.concept not in ("biasadd", "add") or len(call.inputs) != 2 or not call.outputs:
        return False
    bias = call.inputs[1].leaf
    return bias is not None and len(bias.shape or ()) == 1 and _same(output, call.inputs[0])


def _reshapes(call: Node) -> bool:
    return call.concept == "reshape" and bool(call.inputs) and bool(call.outputs)


def _same(ours: Place, theirs: Place) -> bool:
    """Whether a value of one recording is that which came out of an earlier call of it."""
    a, b = ours.leaf, theirs.leaf
    if a is None or b is None or a.shape != b.shape:
        return False
    if not isinstance(a.stats, Statistics) or not isinstance(b.stats, Statistics):
        return a.stats is b.stats
    return all(x == y or (x != x and y != y) for x, y in zip(a.stats, b.stats, strict=True))


def _seen_as(concept: str, core: Node, inputs: Sequence[Place], output: Place, parts: Sequence[Node]) -> Node:
    return dataclasses.replace(
        core,
        concept=concept,
        inputs=tuple(inputs),
        outputs=(output,),
        input_shapes=shapes(inputs),
        output_shape=shapes([output]),
        parts=tuple(parts),
    )


def alike_compounds(ours: Node, theirs: Node, *, surely: bool) -> Likeness | None:
    """Whether several calls do what one does; surely, if their weights are the same."""
    if (ours.concept, ours.output_shape) != (theirs.concept, theirs.output_shape):
        return None
    if ours.input_shapes != theirs.input_shapes:
        return None
    same = agree(ours.inputs[1:2], theirs.inputs[1:2])
    if surely and not same:
        return None
    weight = 2.0 + 3.0 * same + 2.0 * agree(ours.outputs[:1], theirs.outputs[:1])
    return Likeness(weight, _SAME_WEIGHTS if same else _SAME_SHAPES)


def place_pairs(ours: Node, theirs: Node) -> Iterator[tuple[str, str]]:
    """The names of the places that belong together, forward and backward."""
    inputs = zip(ours.inputs, theirs.inputs, strict=True)
    for a, b in (*inputs, (ours.outputs[0], theirs.outputs[0])):
        yield a.name, b.name
        yield _gradient(a, ours), _gradient(b, theirs)


def maker(call: Node) -> Node:
    """The call that makes the result."""
    if not call.parts:
        return call
    (part,) = (each for each in call.whole if each.record is call.outputs[0].record)
    return part


def _gradient(place: Place, call: Node) -> str:
    """Where the gradient of a place is: of the first tensor at 0, whatever stands before it."""
    (part,) = (each for each in call.whole if each.record is place.record)
    tensors, side = (part.inputs, "output") if place.side == "input" else (part.outputs, "input")
    number = [tensor.name for tensor in tensors].index(place.name)
    return slot_name(str(part.name.facing(BACKWARD)), f"{side}.{number}")
