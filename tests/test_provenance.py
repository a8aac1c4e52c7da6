"""Who made each recorded tensor: the key "from" of PyTorch recordings, and that it never says too much."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.graph import Graph
from msprobe.pairing.match import match
from msprobe.record import Leaf, Recording, slots
from msprobe.store.recordings import read_one
from nets import NETS, raw, train
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]


def makers(data: dict[str, Any], *fields: str) -> dict[str, str | None]:
    """What each tensor of a recording says of its maker, by its place; of some fields only, if given."""
    found: dict[str, str | None] = {}
    for name, entry in data.items():
        for field, tree in entry.items():
            if not fields or field in fields:
                word = {"input_args": "input", "input_kwargs": "input"}.get(field, field)
                found.update(_leaves(tree, f"{name}.{word}"))
    return found


def _leaves(tree: Any, place: str) -> Iterator[tuple[str, str | None]]:
    if isinstance(tree, dict) and "shape" in tree:
        yield place, tree.get("from")
    elif isinstance(tree, (list, dict)) and "type" not in tree:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, item in items:
            yield from _leaves(item, f"{place}.{key}")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(x)
        return h + self.linear(self.norm(h))


def test_inputs_name_the_outputs_and_parameters_that_they_are(probe: Probe) -> None:
    model, x = Residual(), torch.randn(2, 4)
    record(probe, lambda: model(x), model=model)
    assert makers(probe.data()) == {
        "Functional.gelu.0.forward.input.0": None,
        "Functional.gelu.0.forward.output.0": None,
        "Functional.layer_norm.0.forward.input.0": "Functional.gelu.0.forward.output.0",
        "Functional.layer_norm.0.forward.input.2": "parameter:norm.weight",
        "Functional.layer_norm.0.forward.input.3": "parameter:norm.bias",
        "Functional.layer_norm.0.forward.output.0": None,
        "Functional.linear.0.forward.input.0": "Functional.layer_norm.0.forward.output.0",
        "Functional.linear.0.forward.input.1": "parameter:linear.weight",
        "Functional.linear.0.forward.input.2": "parameter:linear.bias",
        "Functional.linear.0.forward.output.0": None,
        "Tensor.__add__.0.forward.input.0": "Functional.gelu.0.forward.output.0",
        "Tensor.__add__.0.forward.input.1": "Functional.linear.0.forward.output.0",
        "Tensor.__add__.0.forward.output.0": None,
    }


# ---- nothing that is said is wrong ----

# The largest share of inputs whose maker nobody knows, up to the end of backward: an optimizer begins with
# states of its own, and at level L0 most is done between modules.
UNKNOWN = {"L0": 0.7, "L1": 0.05, "mix": 0.06}


@pytest.mark.parametrize("level", UNKNOWN)
@pytest.mark.parametrize("net", NETS)
def test_every_value_is_what_its_maker_gave_out(probe: Probe, net: str, level: str) -> None:
    """Bit by bit, over steps with mixed precision, checkpoints, clipping and an optimizer."""
    train(NETS[net], probe.debugger(level, "tensor"))
    assert probe.troubles() == probe.troubles(1) == ""
    for step in (0, 1):
        found = read_one(probe.rank(step) / "dump.json")
        graph = Graph(found)
        inputs, unknown, checked = 0, [], 0
        end = max(number for number, key in enumerate(found.records) if "backward" in key)
        before = set(list(found.records)[:end])
        for key, slot, side, leaf in _tensors(found):
            makers = graph.makers(key, slot)
            if side == "input" and key in before:
                inputs += 1
                unknown += [] if makers else [f"{key}.{slot}"]
            for maker in makers:
                if maker.kind == "call" and maker.is_exact:
                    given = _seen(found, maker.name, maker.slot)
                    assert _content(probe, step, leaf) == _content(probe, step, given), (key, slot, maker)
                    checked += 1
            assert not graph.changed(key, slot)
        assert level == "L0" or checked > 5
        assert len(unknown) <= UNKNOWN[level] * inputs + 5, unknown  # inputs and labels come from outside


def _tensors(recording: Recording) -> Iterator[tuple[str, str, str, Leaf]]:
    for key, each in recording.records.items():
        for slot, side, leaf in slots(each):
            if leaf is not None and leaf.is_tensor:
                yield key, slot, side, leaf


def _seen(recording: Recording, name: str, place: str) -> Leaf:
    (leaf,) = (leaf for slot, _, leaf in slots(recording.records[name]) if slot == place)
    assert leaf is not None
    return leaf


def _content(probe: Probe, step: int, leaf: Leaf) -> bytes | None:
    assert leaf.data_name is not None
    return raw(probe.tensor(leaf.data_name.removesuffix(".pt"), step))


# ---- views, changes in place, state ----


def test_a_view_that_was_not_recorded_shares_memory_with_what_it_shows(probe: Probe) -> None:
    """At level L0 nobody sees how a view is made."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.left, self.right, self.same = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            both = self.both(x)
            whole = both.detach()
            left, right = both.view(-1, 4, 2).transpose(1, 2)[:, 0], both.clone()
            return self.left(left) + self.right(right) + self.same(whole)

    model = Heads()
    record(probe, lambda: model(torch.randn(2, 3, 4)), level="L0", model=model)
    inputs = makers(probe.data(), "input_args")
    made = "Module.both.Linear.forward.0.output.0"
    assert inputs["Module.left.Linear.forward.0.input.0"] == f"~{made}"
    assert inputs["Module.right.Linear.forward.0.input.0"] is None  # a copy
    assert inputs["Module.same.Linear.forward.0.input.0"] == made  # another tensor of the same numbers


