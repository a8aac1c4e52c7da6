"""Communication: two gloo processes, and what can be seen in one."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from msprobe.config import Config  # noqa: E402
from msprobe.pytorch import debugger as bound  # noqa: E402
from msprobe.pytorch.debugger import TorchDebugger  # noqa: E402
from test_recorder import brief  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two processes wrote into."""
    folder = tmp_path_factory.mktemp("two")
    source = str(Path(bound.__file__).parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    logs = [(folder / f"log{rank}").open("w+") for rank in (0, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "two_ranks.py"), str(rank), str(folder)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
        said = ""
        for log in logs:
            log.seek(0)
            said += log.read()
            log.close()
    assert codes == [0, 0], said
    return folder


def records(two: Path, run: str, rank: int) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((two / run / f"step0/rank{rank}/dump.json").read_bytes())["data"]
    return data


# --- as the existing tool records it ---


def comparable(node: Any) -> Any:
    """Numbers of float32 to six digits; without makers and hashes, which the release does not have."""
    if isinstance(node, dict):
        return {key: comparable(item) for key, item in node.items() if key not in ("from", "hash", "sketch")}
    if isinstance(node, list):
        return [comparable(item) for item in node]
    return float(f"{node:.6g}") if isinstance(node, float) else node


@pytest.mark.spec("P10", "PT")
@pytest.mark.spec("P11", "PT")
@pytest.mark.parametrize("rank", [0, 1])
def test_as_release_8_3_3(two: Path, rank: int) -> None:
    golden = json.loads((TESTS / f"golden/ddp/rank{rank}.json").read_bytes())["data"]
    ours = records(two, "golden", rank)
    assert sorted(ours) == sorted(golden)
    different = {
        (name, field)
        for name in golden
        for field in golden[name]
        if comparable(golden[name][field]) != comparable(ours[name][field])
    }
    # Ours are the gradients of the call's inputs in their order, theirs those of the last node's.
    assert different == {
        ("Functional.linear.0.backward", "output"),
        ("Functional.linear.1.backward", "output"),
    }


# --- each of the eighteen functions ---

PAIR = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"}


def plain(node: Any) -> Any:
    """brief(), with a process group and a P2POp as they are."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if isinstance(node, dict) and node.get("type") == "torch.ProcessGroup":
        return "pair" if node == PAIR else node
    if isinstance(node, dict) and "class_type" in node:
        return {**node, "tensor": brief(node["tensor"])}
    if isinstance(node, dict) and "type" not in node:
        return {key: plain(item) for key, item in node.items()}
    return brief(node)


def p2p(rank: int, received: float) -> list[dict[str, Any]]:
    facts = {"class_type": "torch.distributed.P2POp", "peer": 1 - rank, "tag": 0, "group_id": "77849d8c"}
    return [{**facts, "tensor": rank + 1.0, "op": "isend"}, {**facts, "tensor": received, "op": "irecv"}]


def expected_calls(rank: int) -> dict[str, tuple[list[Any], dict[str, Any], list[Any]]]:
    """What each call was given, by place and by name, and what its arguments held after it."""
    own = rank + 1.0
    first = rank == 0
    calls: dict[str, tuple[list[Any], dict[str, Any], list[Any]]] = {
        "all_reduce.0": ([own], {}, [3.0]),
        "all_reduce.1": ([own], {"op": "RedOpType.MAX", "group": "pair"}, [2.0, "RedOpType.MAX", "pair"]),
        "all_reduce.2": ([own], {}, [3.0]),
        "broadcast.0": ([rank + 5.0], {"src": 0}, [5.0, 0]),
        "all_gather.0": ([[0.0, 0.0], own], {}, [[1.0, 2.0], own]),
        "gather.0": (
            [own, [0.0, 0.0] if first else None],
            {"dst": 0},
            [own, [1.0, 2.0] if first else None, 0],
        ),
        "scatter.0": (
            [0.0, [7.0, 8.0] if first else None],
            {"src": 0},
            [7.0 + rank, [7.0, 8.0] if first else None, 0],
        ),
        "reduce_scatter.0": ([0.0, [own, rank + 10.0]], {}, [3.0 if first else 21.0, [own, rank + 10.0]]),
        "reduce_scatter_tensor.0": ([0.0, own], {}, [3.0, own]),
        "_reduce_scatter_base.0": ([0.0, own], {}, [3.0, own]),
        "all_gather_into_tensor.0": ([0.0, own], {}, [[2.0, 1.0], own]),
        "_all_gather_base.0": ([0.0, own], {}, [[2.0, 1.0], own]),
        "all_to_all_single.0": (
            [0.0, [rank * 10.0 + 1, rank * 10.0]],
            {},
            [[10.0 + rank, 0.0 + rank], [rank * 10.0 + 1, rank * 10.0]],
        ),
        "all_to_all.0": (
            [[0.0, 0.0], [0.0 + rank, rank + 10.0]],
            {},
            [[0.0, 1.0] if first else [10.0, 11.0], [0.0 + rank, rank + 10.0]],
        ),
        "batch_isend_irecv.0": ([p2p(rank, 0.0)], {}, [p2p(rank, 2.0 - rank)]),
    }
    if first:
        calls["send.0"] = ([3.0], {"dst": 1}, [3.0, 1])
        calls["isend.0"] = ([4.0], {"dst": 1}, [4.0, 1])
        calls["reduce.0"] = ([own], {"dst": 0}, [3.0, 0])
    else:
        calls["recv.0"] = ([0.0], {"src": 0}, [3.0, 0])
        calls["irecv.0"] = ([0.0], {"src": 0}, [4.0, 0])
    return calls


@pytest.mark.spec("P11", "PT")
@pytest.mark.parametrize("rank", [0, 1])
def test_inputs_before_and_outputs_after(two: Path, rank: int) -> None:
    seen = {
        name.removeprefix("Distributed.").removesuffix(".forward"): (
            plain(fields["input_args"]),
            plain(fields["input_kwargs"]),
            plain(fields["output"]),
        )
        for name, fields in records(two, "calls", rank).items()
    }
    if rank == 1:
        reduced = seen.pop("reduce.0")  # what is left in the tensor of another rank is gloo's own business
        assert reduced[:2] == ([2.0], {"dst": 0})
    assert seen == expected_calls(rank)


@pytest.mark.spec("P11", "PT")
def test_the_tensors_of_a_p2pop_have_files(two: Path) -> None:
    call = "Distributed.batch_isend_irecv.0.forward"
    fields = records(two, "calls", 0)[call]
    names = [
        operation["tensor"]["data_name"] for key in ("input_args", "output") for operation in fields[key][0]
    ]
    assert names == [f"{call}.{side}.0.{index}.pt" for side in ("input", "output") for index in (0, 1)]
    folder = two / "calls/step0/rank0/dump_tensor_data"
    assert [torch.load(folder / name, weights_only=True).tolist() for name in names] == [
        [1.0, 1.0],
        [0.0, 0.0],
        [1.0, 1.0],
        [2.0, 2.0],
    ]


# --- asynchronous calls ---


@pytest.mark.spec("P11", "PT")
@pytest.mark.parametrize("rank", [0, 1])
def test_asynchronous_calls_are_written_at_wait(two: Path, rank: int) -> None:
    seen = records(two, "later", rank)
    order = [name for name in seen if "neg" in name or "Distributed" in name]
    assert order == [
        "Torch.neg.0.forward",
        "Distributed.all_reduce.0.forward",
        "Torch.neg.1.forward",
        "Torch.neg.2.forward",
        "Distributed.batch_isend_irecv.0.forward",
        "Torch.neg.3.forward",
        "Distributed.all_reduce.1.forward",
    ]
    first = seen["Distributed.all_reduce.0.forward"]
    assert (brief(first["input_args"]), brief(first["output"])) == ([rank + 1.0], [3.0, True])
    assert brief(seen["Torch.neg.1.forward"]["input_args"]) == [3.0]
    batch = seen["Distributed.batch_isend_irecv.0.forward"]["output"]
    assert plain(batch) == [p2p(rank, 2.0 - rank)]
    assert brief(seen["Torch.neg.2.forward"]["input_args"]) == [2.0 - rank]


@pytest.mark.spec("P11", "PT")
def test_communication_has_forward_only(two: Path) -> None:
    names = records(two, "later", 0)
    assert [name for name in names if name.endswith("backward")] == [
        "Tensor.sum.0.backward",
        "Tensor.__mul__.0.backward",
    ]


@pytest.mark.spec("P11", "PT")
@pytest.mark.parametrize("rank", [0, 1])
def test_calls_that_nobody_waited_for_are_written_with_what_is_known(two: Path, rank: int) -> None:
    seen = records(two, "open", rank)
    done = seen["Distributed.all_reduce.0.forward"]
    assert (brief(done["input_args"]), brief(done["output"])) == ([rank + 1.0], [3.0, True])
    under_way = seen["Distributed.irecv.0.forward"]
    assert brief(under_way["input_args"]) == [0.0]
    assert under_way["output"] == [
        {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": [2],
            "Max": None,
            "Min": None,
            "Mean": None,
            "Norm": None,
            "requires_grad": False,
        },
        {"type": "int", "value": 1 - rank},
    ]
    assert "1 asynchronous communication was still under way at stop()" in (two / f"log{rank}").read_text()


# --- ranks ---


@pytest.mark.spec("P10", "PT")
@pytest.mark.spec("C011", "PT")
@pytest.mark.spec("C012", "PT")
@pytest.mark.parametrize(
    ("run", "folders"), [("both", ["rank0", "rank1"]), ("only1", ["rank1"]), ("nobody", [])]
)
def test_rank_filter(two: Path, run: str, folders: list[str]) -> None:
    assert sorted(path.name for path in (two / run).glob("step0/rank*")) == folders
    log = (two / "log0").read_text()
    sentence = "records rank {} and this process is rank 0: nothing is recorded here."
    assert [sentence.format(ranks) in log for ranks in ("[1]", "[10]")] == [True, True]


@pytest.mark.spec("P10", "PT")
@pytest.mark.spec("P14", "PT")
@pytest.mark.parametrize("rank", [0, 1])
def test_distributed_training_is_the_same_to_the_bit(two: Path, rank: int) -> None:
    equal = json.loads((two / f"equal{rank}.json").read_bytes())
    assert equal == {
        f"{level} {task}": True for level in ("L0", "L1", "mix") for task in ("statistics", "tensor")
    }
    data = json.loads((two / f"train_mix_tensor/step1/rank{rank}/dump.json").read_bytes())["data"]
    assert "Module.module.0.Linear.backward.0" in data


def test_a_wrapped_model_shows_its_wrapper(two: Path) -> None:
    modules = {name for name in records(two, "golden", 0) if name.startswith("Module.")}
    assert {name for name in modules if "forward" in name} == {
        "Module.module.0.Linear.forward.0",
        "Module.module.1.ReLU.forward.0",
        "Module.module.2.Linear.forward.0",
        "Module.module.Sequential.forward.0",
    }


# --- in one process ---


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("change", ["scatter", "data", "numpy", "data_ptr"])
def test_what_torch_does_not_count_as_a_change_is_described_anew(
    alone: None, tmp_path: Path, level: str, change: str
) -> None:
    """Communication, .data and numpy write into a tensor without changing its version."""
    one, two = nn.Identity(), nn.Identity()
    config = Config(dump_path=str(tmp_path), level=level, rm_dropout=False)
    debugger = TorchDebugger(config, nn.ModuleList([one, two]))
    before = dict(vars(torch.Tensor)), dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    debugger.start()
    y = one(torch.zeros(2))
    version = y._version
    if change == "scatter":
        dist.scatter(y, [torch.ones(2)])
    elif change == "data":
        y.data.add_(1)
    elif change == "numpy":
        y.numpy()[:] = 1
    else:
        (ctypes.c_float * 2).from_address(y.data_ptr())[:] = [1.0, 1.0]
    assert y._version == version
    two(y)
    debugger.stop()
    assert before == (dict(vars(torch.Tensor)), dict(vars(dist.ProcessGroup)), dict(vars(dist.Work)))
    debugger.close()
    data = json.loads((tmp_path / "step0/rank0/dump.json").read_bytes())["data"]
    inputs = {name: brief(data[f"Module.{name}.Identity.forward.0"]["input_args"]) for name in ("0", "1")}
    assert inputs == {"0": [0.0], "1": [1.0]}


@pytest.mark.spec("P10", "PT")
def test_rank_of_a_process_that_was_not_yet_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    from msprobe.pytorch.adapter import TorchAdapter

    adapter = TorchAdapter()
    for variables, rank in [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "4", "RANK": "3"}, 3),
        ({"WORLD_SIZE": "4"}, None),
        ({"WORLD_SIZE": "x", "RANK": "1"}, None),
    ]:
        for name in ("WORLD_SIZE", "RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert adapter.rank() == rank
