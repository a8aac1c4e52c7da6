"""Reading old dumps: every golden file, name and number; what is damaged is one sentence; the commands."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from legacy_case import Net, lines, train

from msprobe import store
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.pairing.match import places
from msprobe.record import Frame
from msprobe.store import formats
from msprobe.store.tensor_file import read
from ptdbg_ascend.old_files import call_text, line_text, ours, parse

PKLS = [
    *("npu/dump_conv2d_v2.3/rank0/api_stack_npu_dump", "bench/dump_conv2d_v2.3/rank0/api_stack_gpu_dump"),
    *("bench2/dump_conv2d_v2.3/rank0/api_stack_gpu_dump", "o_all/ptdbg_dump_v2.3/rank0/npu_dump"),
    *(
        "o_api_stack/ptdbg_dump_v2.3/rank0/api_stack_npu_dump",
        "m_list/t_v2.3/rank0/d",
        "m_range/t_v2.3/rank0/d",
    ),
    *("m_stack/t_v2.3/rank0/d", "m_apilist/t_v2.3/rank0/d", "m_filt/t_v2.3/rank0/d", "m_fwd/t_v2.3/rank0/d"),
    *("rr/t2_v2.3/rank0/on2", "rr/t_v2.3/rank0/d_all", "rr/t_v2.3/rank0/api_stack_d_api_stack"),
]


@pytest.mark.spec("L065", "LEG")
@pytest.mark.spec("L066", "LEG")
@pytest.mark.parametrize("name", PKLS)
def test_every_golden_dump_is_read(golden: Path, name: str) -> None:
    """Each line with its dtype, shape and statistics, each file with its numbers, each stack by frames."""
    path = golden / f"{name}.pkl"
    (recording,) = store.read(path)
    found: dict[str, Any] = {}
    for record in recording.records.values():
        if record.stack is not None:
            frames = [list(Frame.parse(frame)) for frame in record.stack.frames]
            found[f"{call_text(record.name)}_stack_info"] = frames
        for place in places(record):
            leaf = place.leaf
            assert leaf is not None and leaf.data_name is not None
            file = store.tensor_path(recording, leaf)
            assert file is not None
            if file.is_file():  # those of an earlier ON were removed by the old tool
                np.testing.assert_array_equal(read(file).array, np.load(file))
            stats = leaf.stats if isinstance(leaf.stats, Statistics) else Statistics(*[leaf.value] * 3, None)
            dtype = leaf.dtype if leaf.is_tensor else f"<class '{leaf.type}'>"
            shape = list(leaf.shape or ()) if leaf.is_tensor else "[]"
            found[leaf.data_name.removesuffix(".npy")] = [1, [], dtype, shape, list(stats[:3])]
    assert found == {line[0]: line[1] if len(line) == 2 else line[1:] for line in lines(path)}
    assert (recording.header, recording.rank, recording.step) == (
        ("statistics" if "m_stack" in name else "tensor", "L1", "pytorch"),
        0,
        None,
    )


NAMES = [
    ("Functional_linear_0_forward", "Functional.linear.0.forward"),
    ("Tensor___add___0_forward", "Tensor.__add__.0.forward"),
    ("Tensor_relu__12_backward", "Tensor.relu_.12.backward"),
    ("Torch_batch_norm_3_forward", "Torch.batch_norm.3.forward"),
    ("VF_lstm_0_forward", "VF.lstm.0.forward"),
    ("NPU__npu_dropout_0_forward", "NPU._npu_dropout.0.forward"),
    ("NPU_one__1_backward", "NPU.one_.1.backward"),
    ("Torch_linalg.norm_0_forward", "Torch.linalg.norm.0.forward"),
    ("Functional_conv_transpose2d_10_backward", "Functional.conv_transpose2d.10.backward"),
]


@pytest.mark.spec("L067", "LEG")
@pytest.mark.parametrize(("text", "name"), NAMES)
def test_names_of_both_formats(text: str, name: str) -> None:
    call = CallName.parse(name)
    assert (call_text(call), ours(text)) == (text, name)
    for slot in ("input.0", "input.1.0", "output.2"):
        assert parse(line_text(call, slot, 3)) == (call, slot)
    assert parse(line_text(call, "output.0", 1)) == (call, "output.0")
    assert parse(f"{text}_stack_info") == (call, "stack_info")


@pytest.mark.parametrize(
    ("name", "outputs", "text"),
    [
        ("Torch.sort.0.forward", 2, "Torch_sort_0_forward_output.0"),
        ("Torch.abs.0.forward", 1, "Torch_abs_0_forward_output"),
        ("Torch.abs.0.backward", 1, "Torch_abs_0_backward_output.0"),
        ("Tensor.split.0.forward", 1, "Tensor_split_0_forward_output.0"),
    ],
)
def test_only_what_is_in_a_tuple_is_numbered(name: str, outputs: int, text: str) -> None:
    assert line_text(CallName.parse(name), "output.0", outputs) == text


# --- folders -----------------------------------------------------------------------------------------------


@pytest.mark.spec("L064", "LEG")
@pytest.mark.spec("L070", "LEG")
def test_a_file_a_rank_and_a_tag_are_found(golden: Path, tmp_path: Path) -> None:
    tag = golden / "m_list/t_v2.3"
    for path in (tag, tag / "rank0", tag / "rank0/d.pkl"):
        assert store.find(path) == [(tag / "rank0/d.pkl", None, 0)]
    for rank in (10, 2, 1):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}/d.pkl").write_bytes((tag / "rank0/d.pkl").read_bytes())
    assert [source.rank for source in store.find(tmp_path)] == [1, 2, 10]


def test_of_several_dumps_one_must_be_named(golden: Path) -> None:
    with pytest.raises(RecordingError, match="rank0 holds 2 dumps, .*, d_all.pkl: name the one that"):
        store.find(golden / "rr/t_v2.3/rank0")


def test_a_format_that_is_gone_is_told_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever deletes ptdbg_ascend keeps all the rest."""
    gone = formats.entry_points(group="nothing", name="x")
    assert not gone

    class Entry:
        name = "old"

        def load(self) -> Any:
            raise ImportError("No module named 'ptdbg_ascend'")

    told: list[str] = []
    monkeypatch.setattr(formats, "entry_points", lambda group: [Entry()])
    monkeypatch.setattr(formats.logger(), "warning", lambda text, *values: told.append(text % values))
    formats._known.cache_clear()
    try:
        (tmp_path / "d.pkl").write_text("[]")
        with pytest.raises(RecordingError, match=r"d.pkl is not a recording"):
            store.read(tmp_path / "d.pkl")
        with pytest.raises(RecordingError, match=r"holds no recording"):
            store.read(tmp_path)
    finally:
        formats._known.cache_clear()
    assert told == ["recordings of old cannot be read: No module named 'ptdbg_ascend'."]


