"""Dumping with the old functions: the files of the golden script in all its modes, and every switch."""

from __future__ import annotations

import errno
import inspect
import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from legacy_case import Net, files, lines, names, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.errors import UsageError
from msprobe.name import CallName
from msprobe.pytorch import describe
from msprobe.record import Leaf, Record
from ptdbg_ascend import CompareException

ENDS = ["Functional_relu_0_forward", "Tensor_sum_0_forward"]
NAMED = ["Tensor_permute_0_forward", "Torch_relu_0_backward"]
# The golden folder, the file's name, and how the golden script was called.
GOLDENS: list[tuple[str, str, dict[str, Any]]] = [
    ("o_all/ptdbg_dump_v2.3", "npu_dump", {"tag": "ptdbg_dump"}),
    ("o_api_stack/ptdbg_dump_v2.3", "npu_dump", {"tag": "ptdbg_dump", "mode": "api_stack"}),
    ("npu/dump_conv2d_v2.3", "npu_dump", {"tag": "dump_conv2d", "mode": "api_stack"}),
    ("bench/dump_conv2d_v2.3", "gpu_dump", {"tag": "dump_conv2d", "mode": "api_stack", "scale": 1.5}),
    ("m_list/t_v2.3", "d", {"mode": "list", "scope": NAMED}),
    ("m_range/t_v2.3", "d", {"mode": "range", "scope": ENDS}),
    ("m_stack/t_v2.3", "d", {"mode": "stack", "scope": ENDS}),
    ("m_apilist/t_v2.3", "d", {"mode": "api_list", "api_list": ["relu"]}),
    ("m_filt/t_v2.3", "d", {"filter_switch": "OFF"}),
    ("m_fwd/t_v2.3", "d", {"dump_mode": "forward"}),
]
# F.relu calls torch.relu, and of calls within calls the outermost is dumped.
INNER = ("Torch_relu_0_",)


def outermost(found: Any) -> list[str]:
    return [name for name in found if not name.startswith(INNER)]


@pytest.mark.spec("L026", "LEG")
@pytest.mark.spec("L027", "LEG")
@pytest.mark.spec("L043", "LEG")
@pytest.mark.spec("L044", "LEG")
@pytest.mark.spec("L045", "LEG")
@pytest.mark.spec("L046", "LEG")
@pytest.mark.spec("L049", "LEG")
@pytest.mark.spec("L050", "LEG")
@pytest.mark.spec("L051", "LEG")
@pytest.mark.spec("L052", "LEG")
@pytest.mark.spec("L064", "LEG")
@pytest.mark.spec("L065", "LEG")
@pytest.mark.spec("L066", "LEG")
@pytest.mark.spec("L068", "LEG")
@pytest.mark.parametrize(("folder", "name", "words"), GOLDENS, ids=[folder for folder, _, _ in GOLDENS])
def test_the_golden_script_gives_the_golden_names(
    old: Any, golden: Path, folder: str, name: str, words: dict[str, Any]
) -> None:
    """Every forward line in its order, every forward file, every backward call; and the same numbers."""
    theirs = golden / folder / "rank0"
    ours = train(old, f"out/{name}.pkl", **words)
    assert ours == Path("out") / Path(folder).name / "rank0"
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    pkl = f"{'api_stack_' if words.get('mode') == 'api_stack' else ''}{name}.pkl"
    assert names(ours / pkl, "forward") == outermost(names(theirs / pkl, "forward"))
    data = (ours / pkl).with_suffix(""), (theirs / pkl).with_suffix("")
    assert files(data[0], "forward") == set(outermost(files(data[1], "forward")))
    inputs = [name for name in names(theirs / pkl, "backward") if "_output" not in name]
    assert set(outermost(inputs)) <= set(names(ours / pkl, "backward"))
    golden_lines = {line[0]: line[1:] for line in lines(theirs / pkl)}
    for line in lines(ours / pkl):
        is_alike = "forward_output" in line[0] and line[0] in golden_lines
        if is_alike:
            *described, summary = golden_lines[line[0]]
            assert line[1:-1] == described
            np.testing.assert_allclose(line[-1], summary, rtol=1e-6, atol=1e-6)


