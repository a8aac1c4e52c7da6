"""How much a call of one framework looks like one of another."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msprobe.graph_values import is_telling
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.operators import Operator, concept, operator_named
from msprobe.pairing.described import described
from msprobe.pairing.match import Certainty, Place, places, slot_of
from msprobe.pairing.roles import other_slot, roles
from msprobe.pairing.step_part import part_of
from msprobe.record import Record, Side

SAME_VALUES = 0.02  # of their size: values of two runs that are meant to be the same, and have not yet parted
SAME_PARAMETERS = 1e-4

_NO_WEIGHTS = ("input", "running_mean", "running_var")
_LEAST = 2.5  # of the weight of two modules, below which they are taken for different ones
_ALIKE = 0.75  # share of what two modules of differently called classes must have in common


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A call with what tells it from others: what it does, its tensors, and the calls in it."""

    name: CallName
    record: Record
    concept: str
    inputs: tuple[Place, ...]  # tensors only
    outputs: tuple[Place, ...]
    input_shapes: list[tuple[int, ...] | None]
    output_shape: list[tuple[int, ...] | None]  # of the first: of some results one framework has more
    parameters: Mapping[str, Place]  # by the names of PyTorch
    children: tuple[Node, ...]
    inside: Counter[str]  # what the modules below are
    owners: frozenset[str]  # of all modules below, and its own
    height: int
    part: str  # of the training step: the model, the optimizer, or nothing if that is not known
    parts: tuple[Node, ...] = ()  # if it stands for several calls: these

    @property
    def whole(self) -> tuple[Node, ...]:
        """The calls that it stands for."""
        return self.parts or (self,)

    @property
    def has_modules(self) -> bool:
        return any(child.name.is_module for child in self.children)

    @property
    def is_user_class(self) -> bool:
        return self.name.is_module and not self.operator.is_class

    @property
    def operator(self) -> Operator:
        """What the table says of what it does."""
        return operator_named(self.concept)


def node(record: Record, children: tuple[Node, ...]) -> Node:
    inside: Counter[str] = Counter()
    owners = {record.name.owner} if record.name.is_module else set()
    for child in children:
        inside.update(modules_in(child))
        owners |= child.owners
    found = list(places(record))
    inputs, outputs = tuple(tensors(found, "input")), tuple(tensors(found, "output"))
    return Node(
        record.name,
        record,
        concept(record.name),
        inputs,
        outputs,
        shapes(inputs),
        shapes(outputs[:1]),
        _parameters(found),
        children,
        inside,
        frozenset(owners),
        1 + max((child.height for child in children), default=-1),
        part_of(record),
    )


def modules_in(found: Node) -> Counter[str]:
    """What a call and the modules below it are; classes of users have other names in each framework."""
    inside = Counter(found.inside)
    if found.name.is_module:
        inside["" if found.is_user_class else found.concept] += 1
    return inside


def _parameters(found: Sequence[Place]) -> dict[str, Place]:
    """By the names of PyTorch, to which the statistics of a batch norm are none."""
    named = {slot_of_torch(place): place for place in found if place.side == "parameters"}
    return {slot: place for slot, place in named.items() if ".running_" not in slot}


def tensors(found: Sequence[Place], side: Side) -> Iterator[Place]:
    """The tensors among the places of a call."""
    return (
        place for place in found if place.side == side and place.leaf is not None and place.leaf.is_tensor
    )


def slot_of_torch(place: Place) -> str:
    """The slot of a place, named as PyTorch does."""
    slot = slot_of(place)
    return other_slot(slot) or slot


def role_of(place: Place) -> str:
    """What a tensor is to its call: by its position, or by its keyword."""
    last = slot_of_torch(place).rpartition(".")[2]
    known = roles(place.record.name)
    return known[int(last)] if last.isdigit() and int(last) < len(known) else last


class Likeness(NamedTuple):
    """How much speaks for two calls being one, and what that is worth."""

    weight: float
    certainty: Certainty


