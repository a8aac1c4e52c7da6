"""Nets that compute in each way that recording could disturb, and what a step of training leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from ms_case import Net, numbered

STEPS = 3


class InPlace(nn.Cell):
    """Changes tensors and a parameter where they are, before and after they were used."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Dense(4, 4), nn.Dense(4, 4)
        self.calls = Parameter(Tensor(np.zeros(1, np.float32)), name="calls", requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        ops.assign(self.calls, self.calls + 1)
        y = self.fc(x) * self.calls
        y.copy_(y * 3)
        z = y * 2
        z[0] = z[0] * 5
        z.copy_(mint.add(z, 1.0))
        z += 1
        return self.out(ops.relu(z * z))


class Dropping(nn.Cell):
    """Draws random numbers on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop, self.out = nn.Dense(4, 8), nn.Dropout(p=0.3), nn.Dense(8, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = self.drop(ops.relu(self.fc(x)))
        return self.out(ops.dropout(x, p=0.2) + ops.rand_like(x))


class Normalised(nn.Cell):
    """Has kernels that change parameters: moving means."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.out = nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.out(ops.gelu(self.norm(self.fc(x))))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return ops.sin(ops.tanh(self.fc(x)))


class Recomputed(nn.Cell):
    """Runs blocks a second time during backward, in each of the ways there are.

    Without dropout: what that draws when it is run again depends on what else the process ran before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = Block(), Block(), Block(), Block()
        self.a.recompute()
        self.b.recompute(use_reentrant=False)

    def construct(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        return ms.recompute(self.d, ms.recompute(self.c, x), use_reentrant=False)


class Hooked(nn.Cell):
    """Has hooks of the user's own that change what they see."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mid, self.out = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)
        self.fc.register_forward_pre_hook(lambda cell, inputs: (inputs[0] * 2,))
        self.fc.register_forward_hook(lambda cell, inputs, output: output + 1)
        self.mid.register_backward_hook(lambda cell, to_inputs, to_outputs: (to_inputs[0] * 3,))
        self.mid.register_backward_pre_hook(lambda cell, to_outputs: (to_outputs[0] * 5,))
        self.out.weight.register_hook(lambda gradient: gradient * 7)

    def construct(self, x: Tensor) -> Tensor:
        y = self.mid(self.fc(x))
        y.register_hook(lambda gradient: gradient * 0.5)
        return self.out(y)


class Rule(nn.Cell):
    """Has a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.used_backward = True

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.exp(x) * y

    def bprop(self, x: Tensor, y: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout * 2, ops.tanh(dout)


class Ruled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.rule, self.out = nn.Dense(4, 4), Rule(), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return self.out(self.rule(y, y) + y)


class Shared(nn.Cell):
    """Calls one cell, under two names, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.same = self.fc

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(ops.tanh(self.same(ops.tanh(self.fc(x)))))


class Pair(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, given: Any, scale: Any = None) -> Any:
        (a, [b, c]), named = given
        y = self.fc(a) + named["n"] * scale["s"]
        return (y, [b * y, {"c": c, "n": ops.abs(y)}]), 3, None


class Nested(nn.Cell):
    """Passes tensors on in tuples, lists and dicts, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = Pair(), Pair(), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        (y, [z, named]), _, _ = self.one(((x, [x, x * 2]), {"n": x}), scale={"s": x})
        (y, [z, named]), _, _ = self.two(((y, [z, named["c"]]), {"n": named["n"]}), scale={"s": z})
        a, b = mint.split(mint.cat([y, z + named["c"]]), x.shape[0])
        return self.out(ops.stack((a, b)).sum(0))


class Narrow(nn.Cell):
    """Computes in other floats, and in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Dense(4, 4).to_float(ms.float16), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x).astype(ms.float32)
        places = ops.argmax(y, 1)
        y = (y.to(ms.bfloat16) * 2).to(ms.float32)
        return self.out(ops.where(y > 0, y, y * 0.1) + ops.one_hot(places, 4, Tensor(1.0), Tensor(0.0)))


@ms.jit
def compiled(x: Tensor) -> Tensor:
    return ops.abs(x) * 2


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.out(compiled(self.fc(x)))


class Kind(NamedTuple):
    """A net and the shape of what it is given."""

    build: Callable[[], nn.Cell]
    shape: tuple[int, ...] = (3, 4)


NETS = {
    "golden": Kind(Net, (2, 1, 4, 4)),
    "in place": Kind(InPlace),
    "dropout": Kind(Dropping),
    "batch norm": Kind(Normalised),
    "recompute": Kind(Recomputed),
    "hooks": Kind(Hooked),
    "bprop": Kind(Ruled),
    "shared": Kind(Shared),
    "nested": Kind(Nested),
    "narrow": Kind(Narrow),
    "jit": Kind(Compiled),
}


def bits(values: Any) -> list[bytes]:
    return [value.asnumpy().tobytes() for value in values]


def train(kind: Kind, debugger: Any = None, steps: int = STEPS) -> list[Any]:
    """Losses, gradients, parameters, the optimizer's state and all random states, after each step."""
    for seed in (ms.set_seed, np.random.seed, random.seed):
        seed(5)
    ms.manual_seed(5)
    net = numbered(kind.build()).set_train()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)

    def forward(x: Tensor) -> Tensor:
        y = net(x)
        return ops.mean(y * y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    seen: list[Any] = []
    for _ in range(steps):
        x = Tensor(np.random.randn(*kind.shape).astype(np.float32))
        if debugger is not None:
            debugger.start(net)
        loss, gradients = gradients_of(x)
        optimizer(gradients)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen += bits([loss, *gradients, *net.get_parameters(), *optimizer.get_parameters()])
        seen += [*bits([ms.get_rng_state()]), random.getstate(), np.random.get_state()[1].tobytes()]
    return seen