@pytest.mark.spec("L046", "LEG")
def test_stacks_alone_have_no_folder(old: Any) -> None:
    folder = train(old, "out/d.pkl", mode="stack")
    assert [path.name for path in folder.iterdir()] == ["d.pkl"]
    found = lines(folder / "d.pkl")
    assert {len(line) for line in found} == {2}
    own = [frame for _, frames in found for frame in frames if frame[0].endswith("legacy_case.py")]
    assert {frame[2] for frame in own} >= {"forward", "train"}
    assert all(isinstance(line, str) and line.isdecimal() for _, line, _, _ in own)
    assert not [frame for _, frames in found for frame in frames if "ptdbg_ascend" in frame[0]]


@pytest.mark.spec("L046", "LEG")
def test_one_name_in_mode_stack_is_a_beginning(old: Any) -> None:
    folder = train(old, "out/d.pkl", mode="stack", scope=["Tensor"])
    assert {name.split("_")[0] for name in names(folder / "d.pkl")} == {"Tensor"}


@pytest.mark.spec("L044", "LEG")
@pytest.mark.spec("L054", "LEG")
def test_a_name_in_mode_list_is_a_beginning(old: Any, told: list[str]) -> None:
    """So `Tensor_permute_1` means Tensor_permute_10_forward as well, as it always did."""
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON", mode="list", scope=["Tensor_permute_1", "Torch_neg_0_forward"])
    for _ in range(12):
        torch.ones(2, 2).permute(1, 0)
    torch.neg(torch.ones(2))
    old.set_dump_switch("OFF")
    stacks = [name for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl")) if name.endswith("stack_info")]
    counts = ("Tensor_permute_1", "Tensor_permute_10", "Tensor_permute_11", "Torch_neg_0")
    assert stacks == [f"{count}_forward_stack_info" for count in counts]
    assert told[-1] == "The number of matched dump is 4"


@pytest.mark.spec("L044", "LEG")
@pytest.mark.spec("L046", "LEG")
@pytest.mark.parametrize("mode", ["list", "stack"])
@pytest.mark.parametrize(
    ("beginning", "calls"),
    [
        ("Torch_neg_1_", ["Torch_neg_1"]),
        ("Torch_", ["Torch_neg_0", "Torch_neg_1", "Torch_atleast_1d_0"]),
        ("Torch_atleast_1", ["Torch_atleast_1d_0"]),
        ("Tensor_neg_", ["Tensor_neg__0"]),
        ("Tensor_neg_0", []),
        ("neg", []),
    ],
)
def test_a_beginning_may_end_anywhere(old: Any, mode: str, beginning: str, calls: list[str]) -> None:
    """`Torch_neg_1_` is the second call in both directions, and not the eleventh."""
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON", mode=mode, scope=[beginning])
    torch.neg(torch.neg(torch.ones(2)))
    torch.atleast_1d(torch.ones(2))
    torch.ones(2).neg_()
    old.set_dump_switch("OFF")
    stacks = [name for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl")) if name.endswith("stack_info")]
    assert stacks == [f"{call}_forward_stack_info" for call in calls]


@pytest.mark.spec("L049", "LEG")
def test_a_name_in_api_list_is_whole(old: Any) -> None:
    """Also one of several words, and a short one, which the old expression never met."""
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    apis = ["binary_cross_entropy", "T", "ReLU"]
    old.set_dump_switch("ON", mode="api_list", api_list=apis)
    half = torch.full((2, 2), 0.5)
    nn.functional.binary_cross_entropy(half, half)
    nn.functional.binary_cross_entropy_with_logits(half, half)
    half.t()
    torch.relu(half)
    torch.relu_(half.clone())
    old.set_dump_switch("OFF")
    found = {name.rpartition("_forward")[0] for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))}
    assert found == {"Functional_binary_cross_entropy_0", "Tensor_t_0", "Torch_relu_0"}


@pytest.mark.spec("L045", "LEG")
def test_a_range_goes_on_into_backward(old: Any) -> None:
    folder = train(old, "d.pkl", mode="range", scope=["Tensor_sum_0_forward", "Tensor___mul___0_backward"])
    calls = list(
        dict.fromkeys(name.rpartition("_")[0] for name in names(folder / "d.pkl") if "stack" not in name)
    )
    assert [call for call in calls if "ones_like" not in call] == [
        *("Tensor_sum_0_forward", "Tensor_sum_0_backward", "Tensor___add___0_backward"),
        "Tensor___mul___0_backward",
    ]