def shapes(found: Sequence[Place]) -> list[tuple[int, ...] | None]:
    return [place.leaf.shape for place in found if place.leaf is not None]


def apart(ours: Place, theirs: Place) -> float | None:
    """How far two tensors are apart, of their size; None where that says nothing."""
    a, b = ours.leaf, theirs.leaf
    if a is None or b is None or a.shape != b.shape or not (is_telling(a) and is_telling(b)):
        return None
    # This is asked very often, and mostly of tensors that are not alike: two quick looks come first.
    norms = norm_of(ours), norm_of(theirs)
    far = abs(norms[0] - norms[1]) / max(norms)
    if far > SAME_VALUES:
        return far
    ends = [(stats.max, stats.min) for stats in (a.stats, b.stats) if isinstance(stats, Statistics)]
    if _are_apart(*ends[0], *ends[1]):
        return 2 * SAME_VALUES
    return described(a, b)


def differ(ours: Place, theirs: Place) -> bool:
    """Whether two tensors surely have other values."""
    a, b = ours.leaf, theirs.leaf
    if a is None or b is None or (a.shape, a.stats) == (b.shape, b.stats):
        return False
    error = apart(ours, theirs)
    return is_telling(a) != is_telling(b) if error is None else error > SAME_VALUES


def _are_apart(high: Any, low: Any, other_high: Any, other_low: Any) -> bool:
    """Whether largest and smallest values differ so much that others need not be looked at."""
    if None in (high, low, other_high, other_low):
        return False
    peak = max(abs(high), abs(low), abs(other_high), abs(other_low))
    return bool(max(abs(high - other_high), abs(low - other_low)) > 2 * SAME_VALUES * peak)


def norm_of(place: Place) -> float:
    """The norm of a tensor; 0 where it is not known."""
    stats = place.leaf.stats if place.leaf is not None else None
    return (stats.norm or 0.0) if isinstance(stats, Statistics) else 0.0


def agree(ours: Sequence[Place], theirs: Sequence[Place], within: float = SAME_VALUES) -> bool:
    """Whether the tensors of two calls, as far as both have them, have the same values."""
    found = [apart(a, b) for a, b in zip(ours, theirs, strict=False)]
    known = [error for error in found if error is not None]
    return bool(known) and all(error <= within for error in known)


def dice(ours: Counter[str], theirs: Counter[str]) -> float:
    """The share of two bags of words that is in both."""
    size = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / size if size else 0.0


# ---- APIs ----


def alike_apis(ours: Node, theirs: Node) -> Likeness | None:
    if ours.concept != theirs.concept or ours.output_shape != theirs.output_shape:
        return None
    operator = ours.operator
    if operator.is_bias_apart and len(ours.inputs) != len(theirs.inputs):
        return None
    same_inputs = ours.input_shapes == theirs.input_shapes
    # Equal values do not tell apart calls that give the values that went in, or none.
    if not same_inputs and (operator.keeps_values or operator.is_shape or not ours.outputs):
        return None
    weight = 2.0 if same_inputs else 1.0
    if agree(ours.inputs, theirs.inputs):
        weight += 1.0
    if operator.has_weights:  # parameters are alike also in runs that have parted
        weight += 2.0 if same_weights(ours, theirs) else -0.5
    if agree(ours.outputs, theirs.outputs):
        return Likeness(weight + 3.0, Certainty(0.99, "they do the same, and the values agree"))
    if same_inputs:
        return Likeness(weight, Certainty(0.9, "they do the same, on tensors of the same shapes"))
    return Likeness(weight, Certainty(0.75, "they do the same, and their results have one shape"))


def same_weights(ours: Node, theirs: Node) -> bool:
    """Whether two calls have the same parameters among their tensors."""
    if not ours.operator.has_weights or len(ours.inputs) != len(theirs.inputs):
        return False
    here, there = _weights(ours), _weights(theirs)
    common = here.keys() & there.keys()
    return agree([here[key] for key in common], [there[key] for key in common], SAME_PARAMETERS)


