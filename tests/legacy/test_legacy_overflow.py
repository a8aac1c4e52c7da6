"""What needed an NPU: overflow by value, kernel data validated and refused, operators and seeds of a stub."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from legacy_case import files, lines, names
from torch import nn

from msprobe.errors import ConfigError, HardwareError, OverflowLimitReached
from msprobe.pytorch import apis
from npu_case import noting_npu
from ptdbg_ascend import CompareException

STAMP = r"Overflow_info_\d{8}_\d{6}_"


def overflow(times: int = 1) -> torch.Tensor:
    """One call that overflows, and some that pass on what it gave."""
    y = torch.exp(torch.full((2,), 1000.0))
    for _ in range(times - 1):
        y = torch.neg(y)
    return y


# --- overflow -----------------------------------------------------------------------------------------------


@pytest.mark.spec("L033", "LEG")
@pytest.mark.spec("L039", "LEG")
@pytest.mark.spec("L069", "LEG")
@pytest.mark.spec("L100", "LEG")
@pytest.mark.spec("L101", "LEG")
@pytest.mark.spec("L104", "LEG")
def test_training_ends_at_the_nth_overflow(old: Any, told: list[str]) -> None:
    """Each overflowing call has a .pkl and a folder of its own, and the last one is in the error."""
    old.seed_all()
    old.set_dump_path("out/x.pkl")
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=3)
    torch.neg(torch.ones(2))
    text = r"^\[overflow 3 times\]: dump file is saved in '.*_3\.pkl'\.$"
    with pytest.raises(ValueError, match=text) as caught:
        overflow(5)
    assert isinstance(caught.value, OverflowLimitReached)
    folder = Path("out/ptdbg_dump_v2.3/rank0")
    dumps = sorted(folder.glob("*.pkl"))
    assert all(re.fullmatch(rf"{STAMP}{n}\.pkl", path.name) for n, path in enumerate(dumps, 1))
    assert len(dumps) == 3
    assert f"'{dumps[2].absolute()}'" in str(caught.value)
    stack, given, made = lines(dumps[0])
    assert (stack[0], stack[1][0][2]) == ("Torch_exp_0_forward_stack_info", "overflow")
    assert given == ["Torch_exp_0_forward_input.0", 101, [], "torch.float32", [2]]
    assert made == ["Torch_exp_0_forward_output", 101, [], "torch.float32", [2]]
    assert np.load(dumps[0].with_suffix("") / "Torch_exp_0_forward_output.npy").tolist() == [np.inf, np.inf]
    assert [names(path)[0] for path in dumps[1:]] == [f"Torch_neg_{n}_forward_stack_info" for n in (1, 2)]
    name = "module name :'Torch_exp_0_forward'"
    file = dumps[0].absolute()
    assert f"[overflow 1 times]: {name} is overflow and dump file is saved in '{file}'." in told
    assert any("looks at values" in text for text in told)


def test_training_ends_at_the_nth_overflow_also_where_nothing_can_be_written(old: Any) -> None:
    Path("out").mkdir()
    Path("out/ptdbg_dump_v2.3").write_text("a file in the place of the folder")
    old.set_dump_path("out/x.pkl")
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=2)
    with pytest.raises(ValueError, match=r"^\[overflow 2 times\]: no dump file could be saved\.$"):
        overflow(3)


@pytest.mark.spec("L056", "LEG")
@pytest.mark.spec("L059", "LEG")
@pytest.mark.spec("L101", "LEG")
def test_without_a_path_and_without_a_switch(old: Any) -> None:
    """The whole run is checked, one overflow is enough, and the data are below the current folder."""
    old.register_hook(nn.Linear(2, 2), old.overflow_check)
    with pytest.raises(ValueError, match=r"\[overflow 1 times\]"):
        overflow()
    assert len(list(Path("ptdbg_dump_v2.3/rank0").glob("Overflow_info_*.pkl"))) == 1


@pytest.mark.spec("L056", "LEG")
@pytest.mark.spec("L057", "LEG")
@pytest.mark.spec("L058", "LEG")
def test_the_switch_bounds_what_is_checked(old: Any) -> None:
    spoilt = torch.full((2,), float("nan"))
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=2)
    old.set_overflow_check_switch("OFF")
    overflow(3)
    old.set_overflow_check_switch("ON", filter_switch="OFF")
    torch.clamp(spoilt, 0, 1)
    old.set_overflow_check_switch("OFF")
    overflow(3)
    (path,) = Path("ptdbg_dump_v2.3/rank0").glob("Overflow_info_*.pkl")
    assert "Torch_clamp_0_forward_input.1" in names(path)
    assert files(path.with_suffix("")) == {f"{name}.npy" for name in names(path)[1:]}


@pytest.mark.spec("L057", "LEG")
@pytest.mark.spec("L058", "LEG")
def test_wrong_overflow_switches(old: Any) -> None:
    old.register_hook(nn.Linear(2, 2), old.overflow_check)
    with pytest.raises(CompareException, match="^Please set overflow switch with 'ON' or 'OFF'.$"):
        old.set_overflow_check_switch("yes")
    with pytest.raises(CompareException, match="^Please set overflow filter_switch with 'ON' or 'OFF'.$"):
        old.set_overflow_check_switch("ON", "no")


@pytest.mark.spec("L069", "LEG")
def test_a_backward_that_overflows(old: Any) -> None:
    """A single number may be what overflowed, and the error waits until backward is over."""
    old.register_hook(nn.Linear(2, 2), old.overflow_check)
    x = torch.zeros((), requires_grad=True)
    torch.sqrt(x).backward()
    with pytest.raises(ValueError, match=r"\[overflow \d times\]"):
        torch.neg(torch.ones(1))
    found = [name for path in Path("ptdbg_dump_v2.3/rank0").glob("*.pkl") for name in names(path)]
    assert "Torch_sqrt_0_backward_output.0" in found


@pytest.mark.spec("L104", "LEG")
def test_the_error_says_the_number_that_was_asked_for(old: Any) -> None:
    """Also where backward, which nothing ends before it is over, met more of them."""
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=2)
    x = torch.zeros(2, requires_grad=True)
    torch.sqrt(torch.neg(torch.neg(torch.neg(x)))).sum().backward()
    assert len(list(Path("ptdbg_dump_v2.3/rank0").glob("*.pkl"))) > 2
    with pytest.raises(ValueError, match=r"^\[overflow 2 times\]: dump file is saved in '.*_2\.pkl'\.$"):
        torch.neg(torch.ones(1))


@pytest.mark.spec("L040", "LEG")
def test_each_card_counts_on_its_own(old: Any) -> None:
    """A rank is a process, which has a count and a folder of its own, and ends when its own is reached."""
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=2, rank=1)
    overflow(1)
    (path,) = Path("ptdbg_dump_v2.3/rank1").glob("*.pkl")
    assert path.name.endswith("_1.pkl")
    old.session.follow(None)
    old.register_hook(nn.Linear(2, 2), old.overflow_check, overflow_nums=2, rank=2)
    with pytest.raises(ValueError, match=r"\[overflow 2 times\]: .*rank2/Overflow_info_"):
        overflow(2)


# --- kernel data --------------------------------------------------------------------------------------------


@pytest.fixture
def acl(tmp_path: Path) -> str:
    (tmp_path / "kernels").mkdir()
    dump = {"dump_list": [], "dump_path": "./kernels", "dump_mode": "all", "dump_op_switch": "on"}
    (tmp_path / "dump.json").write_text(json.dumps({"dump": dump}))
    return "dump.json"


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A torch_npu that notes what it is asked."""
    asked = noting_npu(monkeypatch)
    apis._load.cache_clear()  # which knows the packages that were imported, and not that one is another
    return asked