@pytest.mark.spec("L051", "LEG")
def test_without_the_filter_everything_has_a_line_and_a_file(old: Any) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON", filter_switch="OFF")
    x = torch.arange(6).reshape(2, 3)
    x[0:1, 1] = 3
    torch.any(x > 2)
    torch.clamp(torch.ones(2), 0.5, 2)
    torch.cat([torch.empty(0), torch.ones(1)])
    old.set_dump_switch("OFF")
    folder = Path("ptdbg_dump_v2.3/rank0")
    found = {line[0]: line[3:] for line in lines(folder / "d.pkl")}
    nothing = [[], [], []]
    expected = {
        "Tensor___setitem___0_forward_input.1.0": ["<class 'slice'>", "[]", nothing],
        "Tensor___setitem___0_forward_input.1.1": ["<class 'int'>", "[]", [1, 1, 1]],
        "Torch_any_0_forward_input.0": ["torch.bool", [2, 3], nothing],
        "Torch_any_0_forward_output": ["torch.bool", [], nothing],
        "Torch_clamp_0_forward_input.1": ["<class 'float'>", "[]", [0.5, 0.5, 0.5]],
        "Torch_cat_0_forward_input.0.0": ["torch.float32", [0], nothing],
        "Torch_cat_0_forward_output": ["torch.float32", [1], [1.0, 1.0, 1.0]],
    }
    assert {name: found.get(name) for name in expected} == expected
    assert np.load(folder / "d/Torch_clamp_0_forward_input.1.npy").item() == 0.5
    assert files(folder / "d") == {f"{name}.npy" for name in found} - {
        "Tensor___setitem___0_forward_input.1.0.npy"
    }


@pytest.mark.spec("L051", "LEG")
def test_the_filter_leaves_floats_with_a_dimension(old: Any) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    torch.where(torch.ones(2) > 0, torch.arange(2), torch.tensor(1.5))
    torch.mul(torch.ones(2, dtype=torch.bfloat16), 3)
    old.set_dump_switch("OFF")
    folder = Path("ptdbg_dump_v2.3/rank0")
    found = [name for name in names(folder / "d.pkl") if "__gt__" not in name]
    assert found == [
        "Torch_where_0_forward_output",
        "Torch_mul_0_forward_input.0",
        "Torch_mul_0_forward_output",
    ]
    assert np.load(folder / "d/Torch_mul_0_forward_output.npy").tolist() == [3.0, 3.0]


@pytest.mark.spec("L052", "LEG")
def test_backward_alone(old: Any) -> None:
    folder = train(old, "d.pkl", mode="api_stack", dump_mode="backward")
    found = names(folder / "api_stack_d.pkl")
    assert {"_backward_" in name for name in found} == {True}
    assert {"Functional_linear_0_backward_output.1", "Functional_linear_0_backward_stack_info"} <= set(found)


# --- when ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("L042", "LEG")
@pytest.mark.spec("L053", "LEG")
def test_calls_are_counted_whether_they_are_dumped_or_not(old: Any) -> None:
    """So that two runs agree on names; what is OFF is not dumped, and neither is its backward."""
    old.set_dump_path("d.pkl")
    x = torch.ones(2, requires_grad=True)
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    torch.neg(x)
    old.set_dump_switch("ON")
    y = torch.neg(x)
    old.set_dump_switch("OFF")
    torch.neg(x)
    y.sum().backward()
    old.set_dump_switch("ON")
    torch.neg(x)
    found = names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))
    old.set_dump_switch("OFF")
    assert found == [f"Torch_neg_{n}_forward_{side}" for n in (1, 3) for side in ("input.0", "output")]