def test_a_copy_that_is_not_recorded_has_the_maker_of_its_source(probe: Probe) -> None:
    def work() -> None:
        x = torch.exp(torch.arange(24.0).view(4, 6))
        half = x.narrow(1, 0, 3)
        torch.sin(half.contiguous())
        torch.sin(x.contiguous())  # itself
        torch.sin(half[1:].contiguous())
        torch.sin(half.clone().contiguous().view(-1))
        torch.sin(x.type(torch.float64))
        torch.sin(x[torch.tensor([3, 2, 1, 0])])
        torch.sin(torch.ones(4, 6).mT.contiguous())
        changed = half.contiguous()
        torch.sin(changed.zero_())
        stale = half.contiguous()
        x.zero_()
        torch.sin(stale)

    record(probe, work)
    inputs = makers(probe.data(), "input_args")
    half = "Tensor.narrow.0.forward.output.0"
    assert [inputs[f"Torch.sin.{number}.forward.input.0"] for number in range(9)] == [
        half,
        "Torch.exp.0.forward.output.0",
        f"~{half}",
        f"~{half}",
        "~Torch.exp.0.forward.output.0",
        "~Torch.exp.0.forward.output.0",
        None,
        f"~{half}",
        half,
    ]
    assert not any("contiguous" in name or "clone" in name for name in probe.data())


def test_a_copy_of_a_parameter_is_that_parameter_only_in_the_graph(probe: Probe) -> None:
    """Outside it is a snapshot, which does not change with the parameter."""
    model = nn.Linear(4, 4)

    def work() -> None:
        torch.sin(model.weight.clone()).sum().backward()
        torch.sin(model.weight.detach().clone())
        with torch.no_grad():
            torch.sin(model.weight.clone())

    record(probe, work, model=model)
    inputs = makers(probe.data(), "input_args")
    found = [inputs[f"Torch.sin.{number}.forward.input.0"] for number in range(3)]
    assert found == ["parameter:weight", "~parameter:weight", "~parameter:weight"]
    sums = Graph(read_one(probe.rank() / "dump.json")).gradient_makers("weight")
    assert [maker.name for maker in sums] == ["Torch.sin.0.backward"]


def test_a_copy_that_is_noted_is_not_held(probe: Probe) -> None:
    alive: list[bool] = []

    def work() -> None:
        x = torch.exp(torch.zeros(4, 6))
        copy = x.t().contiguous()
        references = [weakref.ref(x), weakref.ref(copy), weakref.ref(copy.untyped_storage())]
        del x, copy
        gc.collect()
        alive.extend(reference() is not None for reference in references)

    record(probe, work)
    assert alive == [False, False, False]


def test_what_a_call_made_that_is_not_recorded_has_no_maker(probe: Probe) -> None:
    """`~mask` is not listed, and its result is not what `>` gave out, even in memory that was used before."""

    def work() -> None:
        x = torch.exp(torch.zeros(4))
        for _ in range(20):
            mask = x > 0
            mask = ~mask
            torch.where(mask, x, x)

    record(probe, work)
    inputs = makers(probe.data(), "input_args")
    assert {inputs[f"Torch.where.{number}.forward.input.0"] for number in range(20)} == {None}
    assert not any("invert" in name or "not" in name for name in probe.data())