DUMPED = ["init_dump", "set_dump dump.json", "synchronize", "synchronize", "finalize_dump"]


@pytest.mark.spec("L034", "LEG")
@pytest.mark.spec("L035", "LEG")
@pytest.mark.parametrize(
    ("config", "code", "sentence"),
    [
        (None, 11, "dump_mode is acl mode, dump_config must be configured."),
        ("dump.txt", 11, "dump_config must be configure json file."),
        ("gone.json", 1, "register_hook, dump_config: there is no file gone.json."),
    ],
)
@pytest.mark.parametrize("hook", ["acc_cmp_dump", "overflow_check"])
def test_a_wrong_dump_config(old: Any, hook: str, config: Any, code: int, sentence: str) -> None:
    with pytest.raises(CompareException) as caught:
        old.register_hook(nn.Linear(2, 2), getattr(old, hook), dump_mode="acl", dump_config=config)
    assert (str(caught.value), caught.value.code) == (sentence, code)


@pytest.mark.spec("L062", "LEG")
@pytest.mark.parametrize(
    ("dump", "sentence"),
    [
        ({}, "dump_path"),
        ({"dump_path": "nowhere"}, "there is no such folder"),
        ({"dump_path": ".", "dump_mode": "both"}, "dump_mode"),
        ({"dump_path": ".", "dump_op_switch": True}, "dump_op_switch"),
        ({"dump_path": ".", "dump_list": [1]}, "dump_list"),
    ],
)
def test_a_dump_json_that_cannot_be(old: Any, dump: dict[str, Any], sentence: str) -> None:
    Path("dump.json").write_text(json.dumps({"dump": dump}))
    with pytest.raises(ConfigError, match=sentence):
        old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config="dump.json")