@pytest.mark.spec("L028", "LEG")
@pytest.mark.parametrize("mode", ["all", "api_stack"])
def test_a_second_run_overwrites_the_first(old: Any, mode: str) -> None:
    """The old tool added to the file of mode api_stack, and removed files of its first ON at the second."""
    folder = train(old, "d.pkl", mode=mode)
    (pkl,) = folder.glob("*.pkl")
    before = names(pkl), files(pkl.with_suffix(""))
    (pkl.with_suffix("") / "Torch_left_0_forward_output.npy").write_bytes(b"older")
    old.session.follow(None)
    assert train(old, "d.pkl", mode=mode) == folder
    assert (names(pkl), files(pkl.with_suffix(""))) == before


@pytest.mark.spec("L028", "LEG")
def test_switching_on_again_adds_to_the_dump(old: Any, golden: Path) -> None:
    old.set_dump_path("rr/on2.pkl", dump_tag="t2")
    net = nn.Linear(4, 4)
    old.register_hook(net, old.acc_cmp_dump)
    old.set_dump_switch("ON")
    net(torch.ones(1, 4))
    old.set_dump_switch("OFF")
    torch.relu(torch.ones(2))
    old.set_dump_switch("ON")
    torch.abs(torch.ones(2))
    old.set_dump_switch("OFF")
    pkl = Path("rr/t2_v2.3/rank0/on2.pkl")
    assert names(pkl) == names(golden / pkl)
    assert files(pkl.with_suffix("")) == {f"{name}.npy" for name in names(pkl)}


@pytest.mark.spec("L042", "LEG")
def test_without_off_every_line_is_there_when_its_call_ended(old: Any) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    pkl = Path("ptdbg_dump_v2.3/rank0/d.pkl")
    for number in range(3):
        torch.abs(torch.ones(2))
        assert names(pkl)[-1] == f"Torch_abs_{number}_forward_output"
        assert (pkl.with_suffix("") / f"Torch_abs_{number}_forward_output.npy").is_file()


def test_what_raises_and_what_runs_again_have_no_lines(old: Any) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.mm(x, torch.ones(3, 3))
    torch.neg(x)
    checkpoint(torch.tanh, x, use_reentrant=False).sum().backward()
    old.set_dump_switch("OFF")
    found = names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))
    assert not [name for name in found if "Torch_mm" in name]
    assert sorted(set(found)) == sorted(found)
    assert {
        "Torch_neg_0_forward_input.0",
        "Torch_tanh_0_forward_output",
        "Torch_tanh_0_backward_output.0",
    } <= set(found)


def test_training_is_as_without_it(old: Any) -> None:
    def gradients(dumped: bool) -> list[torch.Tensor]:
        old.seed_all()
        net = Net()
        if dumped:
            old.set_dump_path("d.pkl")
            old.register_hook(net, old.acc_cmp_dump)
            old.set_dump_switch("ON", mode="api_stack", filter_switch="OFF")
        net(torch.randn(3, 8)).backward()
        return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]

    for ours, plain in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(ours, plain)


def test_modes_of_files_and_folders(old: Any) -> None:
    folder = train(old, "out/d.pkl")
    paths = [folder.parent, folder, folder / "d", folder / "d.pkl", *(folder / "d").iterdir()]
    assert {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths} == {
        (True, 0o750),
        (False, 0o640),
    }


def test_a_link_on_the_way_is_not_followed(old: Any) -> None:
    Path("elsewhere").mkdir()
    Path("ptdbg_dump_v2.3").symlink_to("elsewhere")
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    with pytest.raises(CompareException, match="it is a link, and links are not followed"):
        old.set_dump_switch("ON")
    assert not list(Path("elsewhere").iterdir())


def test_a_full_disk_costs_lines_and_no_training(
    old: Any, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    torch.neg(torch.ones(2))
    write, left = os.write, iter([7])

    def fill(descriptor: int, data: bytes) -> int:
        room = next(left, 0)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, bytes(data)[:room])

    with monkeypatch.context() as full:
        full.setattr(os, "write", fill)
        assert torch.abs(torch.ones(2)).tolist() == [1.0, 1.0]
    torch.exp(torch.ones(2))
    assert {name.split("_")[1] for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))} == {"neg", "exp"}
    assert any("could not write Torch.abs.0.forward" in text for text in told)