# --- hostile files -----------------------------------------------------------------------------------------

GOOD = '["Torch_abs_0_forward_input.0", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]]'
OUTPUT = GOOD.replace("input.0", "output")
NAME = '"Torch_abs_0_forward_input.0"'
NO_LINE = "line 1 is not a line of a ptdbg_ascend dump"
DAMAGED: list[tuple[bytes | str, str]] = [
    (pickle.dumps([1, 2]), "line 1 is not a line of a ptdbg_ascend dump: such a line is a list of JSON"),
    (b"\xff\xfe\x00", NO_LINE),
    ("[" * 100_000, NO_LINE),
    (f"{GOOD}\n{GOOD[:-9]}\n", "line 2 is not a line of a ptdbg_ascend dump"),
    ("{}", NO_LINE),
    ("[]", NO_LINE),
    ("[3, 1]", NO_LINE),
    (GOOD.replace("Torch_abs", "../../etc/passwd"), NO_LINE),
    (GOOD.replace("Torch_abs", "Torch_/abs"), NO_LINE),
    (GOOD.replace("Torch_abs", "Torch_\\u0000abs"), NO_LINE),
    (GOOD.replace("abs", "a" * 300), NO_LINE),
    (GOOD.replace("input.0", "input." + "9" * 20), NO_LINE),
    (GOOD.replace("input.0", "input" + ".0" * 200), NO_LINE),
    (f"[{NAME}, 1]", NO_LINE),
    (GOOD.replace("[2]", "[-2]"), "has the shape [-2], which cannot be"),
    (GOOD.replace("[2]", '"2"'), "has the shape '2', which cannot be"),
    (GOOD.replace("[2]", f"[{10**30}]"), "which cannot be"),
    (GOOD.replace("[1.0, 0.0, 0.5]", "7"), NO_LINE),
    (GOOD.replace("[1.0, 0.0, 0.5]", '["a", "b", "c"]'), "which cannot be"),
    (GOOD.replace("1.0,", f"{10**400},"), "which cannot be"),
    (GOOD.replace("1.0,", "9" * 5000 + ","), NO_LINE),
    (GOOD.replace('"torch.float32"', "5"), NO_LINE),
    (
        f"{GOOD}\n{GOOD.replace('input.0', 'input.0.1')}",
        "d.pkl: input.0.1 of Torch.abs.0.forward lies within a value; the file is damaged",
    ),
    ('["Torch_abs_0_forward_stack_info", 5]', NO_LINE),
    ('["Torch_abs_0_forward_stack_info", [["a", "1", "f"]]]', NO_LINE),
]