@pytest.mark.spec("L003", "LEG")
@pytest.mark.spec("L038", "LEG")
@pytest.mark.spec("L047", "LEG")
@pytest.mark.spec("L063", "LEG")
@pytest.mark.spec("L095", "LEG")
@pytest.mark.spec("R11", "LEG")
@pytest.mark.spec("L007", "LEG")
def test_without_torch_npu_a_kernel_dump_is_one_sentence(
    old: Any, acl: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is checked first; nothing is written; and it says what can be done here."""
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    monkeypatch.delenv("TASK_QUEUE_ENABLE", raising=False)
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
    for name in ("Tensor_permute_1_backward", "Tensor_permute_1_forward"):
        with pytest.raises(HardwareError, match="cannot be imported here: nothing was dumped") as caught:
            old.set_dump_switch("ON", mode="acl", scope=[name], filter_switch="OFF")
        assert f"Dump {name} with mode='list'" in str(caught.value)
    assert "set_dump_switch, filter_switch has no effect with mode='acl'." in told
    assert any("TASK_QUEUE_ENABLE is not 0" in text for text in told)
    assert sorted(path.name for path in Path().iterdir()) == ["dump.json", "kernels"]
    assert not list(Path("kernels").iterdir())


@pytest.mark.spec("L048", "LEG")
@pytest.mark.spec("L061", "LEG")
@pytest.mark.spec("L103", "LEG")
@pytest.mark.spec("R20", "LEG")
def test_gradients_of_a_backward_call_are_checked(old: Any, acl: str, npu: list[str]) -> None:
    np.save("Functional_conv2d_1_backward_input.0.npy", np.ones(2))
    files = ["Functional_conv2d_1_backward_input.0.npy"]
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
    with pytest.raises(CompareException, match="call set_dump_switch with one before it"):
        old.set_backward_input(files)
    old.set_dump_switch("ON", mode="acl", scope=["Functional_conv2d_1_forward"])
    with pytest.raises(CompareException, match="set_backward_input needs a backward call"):
        old.set_backward_input(files)
    old.set_dump_switch("ON", mode="acl", scope=["Functional_conv2d_1_backward"])
    gone = "acl_dump_xxx//Functional_conv2d_1_backward_input.0.npy"
    for wrong in ("x.npy", [], [3], [gone], ["dump.json"]):
        with pytest.raises(CompareException, match="set_backward_input takes .npy files that exist"):
            old.set_backward_input(wrong)
    old.set_backward_input(files)


@pytest.mark.spec("L048", "LEG")
def test_a_backward_call_without_its_gradients_is_not_dumped(
    old: Any, acl: str, npu: list[str], told: list[str]
) -> None:
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
    npu.clear()
    old.set_dump_switch("ON", mode="acl", scope=["Torch_neg_0_backward"])
    torch.neg(torch.ones(2, requires_grad=True))
    old.set_dump_switch("OFF")
    assert npu == []
    assert any(
        "Torch.neg.0.backward could not be dumped" in text and "backward_input []" in text for text in told
    )


@pytest.mark.spec("L034", "LEG")
def test_mode_acl_and_the_hook_must_agree(old: Any, acl: str) -> None:
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    with pytest.raises(CompareException, match="mode='acl' belongs to register_hook"):
        old.set_dump_switch("ON", mode="acl", scope=["Tensor_permute_1_forward"])
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
    with pytest.raises(CompareException, match="and every other mode to one without it"):
        old.set_dump_switch("ON")


@pytest.mark.spec("L060", "LEG")
@pytest.mark.spec("L102", "LEG")
@pytest.mark.spec("L038", "LEG")
def test_overflow_with_kernel_data_is_refused_without_the_hardware(
    old: Any, acl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(
        HardwareError, match="needs an Ascend NPU and torch_npu: nothing was dumped. Use 'api'"
    ):
        old.register_hook(nn.Linear(2, 2), old.overflow_check, dump_mode="acl", dump_config=acl)
    assert sorted(path.name for path in Path().iterdir()) == ["dump.json", "kernels"]


@pytest.mark.spec("L034", "LEG")
@pytest.mark.spec("L060", "LEG")
@pytest.mark.spec("L102", "LEG")
def test_with_torch_npu_each_forward_call_that_overflows_is_dumped(
    old: Any, acl: str, npu: list[str], told: list[str]
) -> None:
    """It runs once more, on copies: what it changes in place, and what it draws, is as without a dump."""
    old.register_hook(nn.Linear(2, 2), old.overflow_check, 4, dump_mode="acl", dump_config=acl)
    npu.clear()
    torch.neg(torch.ones(2))
    assert npu == []
    torch.exp(torch.full((2,), 1000.0))
    assert npu == DUMPED
    x = torch.full((2,), 3e38)
    x.mul_(10.0).div_(1e3)
    assert npu == DUMPED * 3
    assert x.isinf().all()
    assert any(
        "has dumped the kernel data of Tensor.mul_.0.forward as dump.json says" in text for text in told
    )
    old.set_overflow_check_switch("OFF")
    torch.exp(torch.full((2,), 1000.0))
    assert npu == DUMPED * 3
    old.set_overflow_check_switch("ON")
    with pytest.raises(ValueError, match=r"^\[overflow 4 times\]: dump file is saved in '.*_4\.pkl'\.$"):
        torch.exp(torch.full((2,), 1000.0))
    assert npu == DUMPED * 4


@pytest.mark.spec("L103", "LEG")
def test_with_torch_npu_a_backward_call_that_overflows_is_named(
    old: Any, acl: str, npu: list[str], told: list[str]
) -> None:
    old.register_hook(nn.Linear(2, 2), old.overflow_check, 9, dump_mode="acl", dump_config=acl)
    npu.clear()
    torch.sqrt(torch.zeros((), requires_grad=True)).backward()
    assert npu == []
    assert any(
        "caused by backward operator Torch.sqrt.0.backward. You can use reverse" in text for text in told
    )


def test_a_dump_of_kernels_that_fails_does_not_stop_training(
    old: Any, acl: str, npu: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old.register_hook(nn.Linear(2, 2), old.overflow_check, 9, dump_mode="acl", dump_config=acl)

    def fails(_path: str) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(sys.modules["torch_npu"].npu, "set_dump", fails)
    assert torch.exp(torch.full((2,), 1000.0)).isinf().all()
    assert npu[-1] == "finalize_dump"
    assert any("Torch.exp.0.forward could not be dumped: no room" in text for text in told)


@pytest.mark.spec("L003", "LEG")
@pytest.mark.spec("L038", "LEG")
@pytest.mark.spec("L047", "LEG")
@pytest.mark.spec("L096", "LEG")
def test_with_torch_npu_the_one_call_is_dumped_once(old: Any, acl: str, npu: list[str]) -> None:
    """Also where a function calls another of the list: of calls within calls the outermost counts."""
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
    npu.clear()
    old.set_dump_switch("ON", mode="acl", scope=["Functional_batch_norm_1_forward"])
    x = torch.randn(4, 2)
    for _ in range(3):
        nn.functional.batch_norm(x, torch.zeros(2), torch.ones(2))
    assert 0 in nn.functional.dropout(torch.ones(64))  # which the script sees to itself
    old.set_dump_switch("OFF")
    assert npu == DUMPED
    assert not Path("ptdbg_dump_v2.3").exists()


@pytest.mark.spec("L048", "LEG")
@pytest.mark.spec("L103", "LEG")
@pytest.mark.spec("L004", "LEG")
def test_with_torch_npu_a_backward_call(old: Any, acl: str, npu: list[str], told: list[str]) -> None:
    np.save("grad.npy", np.ones((2, 3), "float32"))
    x = torch.randn(2, 3, requires_grad=True)
    for scope, call, dumped in (
        ("Torch_neg_0_backward", lambda: torch.neg(x), DUMPED),
        ("Torch_split_0_backward", lambda: torch.split(x, 1), []),
    ):
        old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump, dump_mode="acl", dump_config=acl)
        npu.clear()
        old.set_dump_switch("ON", mode="acl", scope=[scope])
        old.set_backward_input(["grad.npy"])
        call()
        old.set_dump_switch("OFF")
        assert npu == dumped
    assert any("is not of tensor type and cannot be automatically derived" in text for text in told)


# --- custom operators and seeds of an NPU -----------------------------------------------------------------

OPERATORS = [
    *("one_", "npu_sort_v2", "npu_transpose", "npu_broadcast", "npu_dtype_cast", "empty_with_format"),
    *("npu_one_hot", "npu_stride_add", "npu_ps_roi_pooling", "npu_roi_align", "npu_nms_v4", "npu_iou"),
    *("npu_nms_with_mask", "npu_pad", "npu_bounding_box_encode", "npu_bounding_box_decode"),
    *("npu_batch_nms", "npu_slice", "_npu_dropout", "npu_indexing", "npu_ifmr", "npu_max", "npu_scatter"),
    *("npu_layer_norm_eval", "npu_alloc_float_status", "npu_get_float_status", "npu_clear_float_status"),
    *("npu_confusion_transpose", "npu_bmmV2", "fast_gelu", "npu_sub_sample", "npu_deformable_conv2d"),
    *("npu_mish", "npu_anchor_response_flags", "npu_yolo_boxes_encode", "npu_grid_assign_positive"),
    *("npu_normalize_batch", "npu_masked_fill_range", "npu_linear", "npu_bert_apply_adam", "npu_giou"),
    *("npu_ciou", "npu_ciou_backward", "npu_diou", "npu_diou_backward", "npu_sign_bits_pack"),
    "npu_sign_bits_unpack",
]


@pytest.mark.spec("L099", "LEG")
def test_the_47_operators_are_listed() -> None:
    assert len(OPERATORS) == 47
    assert set(OPERATORS) <= set(apis.read_list(apis.SUPPORT_LIST)["torch_npu"])


@pytest.mark.spec("L098", "LEG")
@pytest.mark.spec("L099", "LEG")
@pytest.mark.spec("L067", "LEG")
@pytest.mark.spec("L006", "LEG")
def test_operators_of_an_npu_are_dumped_where_torch_npu_is(old: Any, npu: list[str]) -> None:
    """All 47, alone if nothing else is wanted; where torch_npu is not imported there is nothing to dump."""
    module: Any = sys.modules["torch_npu"]
    for name in OPERATORS:
        setattr(module, name, lambda x: x.clone())
    old.set_dump_path("d.pkl")
    old.register_hook(nn.Linear(2, 2), old.acc_cmp_dump)
    old.set_dump_switch("ON", mode="list", scope=["NPU"], dump_mode="forward")
    x = torch.ones(2)
    for name in OPERATORS:
        getattr(module, name)(x)
    torch.neg(x)
    old.set_dump_switch("OFF")
    found = [name for name in names(Path("ptdbg_dump_v2.3/rank0/d.pkl")) if name.endswith("stack_info")]
    assert found == [f"NPU_{name}_0_forward_stack_info" for name in OPERATORS]


@pytest.mark.spec("L006", "LEG")
@pytest.mark.spec("L018", "LEG")
@pytest.mark.spec("L019", "LEG")
def test_seeds_of_an_npu(old: Any, npu: list[str]) -> None:
    old.seed_all(1000)
    assert npu == ["manual_seed 1000", "manual_seed_all 1000"]


# --- seeds ------------------------------------------------------------------------------------------------


def draw() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), torch.rand(2).tolist()


@pytest.mark.spec("L008", "LEG")
@pytest.mark.spec("L009", "LEG")
@pytest.mark.spec("L012", "LEG")
@pytest.mark.spec("L013", "LEG")
@pytest.mark.spec("L014", "LEG")
@pytest.mark.spec("L015", "LEG")
def test_seed_all_fixes_random_numbers(old: Any) -> None:
    old.seed_all()
    assert os.environ["PYTHONHASHSEED"] == "1234"
    first = draw()
    old.seed_all(1000)
    assert os.environ["PYTHONHASHSEED"] == "1000"
    other = draw()
    old.seed_all(seed=1234)
    assert draw() == first != other
    random.seed(1234)
    np.random.seed(1234)
    torch.manual_seed(1234)
    assert draw() == first


@pytest.mark.spec("L010", "LEG")
def test_mode_asks_for_deterministic_algorithms(old: Any) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    old.seed_all(mode=True)
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.spec("L016", "LEG")
@pytest.mark.spec("L017", "LEG")
@pytest.mark.spec("L020", "LEG")
@pytest.mark.spec("L021", "LEG")
@pytest.mark.spec("L022", "LEG")
def test_seeds_and_switches_of_cuda(old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[str, int]] = []
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda seed, name=name: seeds.append((name, seed)))
    old.seed_all(7)
    # torch.manual_seed seeds all cards by itself, once more.
    assert set(seeds) == {("manual_seed", 7), ("manual_seed_all", 7)}
    cudnn: Any = torch.backends.cudnn
    assert (cudnn.enable, cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, False, False, True)


@pytest.mark.spec("L011", "LEG")
def test_who_forgets_seed_all_is_told_and_seeded(old: Any, told: list[str]) -> None:
    """The old package seeded when it was imported; now register_hook does, unless seed_all was called."""
    net = nn.Linear(2, 2)
    old.set_dump_path("d.pkl")
    old.register_hook(net, old.acc_cmp_dump)
    assert any("seed_all was not called" in text for text in told)
    first = draw()
    state = torch.get_rng_state()
    old.register_hook(net, old.acc_cmp_dump)
    assert torch.equal(torch.get_rng_state(), state)
    old.seed_all()
    assert draw() == first
