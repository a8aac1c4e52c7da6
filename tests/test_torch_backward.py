"""A call's backward: the gradients of its outputs as they came, and its own share of each input's gradient.

The reference is torch itself: the same call alone, on the recorded inputs, given the recorded gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.capture.gradients import CallGradients
from msprobe.capture.memo import Memo
from msprobe.capture.recorder import MAX_PENDING
from msprobe.name import BACKWARD, CallName
from msprobe.pytorch import debugger as door
from msprobe.record import Deferred, Leaf
from torch_fixtures import Probe, probe

__all__ = ["probe"]


class Case(NamedTuple):
    record: str
    call: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    unused: tuple[int, ...] = ()  # outputs that nothing is computed from


IDS = torch.tensor([[0, 2, 1], [3, 3, 0]])
CASES = {
    "linear 3-D": Case("Functional.linear", F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear 2-D": Case("Functional.linear", F.linear, [(3, 4), (5, 4), (5,)]),
    "linear by keyword": Case(
        "Functional.linear", lambda x, w, b: F.linear(x, bias=b, weight=w), [(2, 3, 4), (5, 4), (5,)]
    ),
    "cross_entropy": Case(
        "Functional.cross_entropy",
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3]), label_smoothing=0.1),
        [(3, 4)],
    ),
    "einsum": Case("Torch.einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "matmul 4-D": Case("Torch.matmul", torch.matmul, [(2, 2, 3, 4), (2, 2, 4, 5)]),
    "matmul broadcast": Case("Torch.matmul", torch.matmul, [(2, 2, 3, 4), (4, 5)]),
    "matmul operator": Case("Tensor.__matmul__", lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "sdpa": Case(
        "Functional.scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4)],
    ),
    "mul broadcast": Case("Torch.mul", torch.mul, [(2, 3, 4), (1, 4)]),
    "layer_norm": Case(
        "Functional.layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), [(2, 3, 4), (4,), (4,)]
    ),
    "batch_norm": Case(
        "Functional.batch_norm",
        lambda x, w, b: F.batch_norm(x, None, None, weight=w, bias=b, training=True),
        [(3, 4), (4,), (4,)],
    ),
    "conv2d": Case("Functional.conv2d", F.conv2d, [(2, 3, 5, 5), (4, 3, 3, 3), (4,)]),
    "conv1d": Case("Functional.conv1d", F.conv1d, [(2, 3, 5), (4, 3, 3), (4,)]),
    "embedding": Case("Functional.embedding", lambda w: F.embedding(IDS, w), [(5, 4)]),
    "cat": Case("Torch.cat", lambda a, b: torch.cat([a, b], dim=1), [(2, 3), (2, 4)]),
    "stack by keyword": Case(
        "Torch.stack", lambda a, b: torch.stack(tensors=[a, b], dim=1), [(2, 3), (2, 3)]
    ),
    "chunk": Case("Tensor.chunk", lambda x: x.chunk(3, dim=-1), [(2, 6)], unused=(1,)),
    "split": Case("Tensor.split", lambda x: x.split([1, 2, 3], dim=-1), [(2, 6)], unused=(0, 2)),
    "unbind": Case("Tensor.unbind", lambda x: x.unbind(0), [(3, 2)], unused=(2,)),
    "where": Case("Torch.where", lambda a, b: torch.where(torch.eye(3) > 0, a, b), [(3, 3), (3, 3)]),
    "index_select": Case(
        "Torch.index_select", lambda x: torch.index_select(x, 0, torch.tensor([2, 0, 2])), [(3, 4)]
    ),
    "max of a dim": Case("Torch.max", lambda x: torch.max(x, dim=1), [(3, 4)]),
    "sort": Case("Tensor.sort", lambda x: x.sort(dim=1, descending=True), [(3, 4)]),
    "var_mean": Case("Torch.var_mean", lambda x: torch.var_mean(x, dim=1), [(3, 4)]),
    "svd": Case("Torch.svd", torch.svd, [(4, 3)]),
    "softmax": Case("Functional.softmax", lambda x: F.softmax(x, dim=-1), [(3, 4)]),
    "gelu": Case("Functional.gelu", lambda x: F.gelu(x, approximate="tanh"), [(3, 4)]),
    "div scalar": Case("Tensor.__truediv__", lambda x: x / 3, [(3, 4)]),
    "rsub": Case("Tensor.__rsub__", lambda x: 1 - x, [(3, 4)]),
    "addmm": Case("Torch.addmm", torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "reshape": Case("Tensor.reshape", lambda x: x.reshape(2, 6), [(3, 4)]),
    "transpose": Case("Tensor.transpose", lambda x: x.transpose(0, 1), [(3, 4)]),
    "norm": Case("Torch.norm", lambda x: torch.norm(x, dim=1), [(3, 4)]),
    "mse_loss": Case("Functional.mse_loss", F.mse_loss, [(3, 4), (3, 4)]),
    "bilinear": Case("Functional.bilinear", F.bilinear, [(2, 3), (2, 4), (5, 3, 4), (5,)]),
    "lstm": Case(
        "VF.lstm",
        lambda x, h, c, wi, wh: torch._VF.lstm(x, (h, c), [wi, wh], False, 1, 0.0, False, False, False),
        [(3, 2, 4), (1, 2, 5), (1, 2, 5), (20, 4), (20, 5)],
    ),
}


def tensors_in(tree: Any) -> list[dict[str, Any]]:
    """The tensors of a record's field, in order."""
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in tensors_in(item)]
    if not isinstance(tree, dict):
        return []
    return [tree] if "shape" in tree else [leaf for item in tree.values() for leaf in tensors_in(item)]


