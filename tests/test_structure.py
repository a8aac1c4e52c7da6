"""Our recordings beside those of release 8.3.3 of the same nets: equal names, places, dtypes and shapes.

tests/golden/pytorch holds what it recorded at level mix, without the numbers, which differ from machine to
machine; `make prove` lets it record anew and compares these too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from incumbent import OURS, ROOT, Order, read_step, record, slots
from msprobe import store
from msprobe.record import Leaf, Record, Recording

NETS = ("golden", "conv", "encoder")
LEVELS = ("L1", "L0", "mix")
ORDERS = [Order(net, level, "statistics") for net in NETS for level in LEVELS]
# What 8.3.3 leaves out: a positional dtype, and gradients that reach a call by another of its autograd nodes.
MORE: dict[str, dict[str, Any]] = {
    "Tensor.to.0.forward": {"input.1": "torch.dtype"},
    "VF.lstm.0.backward": {"input.2": ["torch.float32", [1, 4, 16]]},
}
TENSORS = Order("golden", "mix", "tensor")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("structure")
    record(place, OURS, [*ORDERS, TENSORS])
    return place


def golden(net: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(
        (ROOT / f"tests/golden/pytorch/structure_{net}.json").read_text(encoding="utf-8")
    )
    return found


def is_module(name: str) -> bool:
    return name.startswith("Module.")


def form(leaf: Leaf) -> Any:
    return [leaf.dtype, list(leaf.shape or ())] if leaf.is_tensor else leaf.type


def structure(call: Record) -> dict[str, Any]:
    return {slot: form(leaf) for slot, leaf in slots(call)}


@pytest.mark.spec("P08", "PT")
@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order[:2]) for order in ORDERS])
def test_records_and_their_places(root: Path, order: Order) -> None:
    """Every record of 8.3.3 is there, and has what it has; in backward records that is what went in."""
    expected = {
        name: {**entry["slots"], **MORE.get(name, {})}
        for name, entry in golden(order.net).items()
        if order.level == "mix" or is_module(name) == (order.level == "L0")
    }
    ours = read_step(root, OURS, order)
    found = {
        name: {
            slot: shape
            for slot, shape in structure(ours.records[name]).items()
            if (ours.records[name].name.direction != "backward" or slot.startswith("input."))
            and not slot.startswith("buffers")  # which the release does not record
        }
        for name in expected
    }
    assert found == expected
    assert len(expected) >= 20


@pytest.mark.spec("P08", "PT")
@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order[:2]) for order in ORDERS])
def test_header_and_order_of_fields(root: Path, order: Order) -> None:
    whole = json.loads((order.folder(root, OURS) / "step1/rank/dump.json").read_text())
    assert {key: whole[key] for key in list(whole)[:4]} == {
        "task": "statistics",
        "level": order.level,
        "framework": "pytorch",
        "dump_data_dir": None,
    }
    orders = {
        (is_module(name), name.rpartition(".forward")[1] or name.rpartition(".backward")[1]): list(fields)
        for name, fields in whole["data"].items()
        if "parameters_grad" not in name
    }
    api = ["input_args", "input_kwargs", "is_recompute", "output"]
    module = ["input_args", "input_kwargs", "output", "parameters", "is_recompute"]
    expected = {
        (False, ".forward"): api,
        (False, ".backward"): ["input", "output"],
        (True, ".forward"): module,
        (True, ".backward"): ["input", "output"],
    }
    assert orders == {
        key: fields
        for key, fields in expected.items()
        if order.level == "mix" or key[0] == (order.level == "L0")
    }


@pytest.mark.spec("P09", "PT")
@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order[:2]) for order in ORDERS])
def test_parents(root: Path, order: Order) -> None:
    """The module that each call ran in; nothing at level L1."""
    ours = read_step(root, OURS, order)
    parents = {
        name: call.parent
        for name, call in ours.records.items()
        if call.has_parent and call.name.direction == "forward"
    }
    if order.level == "L1":
        assert json.loads((Path(ours.folder) / "construct.json").read_text()) == {}
        return
    expected = {
        name: entry["parent"]
        for name, entry in golden(order.net).items()
        if "parent" in entry and (order.level == "mix" or is_module(name))
    }
    assert {name: parents[name] for name in expected} == expected


@pytest.mark.spec("P09", "PT")
@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order[:2]) for order in ORDERS])
def test_stacks(root: Path, order: Order) -> None:
    """Forward records only, equal stacks once, innermost frame first, no frame of ours."""
    ours = read_step(root, OURS, order)
    groups: Mapping[str, list[Any]] = json.loads((Path(ours.folder) / "stack.json").read_text())
    names = [name for group, _ in groups.values() for name in group]
    assert sorted(names) == sorted(
        name for name, call in ours.records.items() if call.name.direction == "forward"
    )
    assert list(groups) == [str(number) for number in range(len(groups))]
    stacks = [tuple(frames) for _, frames in groups.values()]
    assert len(set(stacks)) == len(stacks)
    script = "make_dump.py" if order.net == "golden" else "train_net.py"
    for frames in stacks:
        assert all(frame.startswith("File ") and ", line " in frame and ", in " in frame for frame in frames)
        assert not any("/msprobe/" in frame for frame in frames)
        own = [frame for frame in frames if script in frame]
        assert own, frames
        assert own[-1].partition(", in ")[2].startswith(("<module>", "main"))


@pytest.mark.spec("C089", "PT")
def test_tensor_files(root: Path) -> None:
    """`dump_tensor_data/{record}.{slot}.pt` for each tensor, and nothing else."""
    ours = read_step(root, OURS, TENSORS)
    named = {
        leaf.data_name: f"{name}.{slot}.pt"
        for name, call in ours.records.items()
        for slot, leaf in slots(call)
        if leaf.is_tensor
    }
    assert all(name == expected for name, expected in named.items())
    assert {path.name for path in (Path(ours.folder) / "dump_tensor_data").iterdir()} == set(named)
    assert ours.missing_files == ()


def test_unfinished_or_not_each_step_is_read(root: Path) -> None:
    recordings: list[Recording] = store.read(ORDERS[0].folder(root, OURS))
    assert [(recording.step, recording.rank, recording.finished) for recording in recordings] == [
        (0, None, True),
        (1, None, True),
    ]