def _weights(found: Node) -> dict[str, Place]:
    """The tensors beside the first by what they are: the statistics of a batch norm are no parameters."""
    named = {role_of(place) if roles(found.name) else str(n): place for n, place in enumerate(found.inputs)}
    return {role: place for role, place in named.items() if role not in ("0", *_NO_WEIGHTS)}


# ---- modules ----


class Anchors(NamedTuple):
    """Modules that have the same parameters, which no others have."""

    golden: Mapping[str, str]  # by the target's owner
    known: frozenset[str]  # all of the golden run's


def alike_modules(ours: Node, theirs: Node, anchors: Anchors) -> Likeness | None:
    shared = _shared_anchors(ours, theirs, anchors)
    same_class = ours.concept == theirs.concept
    if shared == 0.0 or (not same_class and not _may_be_one(ours, theirs)):
        return None
    weight = 2.0 if same_class else 0.0
    weight += 4.0 * (shared or 0.0)
    tail = _tail_likeness(ours.name, theirs.name)
    weight += 1.5 * tail
    same_shapes = ours.output_shape == theirs.output_shape
    weight += 2.0 if same_shapes else -1.0
    weight += 0.5 * (ours.input_shapes == theirs.input_shapes)
    if ours.parameters and theirs.parameters:
        weight += 1.0 if parameter_shapes(ours) == parameter_shapes(theirs) else -2.0
    if ours.has_modules and theirs.has_modules:
        weight += 3.0 * (dice(ours.inside, theirs.inside) - 0.3)
    values = agree(ours.outputs, theirs.outputs)
    weight += 2.0 * values + agree(ours.inputs, theirs.inputs)
    if weight < _LEAST:
        return None
    return Likeness(weight, _certainty(shared, values, same_class, same_shapes, tail))


def _certainty(
    shared: float | None, values: bool, same_class: bool, same_shapes: bool, tail: float
) -> Certainty:
    kind = "class" if same_class else "content"
    if shared == 1.0:
        return Certainty(0.99, "they have the same parameters")
    if values:
        return Certainty(0.99 if same_class else 0.95, f"{kind} and values agree")
    if same_shapes and tail == 1.0:
        return Certainty(0.95 if same_class else 0.9, f"{kind}, name and shapes agree")
    if same_shapes:
        return Certainty(0.9 if same_class else 0.75, f"{kind} and shapes agree")
    return Certainty(0.7 if tail == 1.0 else 0.5, f"{kind} and place in the model agree, shapes do not")


def _may_be_one(ours: Node, theirs: Node) -> bool:
    """Whether two classes of different names may be one: classes of users, with much the same in them."""
    if ours.operator.is_class and theirs.operator.is_class:
        return False
    if ours.has_modules != theirs.has_modules:
        return False
    if not ours.has_modules:
        return True
    return ours.input_shapes[:1] == theirs.input_shapes[:1] and dice(ours.inside, theirs.inside) >= _ALIKE


def _shared_anchors(ours: Node, theirs: Node, anchors: Anchors) -> float | None:
    """The share of modules with the same parameters that both have; None if nothing is known of either."""
    there = {anchors.golden[owner] for owner in ours.owners if owner in anchors.golden}
    known = anchors.known & theirs.owners
    if not there and not known:
        return None
    return len(there & known) / max(len(there), len(known))


def _tail_likeness(ours: CallName, theirs: CallName) -> float:
    a, b = (name.path[-1:] or ("",) for name in (ours, theirs))
    return 1.0 if a == b else 0.7 * _word_likeness(a[0], b[0])


@functools.lru_cache(maxsize=65_536)
def _word_likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def parameter_shapes(found: Node) -> list[str]:
    """The shapes of a module's own parameters."""
    return sorted(str(place.leaf.shape) for place in found.parameters.values() if place.leaf is not None)