@pytest.mark.parametrize(("text", "sentence"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_dump_is_one_sentence(tmp_path: Path, text: bytes | str, sentence: str) -> None:
    path = tmp_path / "d.pkl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordingError) as caught:
        store.read(path)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_any_damage_is_a_sentence_or_another_dump(golden: Path, tmp_path: Path) -> None:
    """Bytes changed, cut out and put in anywhere: what is still a dump is compared, the rest is refused."""
    good = (golden / "m_filt/t_v2.3/rank0/d.pkl").read_bytes()
    chance = random.Random(1)
    refused = 0
    for number in range(300):
        text = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            piece = bytes(
                chance.choice(b'[]{}",.0123456789-eE\\\n\x00\xffTnf_') for _ in range(chance.randint(0, 3))
            )
            text[at : at + chance.randint(0, 3)] = piece
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(text)
        try:
            compare(path, golden / "m_filt/t_v2.3/rank0/d.pkl")
        except RecordingError:
            refused += 1
    assert 0 < refused < 300


def test_a_line_that_a_killed_run_tore_is_left_out(tmp_path: Path, told: list[str]) -> None:
    path = tmp_path / "d.pkl"
    path.write_text(f"{GOOD}\n{GOOD.replace('abs', 'exp')[:-9]}")
    (recording,) = store.read(path)
    assert list(recording.records) == ["Torch.abs.0.forward"]
    assert told == [f"{path}, line 2 is torn, as by a run that was killed: it is left out."]


@pytest.mark.parametrize(("factor", "is_fault"), [(1 + 1e-7, False), (1.5, True)])
def test_statistics_without_a_norm_are_judged_by_the_largest_value(
    tmp_path: Path, factor: float, is_fault: bool
) -> None:
    """Of dumps whose .npy files are gone; the old lines have no norm."""
    for whose, mean in (("golden", 0.5), ("target", 0.5 * factor)):
        (tmp_path / whose).mkdir()
        (tmp_path / whose / "d.pkl").write_text(f"{GOOD}\n{OUTPUT.replace('0.5]', f'{mean}]')}\n")
    (found,) = compare(tmp_path / "target", tmp_path / "golden")
    assert (found.located.culprit is not None) == is_fault
    if found.located.culprit is not None:
        assert found.located.culprit.verdict.reason.startswith("off by 0.25 of its size")


@pytest.mark.parametrize("bits", [25, 40])
def test_an_endless_line_is_refused_before_it_is_read(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "d.pkl"
    with path.open("wb") as stream:
        stream.truncate(1 << bits)
    with pytest.raises(RecordingError, match="line 1 is not a line .* not too long"):
        store.read(path)


def test_a_linked_rank_is_not_followed(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "rank0").symlink_to(golden / "m_list/t_v2.3/rank0")
    with pytest.raises(RecordingError, match="holds no recording"):
        store.read(tmp_path)


@pytest.mark.parametrize("make", [os.symlink, lambda _, path: os.mkfifo(path)], ids=["link", "pipe"])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    (tmp_path / "real").write_text(f"{GOOD}\n")
    make(tmp_path / "real", tmp_path / "d.pkl")
    with pytest.raises(RecordingError):
        store.read(tmp_path / "d.pkl")


def test_a_linked_folder_of_tensors_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "d.pkl").write_text(f"{GOOD}\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordingError, match="d is a link, and links are not followed"):
        store.read(tmp_path / "d.pkl")


def test_blank_lines_and_statistics_of_release_4_are_read(tmp_path: Path) -> None:
    (tmp_path / "d.pkl").write_text(f"\n{GOOD.replace('0.5]', '0.5, 1.0]')}\n\n")
    (recording,) = store.read(tmp_path)
    (place,) = places(recording.records["Torch.abs.0.forward"])
    assert place.leaf is not None and place.leaf.stats == Statistics(1.0, 0.0, 0.5, 1.0)


# --- the commands of msprobe -------------------------------------------------------------------------------


def test_msprobe_compares_old_dumps(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the page and the culprit, as for recordings of its own."""
    run = [golden / side / "dump_conv2d_v2.3" for side in ("npu", "bench")]
    assert main(["compare", *map(str, run), "-o", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Tensor.__mul__.0.forward" in told
    assert "dump.py, line 14" in told
    assert {path.suffix for path in tmp_path.iterdir()} >= {".xlsx", ".html", ".txt"}


def test_msprobe_shows_an_old_dump(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(golden / "npu/dump_conv2d_v2.3")]) == 0
    told = capsys.readouterr().out
    assert "pytorch, level L1, task tensor" in told
    assert "calls   Tensor 5, Functional 3, Torch 3" in told
    assert "tensors 43 files" in told


def test_run_ut_leaves_out_calls_whose_arguments_are_not_all_there(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = golden / "m_fwd/t_v2.3/rank0/d.pkl"
    main(["run_ut", "-api_info", str(path), "-o", str(tmp_path)])
    (table,) = tmp_path.glob("accuracy_checking_result_*.csv")
    rows = [line.split(",") for line in table.read_text("utf-8-sig").splitlines()[1:]]
    assert {row[1] for row in rows} == {"SKIP"}
    capsys.readouterr()


def test_an_old_dump_stands_beside_a_new_recording(old: Any, tmp_path: Path) -> None:
    """The same training, recorded by both: every call of the dump is in the recording, with its numbers."""
    import torch

    from msprobe.pytorch import PrecisionDebugger
    from msprobe.pytorch import debugger as door

    folder = train(old, str(tmp_path / "d.pkl"))
    old.seed_all()
    net, config = Net(), tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "dump_path": str(tmp_path / "run"), "rm_dropout": False}))
    try:
        debugger = PrecisionDebugger(str(config))
        debugger.start()
        net(torch.randn(3, 8)).backward()
        debugger.stop()
        debugger.step()
    finally:
        door._the.get().close()
        door._the.clear()
    (found,) = compare(folder, tmp_path / "run")
    dumped = [finding for finding in found.findings if finding.pair.target is not None]
    assert {finding.pair.reason for finding in dumped} == {""}
    assert {finding.result for finding in dumped} == {"Yes"}
    assert len(dumped) > 30
