"""Kernels that ran, seen as calls of a recording, so that they are judged as calls are.

A kernel's files and lines name its inputs and outputs, and when each was written: in the order of execution,
the kernel's own tensors together. MindSpore writes inputs after the kernel ran, so that an optimizer's
parameters and states are those that it made. The files of parameters come last, with the values that a step
leaves behind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from msprobe.analyse.judge import Finding, needs_agree
from msprobe.analyse.measure import Measured
from msprobe.graph import Graph
from msprobe.graph_values import key_of
from msprobe.name import FORWARD, CallName, call_owner, slot_name
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair, Place
from msprobe.record import Header, Leaf, Record, Recording, Side
from msprobe.store.kernels_dir import KernelSlot
from msprobe.verdict.assess import assess
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.levels import CANNOT_TELL, ORIGINATED, Verdict
from msprobe.verdict.locate import locate
from msprobe.verdict.reason import off

PREFIX = "Kernel"

_PARAMETER = "Parameter"  # the type under which the values of parameters after the step are written
_LEVEL, _FRAMEWORK = "L2", "mindspore"
_WHOLE_STEP = (
    "its arguments differ by rounding, and an optimizer may make a whole step of a gradient that is zero but "
    "for rounding"
)
_NUMBER = re.compile("[0-9]+")
# What CANN calls dtypes.
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


class KernelValue(NamedTuple):
    """A tensor of a kernel, as one run has it."""

    slot: KernelSlot
    op_type: str
    timestamp: int
    leaf: Leaf | None  # None: it could not be read


class KernelPair(NamedTuple):
    """A tensor of a kernel in both runs; one of them may be missing."""

    target: KernelValue | None
    golden: KernelValue | None
    measured: Measured = None
    result: str = ""  # of the specification
    reason: str = ""  # not empty: why the two cannot be measured
    unjudged: str = ""  # not empty: why nothing can be said of them


class JudgedKernels(NamedTuple):
    """What our verdict makes of the kernels of one rank and step."""

    comparison: Comparison
    verdicts: list[Verdict]  # one for each pair, in their order


class Dumped(NamedTuple):
    """Where the kernels of one run lie, and of which rank and step they are."""

    folder: str
    step: int
    rank: int


def described_leaf(dtype: str, shape: Sequence[int] | str, **seen: Any) -> Leaf:
    """Return the leaf of a tensor of a kernel; a statistic.csv writes its shape as a text."""
    known = tuple(map(int, _NUMBER.findall(shape))) if isinstance(shape, str) else tuple(shape)
    return Leaf("mindspore.Tensor", dtype=_DTYPES.get(dtype.lower(), dtype.lower()), shape=known, **seen)


def judge_kernels(pairs: Sequence[KernelPair], mode: str, target: Dumped, golden: Dumped) -> JudgedKernels:
    """Judge kernels in the order of execution, each by its own inputs.

    `pairs` are in the order in which the target wrote them; those of the golden run alone come last.
    """
    ours = _Calls([pair.target for pair in pairs], mode, target)
    theirs = _Calls([pair.golden for pair in pairs], mode, golden)
    order = sorted(range(len(pairs)), key=lambda n: (pairs[n].target is None, ours.times[n], theirs.times[n]))
    findings = [
        Finding(pair, pairs[n].measured, pairs[n].result, gradients_agree=needs_agree(pair))
        for n, pair in (
            (n, Pair(ours.places[n], theirs.places[n], pairs[n].reason, unjudged=pairs[n].unjudged))
            for n in order
        )
    ]
    verdicts, precision, unequal = assess(findings, (Graph(ours.recording), Graph(theirs.recording)))
    verdicts = list(_settled(findings, verdicts))
    located = locate(ours.recording, theirs.recording, mode, findings, verdicts, unequal=unequal)
    comparison = Comparison(ours.recording, theirs.recording, mode, findings, verdicts, located, precision)
    by_pair = dict(zip(order, verdicts, strict=True))
    return JudgedKernels(comparison, [by_pair[n] for n in range(len(pairs))])


Spot = tuple[str, int]  # input or output, and its number


class _Calls:
    """The kernels of one run, in the order of execution."""

    def __init__(self, values: Sequence[KernelValue | None], mode: str, dumped: Dumped) -> None:
        names = list(_names(values))
        kernels: dict[CallName, dict[Spot, KernelValue]] = defaultdict(dict)
        for name, value in zip(names, values, strict=True):
            if name is not None and value is not None:
                kernels[name][_spot(value)] = value
        times = {name: min(value.timestamp for value in kernel.values()) for name, kernel in kernels.items()}
        made: set[Hashable] = set()
        found: dict[CallName, dict[Spot, Place]] = {}
        for number, name in enumerate(sorted(kernels, key=times.__getitem__)):
            found[name] = _places(name, kernels[name], made)
            made.update(_made(found[name].values()))
            times[name] = number
        # When each value was there, as the number of its call, and where; nothing where there is no value.
        self.times = [-1 if name is None else times[name] for name in names]
        self.places = [
            None if name is None or value is None else found[name][_spot(value)]
            for name, value in zip(names, values, strict=True)
        ]
        records = {str(name): next(iter(call.values())).record for name, call in found.items()}
        header = Header(mode, _LEVEL, _FRAMEWORK)
        self.recording = Recording(header, records, dumped.folder, dumped.step, dumped.rank)


def _names(values: Sequence[KernelValue | None]) -> Iterator[CallName | None]:
    """The call of each value; a slot that a kernel has shown already is of the next time that it runs."""
    with_graph = len({value.slot[:2] for value in values if value is not None}) > 1
    running: dict[Hashable, CallName] = {}
    shown: dict[CallName, set[Spot]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for value in values:
        if value is None:
            yield None
            continue
        slot, spot = value.slot, _spot(value)
        kernel = slot[:4]
        if kernel not in running or spot in shown[running[kernel]]:
            where = f"{slot.net}.{slot.graph}.{slot.op_name}" if with_graph else slot.op_name
            owner = call_owner(PREFIX, f"{where}.{value.op_type}")
            running[kernel] = CallName(owner, FORWARD, counts[owner])
            counts[owner] += 1
        shown[running[kernel]].add(spot)
        yield running[kernel]


def _spot(value: KernelValue) -> Spot:
    return value.slot.side, value.slot.slot


def _made(found: Iterable[Place]) -> Iterator[Hashable]:
    return (key_of(place.leaf) for place in found if place.side == "output" and place.leaf is not None)


def _places(name: CallName, kernel: dict[Spot, KernelValue], made: Container[Hashable]) -> dict[Spot, Place]:
    """What was seen of a kernel; `made` are the contents that earlier kernels have made."""
    fields: dict[str, dict[str, Leaf | None]] = {}
    record = Record(name, fields)
    is_optimizer = operator_of(name).is_optimizer
    found = {}
    for (side, number), (_, op_type, _, leaf) in kernel.items():
        field: Side | Literal["buffers_after"] = "output" if side == "output" else "input"
        if op_type == _PARAMETER:
            field = "input"
        elif field == "input" and is_optimizer and leaf and leaf.shape and key_of(leaf) not in made:
            field = "buffers_after"
        fields.setdefault(field, {})[str(number)] = leaf
        slot = f"{field}.{number}"
        goes: Side = "input" if field == "input" else "output"
        found[side, number] = Place(slot_name(str(name), slot), goes, leaf, record, slot, str(name))
    return found


def _settled(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """The verdicts, of kernels of which a dump shows less than a recording shows of a call."""
    rows = list(zip(findings, verdicts, strict=True))
    inputs = [(id(f.pair.place.record), v) for f, v in rows if f.pair.place.side == "input"]
    shown, unequal = {key for key, _ in inputs}, {key for key, verdict in inputs if verdict.error}
    before, differs, current = False, False, 0  # whether any value differs: before this kernel, and so far
    for finding, verdict in rows:
        record = finding.pair.place.record
        if id(record) != current:
            before, current = differs, id(record)
        if verdict.level == ORIGINATED:
            operator = operator_of(record.name)
            if id(record) not in shown and operator.kind != "makes":
                verdict = _without_inputs(verdict, before)
            elif id(record) in unequal and operator.is_optimizer:
                verdict = verdict._replace(level=CANNOT_TELL, reason=f"{verdict.reason}; {_WHOLE_STEP}")
        differs = differs or bool(verdict.error)
        yield verdict


def _without_inputs(verdict: Verdict, before: bool) -> Verdict:
    """The verdict on a result that nothing explains, if only results were dumped."""
    text = f"{off(verdict.error or 0.0)}; its inputs were not dumped"
    if before:
        return verdict._replace(level=CANNOT_TELL, reason=f"{text}, and values before it differ")
    return verdict._replace(reason=f"{text}, and no value before it differs")