def test_a_call_that_is_never_dumped_leaves_nothing_in_memory(
    old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs were looked at, its output could not be: what was copied goes with the call."""
    whole = describe.snapshot

    def snapshot(tensor: torch.Tensor) -> Any:
        if tensor.numel() == 1 << 16:
            raise MemoryError("no room for the output")
        return whole(tensor)

    monkeypatch.setattr(describe, "snapshot", snapshot)
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    x = torch.ones(1 << 8, (1 << 8) + 1)
    tracemalloc.start()
    try:
        for _ in range(50):
            torch.narrow(x, 1, 0, 1 << 8)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    old.set_dump_switch("OFF")
    assert names(Path("ptdbg_dump_v2.3/rank0/d.pkl")) == []
    assert held < 10 * x.nbytes


def test_a_call_that_ends_after_its_dump_has_its_lines_there(old: Any) -> None:
    """As in another thread, when register_hook is called again; the next ON begins the dump anew."""
    old.set_dump_path("d.pkl")
    pkl = Path("ptdbg_dump_v2.3/rank0/d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    torch.neg(torch.ones(2))
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    leaf = Leaf("torch.Tensor", dtype="torch.float32", shape=(2,))
    old.session.the.dump.append(Record(CallName.parse("Torch.abs.7.forward"), {"output": [leaf]}))
    assert names(pkl)[-1] == "Torch_abs_7_forward_output"
    old.set_dump_switch("ON")
    torch.neg(torch.ones(2))
    assert names(pkl) == ["Torch_neg_1_forward_input.0", "Torch_neg_1_forward_output"]


# --- where, and who ---------------------------------------------------------------------------------------


@pytest.mark.spec("L036", "LEG")
@pytest.mark.spec("L070", "LEG")
@pytest.mark.spec("R12", "LEG")
def test_the_rank_names_the_folder(old: Any, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given; told by the device; by torch.distributed's variables; or 0, with a warning."""
    assert train(old, "a/d.pkl", rank=5).name == "rank5"
    assert not [text for text in told if "rank0" in text]
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, rank="6")  # of an environment variable
    old.set_dump_switch("ON")
    assert Path("a/t_v2.3/rank6/d.pkl").is_file()
    assert train(old, "b/d.pkl").name == "rank0"
    assert [text for text in told if "was given no rank" in text]

    class OnCard(nn.Linear):
        def parameters(self, recurse: bool = True) -> Iterator[Any]:
            yield type("P", (), {"device": torch.device("cuda:3")})

    old.register_hook(OnCard(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    assert Path("b/t_v2.3/rank3/d.pkl").is_file()
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    assert Path("b/t_v2.3/rank7/d.pkl").is_file()


@pytest.mark.spec("L037", "LEG")
def test_a_hook_mounted_again_counts_on(old: Any) -> None:
    """A script with two models calls register_hook for both, and its calls have one count."""
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    torch.neg(torch.ones(2))
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON")
    torch.neg(torch.ones(2))
    assert names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))[0] == "Torch_neg_1_forward_input.0"


@pytest.mark.spec("L003", "LEG")
def test_only_inputs_and_outputs_of_apis_are_dumped(old: Any) -> None:
    folder = train(old, "d.pkl")
    assert {name.split("_")[0] for name in names(folder / "d.pkl")} <= {
        "Functional",
        "Tensor",
        "Torch",
        "VF",
        "NPU",
    }
    assert {part for name in names(folder / "d.pkl") for part in ("input", "output") if part in name} == {
        "input",
        "output",
    }
    assert sorted(path.name for path in folder.iterdir()) == ["d", "d.pkl"]