def test_a_view_that_negates_what_it_shows_is_not_what_it_shows(probe: Probe) -> None:
    """It lies on the same bytes; torch negates where they are read."""

    def work() -> None:
        x = torch.exp(torch.randn(4, dtype=torch.complex64))
        torch.sin(x.conj())
        torch.sin(torch._neg_view(x))
        torch.sin(x.conj().conj())
        torch.sin(x.conj().resolve_conj())

    record(probe, work)
    inputs = makers(probe.data(), "input_args")
    made = "Torch.exp.0.forward.output.0"
    found = [inputs[f"Torch.sin.{number}.forward.input.0"] for number in range(4)]
    assert found == [f"~{made}", f"~{made}", made, f"~{made}"]


def test_changes_in_place_have_makers_of_their_own(probe: Probe) -> None:
    def work() -> None:
        x = torch.exp(torch.zeros(4))
        y = torch.sin(x)
        x.add_(1)
        torch.cos(x)
        x[0] = 3.0
        torch.tan(x)
        y[1:].mul_(2)
        torch.sqrt(y)

    record(probe, work)
    inputs = makers(probe.data(), "input_args")
    assert inputs["Torch.sin.0.forward.input.0"] == "Torch.exp.0.forward.output.0"
    assert inputs["Tensor.add_.0.forward.input.0"] == "Torch.exp.0.forward.output.0"
    assert inputs["Torch.cos.0.forward.input.0"] == "Tensor.add_.0.forward.output.0"
    assert inputs["Torch.tan.0.forward.input.0"] == "~Tensor.__setitem__.0.forward.input.0"
    assert inputs["Torch.sqrt.0.forward.input.0"] == "~Tensor.mul_.0.forward.output.0"


def test_what_comes_out_as_it_went_in_comes_from_the_call(probe: Probe) -> None:
    """So two runs are alike, of which one has to copy."""

    def work() -> None:
        x = torch.exp(torch.zeros(4))
        torch.sin(F.dropout(x, training=False))

    record(probe, work)
    found = makers(probe.data())
    assert found["Functional.dropout.0.forward.output.0"] == "Torch.exp.0.forward.output.0"
    assert found["Torch.sin.0.forward.input.0"] == "Functional.dropout.0.forward.output.0"


def test_tied_weights_and_an_optimizer_keep_the_name_of_the_parameter(probe: Probe) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.words(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def work() -> None:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        model(torch.tensor([1, 2]))

    record(probe, work, model=model)
    found = makers(probe.data())
    assert {
        found[f"Functional.{call}.forward.input.1"] for call in ("embedding.0", "linear.0", "linear.1")
    } == {"parameter:words.weight"}
    assert found["Tensor.add_.0.forward.input.0"] == found["Tensor.add_.0.forward.output.0"]
    assert found["Tensor.add_.0.forward.input.0"] == "parameter:words.weight"
    assert found["Tensor.add_.0.forward.input.1"] == "gradient:words.weight"
    graph = Graph(read_one(probe.rank() / "dump.json"))
    assert graph.parameter("Functional.linear.0.forward", "input.1") == "words.weight"


def test_a_list_of_models_numbers_their_parameters(probe: Probe) -> None:
    models = [nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))]
    record(probe, lambda: models[1](torch.ones(1, 2)), level="L0", model=models)
    found = makers(probe.data(), "parameters")
    assert found["Module.1.0.Linear.forward.0.parameters.weight"] == "parameter:1.0.weight"


# ---- what cannot be known ----


def test_an_address_that_is_used_again_is_another_tensor(probe: Probe) -> None:
    """No tensor is kept alive, and none is taken for one that is gone."""
    dead: list[Any] = []
    addresses = []

    def work() -> None:
        for _ in range(50):
            x = torch.exp(torch.zeros(1000))
            dead.append(weakref.ref(x))
            addresses.append(x.data_ptr())
            del x
            gc.collect()
            y = torch._C._VariableFunctions.ones(1000)  # not recorded
            addresses.append(y.data_ptr())
            torch.sin(y)

    record(probe, work)
    assert all(each() is None for each in dead)
    assert len(set(addresses)) < len(addresses)  # some were used again
    found = makers(probe.data(), "input_args")
    assert {maker for place, maker in found.items() if ".sin." in place} <= {
        None,
        *(maker for maker in found.values() if maker is not None and ".ones." in maker),
    }


