"""Recordings of the existing releases are read by the same function as ours (tests/golden/dialects)."""

from pathlib import Path
from typing import Any

import pytest

from msprobe import store
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, leaves

DIALECTS = Path(__file__).parent / "golden/dialects"

RECORDINGS = [
    ("1.2.2", 0, None, Header("statistics", "L0", "pytorch"), 56, "Module.emb.Embedding.forward.0"),
    ("1.2.2-debug", None, None, Header("tensor", "debug", "pytorch"), 3, "myvar.0"),
    ("8.3.3", 0, None, Header("statistics", "L0", "pytorch"), 48, "Module.emb.Embedding.forward.0"),
    ("26.2.0", 0, None, Header("tensor", "L0", "pytorch"), 50, "Module.emb.Embedding.forward.0"),
    ("26.2.0-ddp", 0, 1, Header("tensor", "mix", "pytorch"), 29, "Functional.linear.0.forward"),
]


@pytest.mark.parametrize(
    ("name", "step", "rank", "header", "records", "first"), RECORDINGS, ids=[case[0] for case in RECORDINGS]
)
def test_each_release_is_read(
    name: str, step: int | None, rank: int | None, header: Header, records: int, first: str
) -> None:
    (recording,) = store.read(DIALECTS / name)
    assert (recording.step, recording.rank, recording.header) == (step, rank, header)
    assert (len(recording.records), next(iter(recording.records))) == (records, first)
    assert (recording.finished, recording.recovered, recording.missing_files) == (True, False, ())


def field(name: str, record: str, slot: str) -> Any:
    (recording,) = store.read(DIALECTS / name)
    return recording.records[record].fields[slot]


@pytest.mark.parametrize("name", ["1.2.2", "8.3.3", "26.2.0"])
def test_the_same_call_in_each_release(name: str) -> None:
    (ids,) = field(name, "Module.emb.Embedding.forward.0", "input_args")
    assert (ids.type, ids.dtype, ids.shape, ids.stats.max) == ("torch.Tensor", "torch.int64", (2, 4), 15)
    (grad,) = field(name, f"Module.head.Linear.parameters_grad{'.0' * (name == '26.2.0')}", "bias")
    assert (grad.shape, grad.is_tensor) == ((3,), True)


@pytest.mark.parametrize("name", ["1.2.2", "8.3.3", "26.2.0", "26.2.0-ddp"])
def test_stacks_and_parents_of_each_release(name: str) -> None:
    (recording,) = store.read(DIALECTS / name)
    calls = [call for call in recording.records.values() if call.name.direction == "forward"]
    assert all(call.stack is not None and call.stack.frames[0].startswith("File ") for call in calls)
    assert any(call.parent is not None for call in calls)
    parents = {call.parent for call in calls} - {None}
    assert parents <= set(recording.records)


def test_a_variable_of_release_1_2_2() -> None:
    (recording,) = store.read(DIALECTS / "1.2.2-debug")
    assert [call.name for call in recording.records.values()] == [
        CallName("myvar", "debug", 0),
        CallName("myvar_grad", "debug", 0),
        CallName("myloss", "debug", 0),
    ]
    value = recording.records["myvar.0"].fields["value"]
    assert [leaf.type for leaf in leaves(value)] == [
        "torch.Tensor",
        "torch.Tensor",
        "int",
        "str",
        "bool",
        "float",
    ]


def test_forms_that_only_release_26_2_0_writes() -> None:
    """P2POp has no type of its own, and a pure output argument is null."""
    (recording,) = store.read(DIALECTS / "26.2.0-ddp")
    assert recording.records["Distributed.recv.0.forward"].fields["input_args"] == [None]
    ((operation, _),) = recording.records["Distributed.batch_isend_irecv.0.forward"].fields["input_args"]
    assert (operation["class_type"], operation["op"]) == (
        Leaf("str", "torch.distributed.P2POp"),
        Leaf("str", operation["op"].value),
    )
    assert isinstance(operation["tensor"].stats, Statistics)