@pytest.mark.spec("L067", "LEG")
def test_the_prefixes_say_where_a_function_stands(old: Any) -> None:
    old.set_dump_path("d.pkl")
    net = nn.LSTM(2, 2)
    old.register_hook(net, old.acc_cmp_dump)
    old.set_dump_switch("ON", dump_mode="forward")
    x = torch.ones(1, 1, 2)
    net(x)
    nn.functional.gelu(x)
    x.abs()
    torch.abs(x)
    old.set_dump_switch("OFF")
    calls = {name.rpartition("_forward")[0] for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl"))}
    assert {"VF_lstm_0", "Functional_gelu_0", "Tensor_abs_0", "Torch_abs_0"} <= calls


def test_collectives_and_aten_have_the_prefixes_of_release_4(old: Any) -> None:
    old.set_dump_path("d.pkl")
    x = torch.full((2,), 3.0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
        old.set_dump_switch("ON")
        dist.all_reduce(x)
        torch.ops.aten.relu(x)
        old.set_dump_switch("OFF")
    finally:
        dist.destroy_process_group()
    folder = Path("ptdbg_dump_v2.3/rank0")
    calls = ("Distributed_all_reduce_0_forward", "Aten_relu_0_forward")
    assert names(folder / "d.pkl") == [f"{call}_{side}" for call in calls for side in ("input.0", "output")]
    assert np.load(folder / f"d/{calls[0]}_output.npy").tolist() == [3.0, 3.0]


# --- mistakes ---------------------------------------------------------------------------------------------


SCOPE = "set_dump_switch, scope param set invalid, "
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"switch": "on"}, "Please set dump switch with 'ON' or 'OFF'."),
    (
        {"mode": "foo"},
        "Current mode 'foo' is not supported. Please use the field in ['all', 'list', 'range', 'stack', "
        "'acl', 'api_list', 'api_stack']",
    ),
    ({"filter_switch": True}, "Please set filter_switch with 'ON' or 'OFF'."),
    ({"dump_mode": "both"}, "Please set dump_mode with 'all' or 'forward' or 'backward'."),
    ({"mode": "list"}, SCOPE + "it's should not be an empty list."),
    ({"mode": "range", "scope": ["Tensor_abs_1_forward"]}, SCOPE + "it's must be [start, end]."),
    ({"mode": "stack", "scope": ["a", "b", "c"]}, SCOPE + "it's must be [start, end] or []."),
    (
        {"mode": "range", "scope": ["Tensor_abs", "Tensor_abs_1_forward"]},
        SCOPE + "'Tensor_abs' is no name of a call, such as Tensor_abs_1_forward.",
    ),
    ({"mode": "acl", "scope": ["a", "b"]}, SCOPE + "only one api name is supported in acl mode."),
    (
        {"mode": "api_list"},
        "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid.",
    ),
    ({"mode": "list", "scope": "Tensor"}, "set_dump_switch, scope is 'Tensor'; it must be a list of names."),
    ({"mode": "api_list", "api_list": [3]}, "set_dump_switch, api_list is [3]; it must be a list of names."),
]


@pytest.mark.spec("L042", "LEG")
@pytest.mark.spec("L043", "LEG")
@pytest.mark.spec("L044", "LEG")
@pytest.mark.spec("L045", "LEG")
@pytest.mark.spec("L047", "LEG")
@pytest.mark.spec("L049", "LEG")
@pytest.mark.spec("L051", "LEG")
@pytest.mark.spec("L052", "LEG")
@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[next(iter(words)) for words, _ in WRONG])
def test_a_wrong_switch_is_an_error(old: Any, words: dict[str, Any], sentence: str) -> None:
    """The old tool ended the process, with status 0; an error ends it with another."""
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    with pytest.raises(CompareException) as caught:
        old.set_dump_switch(**{"switch": "ON", **words})
    assert (str(caught.value), caught.value.code) == (sentence, 11)
    assert isinstance(caught.value, UsageError)