def test_what_may_have_been_written_unnoticed_is_not_said_to_be_the_same(probe: Probe) -> None:
    def work() -> None:
        x = torch.exp(torch.zeros(4))
        x.numpy()[0] = 5.0
        torch.sin(x)
        with torch.inference_mode():
            y = torch.exp(torch.zeros(4))
            torch.cos(y)

    record(probe, work)
    found = makers(probe.data(), "input_args")
    written = found["Torch.sin.0.forward.input.0"]
    assert written is None or written.startswith("~")
    # An inference tensor has no version: its maker is said only because its content is still the same.
    assert found["Torch.cos.0.forward.input.0"] in (None, "Torch.exp.1.forward.output.0")


def _in_two_parts(probe: Probe, between: Any, *, by_step: bool) -> dict[str, str | None]:
    """What goes into the second of two layers, if recording stops between them."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    debugger = probe.debugger("L0")
    debugger.start(model)
    h = model[0](x)
    debugger.stop()
    if by_step:
        debugger.step()
    with torch.no_grad():
        h = between(h) if between is not None else h
    debugger.start(model)
    loss = model[1](h).sum()
    debugger.stop()
    loss.backward()
    debugger.step()
    return makers(probe.data(int(by_step)))


def test_what_outlives_a_stop_keeps_its_maker(probe: Probe) -> None:
    found = _in_two_parts(probe, None, by_step=False)
    assert found["Module.1.Linear.forward.0.input.0"] == "Module.0.Linear.forward.0.output.0"
    assert found["Module.1.Linear.forward.0.parameters.weight"] == "parameter:1.weight"
    assert found["Module.0.Linear.backward.0.input.0"] == "Module.1.Linear.backward.0.output.0"


def test_what_outlives_a_step_names_that_step(probe: Probe) -> None:
    found = _in_two_parts(probe, None, by_step=True)
    assert found["Module.1.Linear.forward.0.input.0"] == "step0/Module.0.Linear.forward.0.output.0"
    graph = Graph(read_one(probe.rank(1) / "dump.json"))
    assert graph.makers("Module.1.Linear.forward.0", "input.0") == ()
    maker = graph.left_behind("Module.1.Linear.forward.0", "input.0")
    assert maker is not None
    assert (maker.kind, maker.is_exact) == ("earlier step", True)


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize(
    "between",
    [
        lambda h: h.mul_(2),
        lambda h: (h.data.mul_(2), h)[1],
        lambda h: h.numpy().fill(3) or h,
        lambda h: h[:1],
    ],
)
def test_what_changed_while_nobody_listened_is_not_what_was_made(
    probe: Probe, between: Any, by_step: bool
) -> None:
    """Also where torch counts no change; a view shares memory with it."""
    found = _in_two_parts(probe, between, by_step=by_step)
    maker = found["Module.1.Linear.forward.0.input.0"]
    assert maker == ("~step0/" if by_step else "~") + "Module.0.Linear.forward.0.output.0"


def test_memory_that_is_used_again_after_a_step_has_no_earlier_maker(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    for _ in range(3):
        debugger.start()
        x = torch.zeros(64, 64)
        for _ in range(20):
            x = torch.sin(x)
        debugger.stop()
        debugger.step()
        kept = weakref.ref(x)
        del x
        gc.collect()
        assert kept() is None
    for step in (1, 2):
        assert not any((maker or "").startswith("step") for maker in makers(probe.data(step)).values())


class Remembering(nn.Module):
    """Begins with what the step before ended with."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.h = nn.GRUCell(4, 4), torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.cell(x, self.h)
        self.h = h.detach()
        return h