def tensors_of(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return (
        [tensor for item in outputs for tensor in tensors_of(item)]
        if isinstance(outputs, (tuple, list))
        else []
    )


def saved(probe: Probe, leaves: Sequence[Any]) -> list[Tensor | None]:
    """What the files of these tensors hold; None where null stands."""
    return [None if leaf is None else probe.tensor(leaf["data_name"].removesuffix(".pt")) for leaf in leaves]


def make_inputs(case: Case, from_leaves: bool) -> list[Tensor]:
    torch.manual_seed(3)
    first = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in case.shapes]
    return first if from_leaves else [tensor.sin() for tensor in first]


def share(case: Case, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients of this call alone."""
    alone = [tensor.detach().requires_grad_() for tensor in inputs]
    outputs = [tensor for tensor in tensors_of(case.call(*alone)) if tensor.requires_grad]
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=False)
        if gradient is not None
    ]
    wanted = torch.autograd.grad([o for o, _ in pairs], alone, [g for _, g in pairs], allow_unused=True)
    return list(wanted)


@pytest.mark.spec("P08", "PT")
@pytest.mark.spec("C007", "PT")
@pytest.mark.spec("C017", "PT")
@pytest.mark.parametrize("from_leaves", [True, False], ids=["leaves", "computed"])
@pytest.mark.parametrize("name", CASES)
def test_each_input_gets_its_own_share(probe: Probe, name: str, from_leaves: bool) -> None:
    case = CASES[name]
    debugger = probe.debugger("L1", "tensor")
    inputs = make_inputs(case, from_leaves)
    debugger.start()
    outputs = [tensor for tensor in tensors_of(case.call(*inputs)) if tensor.is_floating_point()]
    debugger.stop()
    used = [output for index, output in enumerate(outputs) if index not in case.unused]
    elsewhere = [tensor.square().sum() for tensor in inputs]  # each input is used by others too
    torch.stack(
        [(output * torch.arange(1.0, output.numel() + 1).view_as(output)).sum() for output in used]
    ).sum().backward(retain_graph=True)
    sum(elsewhere, torch.zeros(())).backward()
    debugger.step()
    data = probe.data()
    backward = data[f"{case.record}.0.backward"]
    arrived = saved(probe, backward["input"])
    assert [gradient is None for gradient in arrived] == [
        index in case.unused for index in range(len(arrived))
    ]
    given = saved(
        probe, tensors_in([data[f"{case.record}.0.forward"][key] for key in ("input_args", "input_kwargs")])
    )
    wanted: list[Tensor | None] = [None] * len(given)
    for tensor, gradient in zip(inputs, share(case, inputs, arrived), strict=True):
        wanted[next(i for i, seen in enumerate(given) if seen is not None and torch.equal(seen, tensor))] = (
            gradient
        )
    got = saved(probe, backward["output"])
    for gradient, should in zip(got + [None] * (len(given) - len(got)), wanted, strict=True):
        assert (gradient is None) == (should is None)
        assert gradient is None or should is None or torch.equal(gradient, should)


@pytest.mark.parametrize("from_leaves", [True, False], ids=["leaves", "computed"])
def test_a_tensor_given_twice_has_a_share_at_each_place(probe: Probe, from_leaves: bool) -> None:
    x = torch.arange(1.0, 4.0, requires_grad=True)
    y = x if from_leaves else x.exp()
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    loss = (y * y).sum() + torch.cat([y, torch.ones(1), y]).sum() + torch.addcmul(y, y, y, value=3).sum()
    loss.backward()
    debugger.stop()
    debugger.step()
    data, y = probe.data(), y.detach()

    def shares(record: str) -> list[Tensor | None]:
        return saved(probe, data[f"{record}.backward"]["output"])

    assert all(torch.equal(got, y) for got in shares("Tensor.__mul__.0") if got is not None)
    assert [got is None for got in shares("Tensor.__mul__.0")] == [False, False]
    assert [got is None for got in shares("Torch.cat.0")] == [False, True, False]
    first, second, third = shares("Torch.addcmul.0")
    assert first is not None and torch.equal(first, torch.ones(3))
    assert second is not None and third is not None and torch.equal(second, third)
    assert torch.equal(second, 3 * y)


def test_shares_that_cannot_be_told_apart_are_one(probe: Probe) -> None:
    """einsum makes several nodes of one call; each leads to the tensor in its own way."""
    x = torch.ones(2, 2, requires_grad=True)
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    torch.einsum("ij,jk,kl->il", x, x, x).sum().backward()
    debugger.stop()
    debugger.step()
    got = saved(probe, probe.data()["Torch.einsum.0.backward"]["output"])
    total = sum(gradient for gradient in got if gradient is not None)
    assert x.grad is not None and torch.equal(torch.as_tensor(total), x.grad)


@pytest.mark.parametrize("cached", [True, False])
def test_calls_that_share_a_weight_below_autocast_have_shares_of_their_own(
    probe: Probe, cached: bool
) -> None:
    """Autocast casts a weight once, and what comes back through the cast is the total of all calls."""
    torch.manual_seed(5)
    inputs, w = [torch.randn(3, 4) for _ in range(3)], torch.randn(5, 4, requires_grad=True)
    b = torch.randn(5, requires_grad=True)
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        outputs = [F.linear(x, w, b) for x in inputs]
    sum(
        ((number + 1) * y.float().sin() for number, y in enumerate(outputs)), torch.zeros(())
    ).sum().backward()
    debugger.stop()
    debugger.step()
    data = probe.data()
    for number in range(3):
        (incoming,) = saved(probe, data[f"Functional.linear.{number}.backward"]["input"])
        _, of_weight, of_bias = saved(probe, data[f"Functional.linear.{number}.backward"]["output"])
        assert incoming is not None and of_weight is not None and of_bias is not None
        assert of_weight.dtype == of_bias.dtype == torch.float32
        alone = (incoming.T.float() @ inputs[number].bfloat16().float()).bfloat16().float()
        torch.testing.assert_close(of_weight, alone, rtol=2**-7, atol=0)
        torch.testing.assert_close(of_bias, incoming.float().sum(0), rtol=2**-7, atol=0)


class SparseAndDense(nn.Module):
    """Uses a table in two ways; the gradients of one of them are sparse."""

    def __init__(self, sparse_first: bool) -> None:
        super().__init__()
        self.sparse_first = sparse_first

    def forward(self, w: Tensor, ids: Tensor) -> Tensor:
        if self.sparse_first:
            return F.embedding(ids, w, sparse=True).sum() + w.sum()
        return w.sum() + F.embedding(ids, w, sparse=True).sum()


@pytest.mark.parametrize("sparse_first", [False, True])
def test_sparse_and_dense_shares_are_added(probe: Probe, sparse_first: bool) -> None:
    debugger = probe.debugger("L0", "tensor")
    model = nn.Sequential()
    model.add_module("table", SparseAndDense(sparse_first))
    w = torch.ones(3, 2, requires_grad=True)
    debugger.start(model)
    model.table(w, torch.tensor([0, 2, 2])).backward()  # type: ignore[operator]
    debugger.stop()
    debugger.step()
    assert w.grad is not None and probe.troubles() == ""
    gradient = probe.tensor("Module.table.SparseAndDense.backward.0.output.0")
    assert gradient.tolist() == w.grad.to_dense().tolist() == [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]]


# --- whatever goes wrong with a gradient, backward goes on ---


def test_a_gradient_that_cannot_be_made_is_null_and_told(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    debugger.start()
    recorder = door._the.get()._recorder
    assert recorder is not None
    sink = CallGradients(recorder, CallName("Torch.sin", BACKWARD, 0), None)
    sink.of_output(0, lambda: torch.add(torch.eye(2).to_sparse(), torch.eye(2)))
    sink.of_input(0, lambda: torch.eye(2))
    sink.of_input(1, lambda: None)
    sink.finish()
    debugger.stop()
    debugger.step()
    fields = probe.data()["Torch.sin.0.backward"]
    assert [fields["input"], fields["output"][0]["shape"], fields["output"][1:]] == [[None], [2, 2], [None]]
    assert "record the gradients of Torch.sin.0.backward" in probe.troubles()


def test_a_device_that_fails_does_not_stop_backward(probe: Probe) -> None:
    """Statistics that were to come from it are null; here they come due while backward runs."""
    x, gradient = torch.ones(2, requires_grad=True), torch.ones(2)
    debugger = probe.debugger("L1")
    debugger.start()
    lost = (Deferred(), torch.zeros(7, device="meta"), torch.float32)  # nothing can be fetched from there
    door._the.get().adapter._described.waiting.append(lost)
    y = x
    calls = MAX_PENDING - 4
    for _ in range(calls):
        y = torch.sin(y)
    y.backward(gradient)
    debugger.stop()
    debugger.step()
    assert x.grad is not None
    assert f"could not write the gradients of Torch.sin.{calls - 4}.backward" in probe.troubles()
    data = probe.data()
    forward = [f"Torch.sin.{number}.forward" for number in range(calls)]
    assert list(data) == forward + [f"Torch.sin.{number}.backward" for number in reversed(range(calls))]
    assert data["Torch.sin.0.backward"]["output"][0]["Max"] == x.grad.max().item()


def test_threads_share_what_was_seen_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while one of them clears it out."""
    monkeypatch.setattr("msprobe.capture.memo._MANY", 200)
    memo, leaf = Memo(), Leaf("torch.Tensor")
    errors: list[Exception] = []

    def work() -> None:
        try:
            for version in range(20):
                kept = [torch.empty(0) for _ in range(400)]
                for tensor in kept:
                    memo.keep(tensor, version, leaf, None)
                    seen = memo.find(tensor, version)
                    assert seen is None or seen.leaf is leaf
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
