"""Comparisons made by hand for the page: a net of layers, one call of which is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msprobe.compare import compare_recordings
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Recording, Stack
from msprobe.verdict.comparison import Comparison

APIS = (
    "Functional.linear",
    "Tensor.reshape",
    "Torch.matmul",
    "Functional.softmax",
    "Functional.dropout",
    "Tensor.__add__",
)
PARTS = ("attention.Attention", "mlp.FeedForward")
ROUNDING, FAULT = 1e-7, 1e-2
FRAMES = (
    "File net.py, line 31, in forward, \n x = self.call(x)",
    "File train.py, line 9, in <module>, \n step(net)",
)


class Call(NamedTuple):
    name: str
    parent: str | None


def forward_calls(layers: int) -> Iterator[Call]:
    """The calls in the order in which they begin; each has a record for both directions."""
    counts = dict.fromkeys(APIS, 0)
    net = "Module.Net.forward.0"
    yield Call(net, None)
    for layer in range(layers):
        block = f"Module.layers.{layer}.Block.forward.0"
        yield Call(block, net)
        for part in PARTS:
            module = f"Module.layers.{layer}.{part}.forward.0"
            yield Call(module, block)
            for api in APIS:
                yield Call(f"{api}.{counts[api]}.forward", module)
                counts[api] += 1


def calls(layers: int) -> list[Call]:
    forward = list(forward_calls(layers))
    back = [Call(_backward(c.name), _backward(c.parent) if c.parent else None) for c in reversed(forward)]
    return [*forward, *back]


def _backward(name: str) -> str:
    return str(CallName.parse(name).facing("backward"))


def tensor(value: float) -> Leaf:
    stats = Statistics(value, -value, value / 3, value * 7)
    return Leaf("torch.Tensor", dtype="torch.float32", shape=(4, 128, 64), stats=stats, requires_grad=True)


def call(name: str, *outputs: Leaf, inputs: Sequence[Leaf] = ()) -> Record:
    fields = {"input_args": list(inputs), "input_kwargs": {}, "output": list(outputs)}
    return Record(CallName.parse(name), fields, Stack(0, FRAMES))


def recording(
    layers: int, *, wrong: str | None = None, with_parents: bool = True, noise: float = 0.0
) -> Recording:
    """A run; from the output of the call `wrong` on its values are off, before it by `noise`."""
    chance = random.Random(7)
    error = noise
    records = {}
    for call in calls(layers):
        before = [tensor(chance.uniform(0.5, 2) * (1 + error * chance.random())) for _ in range(2)]
        if call.name == wrong:
            error = FAULT
        after = tensor(chance.uniform(0.5, 2) * (1 + error * (0.5 + chance.random() / 2)))
        name = CallName.parse(call.name)
        fields = {"input_args": before, "input_kwargs": {"p": Leaf("float", 0.1)}, "output": [after]}
        if name.direction == "backward":
            fields = {"input": before, "output": [after]}
        stack = Stack(0, FRAMES) if name.direction == "forward" else None
        records[call.name] = Record(name, fields, stack, call.parent if with_parents else None, with_parents)
    header = Header("statistics", "mix" if with_parents else "L1", "pytorch")
    return Recording(header, records, "run", step=0, rank=0)


def comparison(layers: int, *, wrong: str | None, with_parents: bool = True) -> Comparison:
    target = recording(layers, wrong=wrong, with_parents=with_parents, noise=ROUNDING)
    return compare_recordings(target, recording(layers, with_parents=with_parents))


def of(target: list[Record], golden: list[Record]) -> Comparison:
    """Of records that a test writes out."""
    header = Header("statistics", "L1", "pytorch")
    sides = [Recording(header, {str(r.name): r for r in side}, "run", step=0) for side in (target, golden)]
    return compare_recordings(*sides)


HOSTILE = "Torch.</script><img src=x onerror=document.title='taken'>\"'&.0.forward"


def hostile() -> Comparison:
    """Of a call whose name and argument want to be markup."""
    text = Leaf("str", "</script><script>document.title='taken'</script>")

    target, golden = (call(HOSTILE, tensor(value), inputs=(tensor(1), text)) for value in (2, 1))
    return of([target], [golden])