def test_an_optimizer_and_a_net_keep_state_over_steps(probe: Probe) -> None:
    """Unknown is only what existed before the first step."""
    model, x = Remembering(), torch.ones(2, 4)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    debugger = probe.debugger("mix")
    for _ in range(3):
        debugger.start(model)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    assert probe.troubles() == probe.troubles(1) == ""
    first, second, third = (makers(probe.data(step), "input_args") for step in range(3))
    assert first["Module.cell.GRUCell.forward.0.input.1"] is None
    assert second["Module.cell.GRUCell.forward.0.input.1"] == "step0/Torch.gru_cell.0.forward.output.0"
    averages = [maker for slot, maker in second.items() if slot.startswith("Tensor.lerp_")]
    assert averages[:2] == ["optimizer:exp_avg.cell.weight_ih", "gradient:cell.weight_ih"]
    assert second == {slot: (maker or "").replace("step1", "step0") or None for slot, maker in third.items()}
    known = {maker for maker in second.values() if (maker or "").startswith("optimizer:")}
    assert {f"optimizer:exp_avg_sq.cell.{name}" for name in ("weight_hh", "bias_ih")} < known


def test_threads_do_not_mix_their_tensors(probe: Probe) -> None:
    models = [nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2)]
    barrier = threading.Barrier(2)

    def one(model: nn.Module) -> None:
        for _ in range(20):
            barrier.wait()
            model(torch.ones(1, 3))

    def work() -> None:
        threads = [threading.Thread(target=one, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    record(probe, work, level="L0", model=models)
    found = makers(probe.data(), "input_args")
    for call in (f"Module.{model}.{{}}.Linear.forward.{number}" for model in (0, 1) for number in range(20)):
        assert found[f"{call.format(1)}.input.0"] == f"{call.format(0)}.output.0"


# ---- buffers ----


def buffers(probe: Probe, name: str, field: str = "buffers") -> list[str]:
    return list(probe.data()[name].get(field, {}))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_running_statistics_stand_beside_the_parameters(probe: Probe, level: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).train()
    x = torch.arange(12.0).reshape(4, 3)
    record(probe, lambda: model(x), level=level, model=model)
    entry = probe.data()["Module.0.BatchNorm1d.forward.0"]
    assert list(entry) == [
        *("input_args", "input_kwargs", "output", "parameters", "buffers", "buffers_after", "is_recompute")
    ]
    assert list(entry["parameters"]) == ["weight", "bias"]
    state = ["running_mean", "running_var", "num_batches_tracked"]
    assert list(entry["buffers"]) == list(entry["buffers_after"]) == state
    mean, after = entry["buffers"]["running_mean"], entry["buffers_after"]["running_mean"]
    assert (mean["Max"], mean["from"]) == (0.0, "buffer:0.running_mean")
    assert after["Max"] == pytest.approx(0.65)  # a tenth of the mean of the last column
    assert "buffers" not in probe.data()["Module.1.Linear.forward.0"]
    graph = Graph(read_one(probe.rank() / "dump.json"))
    assert graph.parameter("Module.0.BatchNorm1d.forward.0", "buffers.running_var") == "0.running_var"


def test_buffers_that_stay_are_recorded_once_and_large_ones_only_if_they_change(probe: Probe) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("small", torch.ones(2))
            self.register_buffer("large", torch.ones(1 << 21))
            self.register_buffer("cache", torch.zeros(1 << 21))

        def forward(self, x: Tensor) -> Tensor:
            self.cache += 1
            return x + self.small

    model = nn.Sequential(Holder())
    record(probe, lambda: model(torch.ones(2)), level="L0", model=model)
    assert buffers(probe, "Module.0.Holder.forward.0") == ["small"]
    assert buffers(probe, "Module.0.Holder.forward.0", "buffers_after") == ["cache"]


def test_buffers_are_compared_where_both_runs_have_them(probe: Probe) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).train()
    record(probe, lambda: model(torch.ones(4, 3)), level="L0", model=model)
    ours = read_one(probe.rank() / "dump.json")
    name = "Module.0.BatchNorm1d.forward.0"
    old = {
        key: each._replace(fields={k: v for k, v in each.fields.items() if not k.startswith("buffers")})
        for key, each in ours.records.items()
    }
    older = dataclasses.replace(ours, records=old)
    both = [pair.place.slot for pair in match(ours, ours) if str(pair.place.record.name) == name]
    state = [f"running_{each}" for each in ("mean", "var")] + ["num_batches_tracked"]
    assert both[-6:] == [f"{field}.{each}" for field in ("buffers", "buffers_after") for each in state]
    for pairs in (match(ours, older), match(older, ours)):
        assert not any(pair.place.slot.startswith("buffers") for pair in pairs)
        assert [pair.place.slot for pair in pairs if str(pair.place.record.name) == name] == both[:-6]