@pytest.mark.spec("L025", "LEG")
@pytest.mark.spec("L024", "LEG")
def test_wrong_paths(old: Any) -> None:
    with pytest.raises(RuntimeError, match="^set_dump_path 'None' error, please set a valid filename$"):
        old.set_dump_path()
    with pytest.raises(RuntimeError, match="error, please set a valid filename$"):
        old.set_dump_path("a\0.pkl")
    old.set_dump_path(f"{'a' * 300}.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    with pytest.raises(CompareException, match="^set_dump_switch: .* cannot be written: File name too long"):
        old.set_dump_switch("ON")
    with pytest.raises(CompareException, match="error, please set a valid filename.") as caught:
        old.set_dump_path(".")
    assert caught.value.code == 1
    with pytest.raises(CompareException, match="dump_tag is 'a/b'; it must be the name of a folder."):
        old.set_dump_path("d.pkl", dump_tag="a/b")


@pytest.mark.spec("L031", "LEG")
@pytest.mark.spec("L032", "LEG")
@pytest.mark.spec("L033", "LEG")
@pytest.mark.spec("L036", "LEG")
@pytest.mark.parametrize(
    ("model", "words", "sentence"),
    [
        (1, {}, "Please register hooks to nn.Module."),
        (None, {"hook": print}, "register_hook takes acc_cmp_dump or overflow_check as hook, not print."),
        (None, {"overflow_nums": 0}, "register_hook, overflow_nums is 0; it must be a number from 1 on."),
        (None, {"rank": -1}, "register_hook, rank is -1; it must be a number from 0 on."),
        (None, {"rank": True}, "register_hook, rank is True; it must be a number from 0 on."),
        (None, {"rank": "-1"}, "register_hook, rank is '-1'; it must be a number from 0 on."),
        (None, {"dump_mode": "foo"}, "dump_mode only support ['api', 'acl']"),
    ],
)
def test_a_wrong_hook_is_an_error(old: Any, model: Any, words: dict[str, Any], sentence: str) -> None:
    old.set_dump_path("d.pkl")
    with pytest.raises(CompareException) as caught:
        old.register_hook(model or nn.Linear(2, 2), **{"hook": old.acc_cmp_dump, **words})
    assert (str(caught.value), caught.value.code) == (sentence, 11)


@pytest.mark.spec("R19", "LEG")
@pytest.mark.spec("L029", "LEG")
@pytest.mark.spec("L037", "LEG")
def test_what_was_forgotten_is_named(old: Any, told: list[str]) -> None:
    with pytest.raises(CompareException, match="call set_dump_path before it."):
        old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    for switch in ("set_dump_switch", "set_overflow_check_switch"):  # training goes on
        getattr(old, switch)("ON")
        assert told[-1] == f"{switch} has no effect: call register_hook before it."


def test_a_switch_of_the_other_hook_has_no_effect(old: Any, told: list[str]) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_overflow_check_switch("ON")
    assert told[-1] == "set_overflow_check_switch has no effect: register_hook was given acc_cmp_dump."
    old.register_hook(nn.Linear(2, 2), old.overflow_check)
    old.set_dump_switch("ON")
    assert told[-1] == "set_dump_switch has no effect: register_hook was given overflow_check."


@pytest.mark.parametrize("is_off", [False, True], ids=["on", "off"])
def test_a_name_that_no_call_had_is_told(old: Any, told: list[str], is_off: bool) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON", mode="list", scope=["Torch_reluu_0_forward"])
    torch.relu(torch.ones(2))
    if is_off:
        old.set_dump_switch("OFF")
    old.session.follow(None)
    assert any("Torch_reluu_0_forward" in text and "Torch.relu.0.forward" in text for text in told)


PROTOTYPES = {
    "seed_all": {"seed": 1234, "mode": False},
    "set_dump_path": {"fpath": None, "dump_tag": "ptdbg_dump"},
    "register_hook": {
        "model": ...,
        "hook": ...,
        "overflow_nums": 1,
        "dump_mode": "api",
        "dump_config": None,
        "rank": None,
    },
    "set_dump_switch": {
        "switch": ...,
        "mode": "all",
        "scope": (),
        "api_list": (),
        "filter_switch": "ON",
        "dump_mode": "all",
    },
    "set_overflow_check_switch": {"switch": ..., "filter_switch": "ON"},
    "set_backward_input": {"backward_input": ...},
    "compare_distributed": {
        "npu_dump_dir": ...,
        "bench_dump_dir": ...,
        "output_path": ...,
        "kwargs": ...,
    },
}


@pytest.mark.spec("L008", "LEG")
@pytest.mark.spec("L024", "LEG")
@pytest.mark.spec("L030", "LEG")
@pytest.mark.spec("L041", "LEG")
@pytest.mark.spec("L055", "LEG")
@pytest.mark.spec("L061", "LEG")
@pytest.mark.spec("L073", "LEG")
@pytest.mark.spec("R20", "LEG")
@pytest.mark.parametrize("name", PROTOTYPES)
def test_prototypes(name: str) -> None:
    import ptdbg_ascend

    parameters = inspect.signature(getattr(ptdbg_ascend, name)).parameters.values()
    found = {one.name: ... if one.default is one.empty else one.default for one in parameters}
    assert found == PROTOTYPES[name]
