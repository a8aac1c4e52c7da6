"""By which power a result grows with each argument, as the verdict says and as torch computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from msprobe.operators.table import TABLE
from msprobe.verdict.difference import Difference
from msprobe.verdict.gradients import Backward, backward_reach
from msprobe.verdict.tolerance import Argument, Scaling, forward_reach

S = 1e-5  # the scale error of an argument
GENERATOR = torch.Generator().manual_seed(16)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    return normal(*shape).abs() + 0.1


def argument(x: Tensor, position: int = 0) -> Argument:
    return Argument(difference(x), tuple(x.shape), position)


def difference(x: Tensor) -> Difference:
    return Difference("content", False, 0.0, float(x.norm()), x.numel(), float(x.abs().max()), 2.0**-24)


def scale_error(result: Tensor, reference: Tensor) -> float:
    return float(((result - reference) * reference).sum() / (reference * reference).sum())


def is_held(scaling: Scaling, found: float) -> bool:
    return abs(found - scaling.degree * S) <= scaling.slack * S + 1e-3 * S


FORWARD: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
    "add": (torch.add, [normal(64, 32), 3 * normal(64, 32)]),
    "sub": (torch.sub, [normal(64, 32) + 1, normal(64, 32)]),
    "div": (torch.div, [normal(64, 32), positive(64, 32)]),
    "mul": (torch.mul, [normal(64, 32), normal(32)]),
    "matmul": (torch.matmul, [normal(64, 32), normal(32, 16)]),
    "linear": (F.linear, [normal(64, 32), normal(16, 32), normal(16)]),
    "addmm": (torch.addmm, [normal(16), normal(64, 32), normal(32, 16)]),
    "conv2d": (F.conv2d, [normal(2, 3, 8, 8), normal(4, 3, 3, 3), normal(4)]),
    "sum": (lambda x: x.sum(-1), [normal(64, 32)]),
    "mean": (lambda x: x.mean(-1), [normal(64, 32) + 1]),
    "permute": (lambda x: x.t(), [normal(64, 32)]),
    "sqrt": (torch.sqrt, [positive(64, 32)]),
    "rsqrt": (torch.rsqrt, [positive(64, 32)]),
    "reciprocal": (torch.reciprocal, [positive(64, 32)]),
    "square": (torch.square, [normal(64, 32)]),
    "var": (lambda x: x.var(-1), [normal(64, 32)]),
    "std": (lambda x: x.std(-1), [normal(64, 32)]),
    "norm": (lambda x: x.norm(dim=-1), [normal(64, 32)]),
    "normalize": (F.normalize, [normal(64, 32)]),
    "relu": (torch.relu, [normal(64, 32)]),
    "gelu": (F.gelu, [normal(64, 32)]),
    "silu": (F.silu, [normal(64, 32)]),
    "tanh": (torch.tanh, [normal(64, 32)]),
    "layernorm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), [normal(64, 32), normal(32), normal(32)]),
}


@pytest.mark.parametrize("word", FORWARD)
def test_results(word: str) -> None:
    compute, tensors = FORWARD[word]
    result = compute(*tensors)
    given = [argument(tensor, number) for number, tensor in enumerate(tensors)]
    reach = forward_reach(TABLE[word], difference(result), given, [])
    assert len(reach.scalings) == len(tensors)
    for number, scaling in enumerate(reach.scalings):
        scaled = [tensor * (1 + S) if n == number else tensor for n, tensor in enumerate(tensors)]
        assert is_held(scaling, scale_error(compute(*scaled), result)), number


BACKWARD = ("mul", "matmul", "linear", "conv2d", "permute", "relu", "gelu", "silu", "tanh", "layernorm")


@pytest.mark.parametrize("word", BACKWARD)
def test_gradients(word: str) -> None:
    compute, tensors = FORWARD[word]
    result = compute(*tensors)
    gradient = normal(*result.shape)
    for position in range(len(tensors)):
        expected = back(compute, tensors, gradient, position)
        given = Backward(
            [argument(gradient)],
            [argument(tensor, number) for number, tensor in enumerate(tensors)],
            [argument(result)],
            [],
        )
        reach = backward_reach(TABLE[word], difference(expected), position, given)
        if not reach.scalings:
            continue
        found = [scale_error(back(compute, tensors, gradient * (1 + S), position), expected)]
        for number in range(len(tensors)):
            scaled = [tensor * (1 + S) if n == number else tensor for n, tensor in enumerate(tensors)]
            found.append(scale_error(back(compute, scaled, gradient, position), expected))
        # What a call gave out is not scaled here: where it is used, the arguments stand for it.
        for scaling, error in zip(reach.scalings, found, strict=False):
            assert is_held(scaling, error), (position, scaling, error)


def back(
    compute: Callable[..., Tensor], tensors: Sequence[Tensor], gradient: Tensor, position: int
) -> Tensor:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    compute(*leaves).backward(gradient)  # type: ignore[no-untyped-call]
    found = leaves[position].grad
    assert found is not None
    return found
