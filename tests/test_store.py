"""The store: what is appended is what is read; one owner per rank; whatever the disk does, nothing is raised."""

import json
import logging
import math
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe import store
from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Recording, Stack
from msprobe.store.layout import (
    make_below,
    make_folder,
    open_new,
    recording_folders,
    step_and_rank,
    write_whole,
)
from msprobe.store.run import Run
from msprobe.store.tensor_file import TensorData
from msprobe.store.writer import Writer

HEADER = Header("statistics", "mix", "pytorch")
STATS = Statistics(1.5, -2.0, 0.25, 3.0)
TENSOR = Leaf("torch.Tensor", dtype="torch.float32", shape=(2, 3), stats=STATS, requires_grad=True)
FRAMES = ('File a.py, line 1, in f, \n x = "y"', "File b.py, line 2, in <module>, \n f()")


def call(text: str, **fields: Any) -> Record:
    return Record(CallName.parse(text), fields, Stack(0, FRAMES), None, has_parent=True)


def write(folder: Path, *records: Record, header: Header = HEADER) -> Path:
    writer = Writer(folder, header, suffix=".pt", with_tensors=False)
    for record in records:
        writer.append(record)
    writer.close()
    return folder


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages of the log."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    keep = Keep()
    log = logging.getLogger("msprobe")
    log.addHandler(keep)
    yield messages
    log.removeHandler(keep)


# --- the files -------------------------------------------------------------------------------------


LEAVES: list[tuple[str, Leaf | None, str]] = [
    ("tensor", TENSOR,
     '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2, 3],"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":3.0,'
     '"requires_grad":true}'),
    ("integers", TENSOR._replace(dtype="torch.int64", stats=Statistics(2**60, 0, 3.5, 4.0), requires_grad=False),
     '{"type":"torch.Tensor","dtype":"torch.int64","shape":[2, 3],"Max":1152921504606846976,"Min":0,"Mean":3.5,'
     '"Norm":4.0,"requires_grad":false}'),
    ("not finite", TENSOR._replace(stats=Statistics(math.inf, -math.inf, math.nan, math.inf, 0, 2)),
     '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2, 3],"Max":Infinity,"Min":-Infinity,"Mean":NaN,'
     '"Norm":Infinity,"Inf_count":2,"requires_grad":true}'),
    ("counts", TENSOR._replace(stats=STATS._replace(nan=3, inf=1)),
     '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2, 3],"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":3.0,'
     '"Nan_count":3,"Inf_count":1,"requires_grad":true}'),
    ("booleans", TENSOR._replace(dtype="torch.bool", shape=(), stats=Statistics(True, False, None, None)),
     '{"type":"torch.Tensor","dtype":"torch.bool","shape":[],"Max":true,"Min":false,"Mean":null,"Norm":null,'
     '"requires_grad":true}'),
    ("checksum and file", TENSOR._replace(checksum="0badf00d", data_name='a"b.pt'),
     '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2, 3],"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":3.0,'
     '"requires_grad":true,"md5":"0badf00d","data_name":"a\\"b.pt"}'),
    ("sketch", TENSOR._replace(sketch=b"\x00\xff\x10"),
     '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2, 3],"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":3.0,'
     '"requires_grad":true,"sketch":"AP8Q"}'),
    ("further facts", TENSOR._replace(type="torch.distributed.tensor.DTensor", extra={"placements": [{"Shard": {"dim": 0}}]}),
     '{"type":"torch.distributed.tensor.DTensor","dtype":"torch.float32","shape":[2, 3],"Max":1.5,"Min":-2.0,'
     '"Mean":0.25,"Norm":3.0,"requires_grad":true,"placements":[{"Shard":{"dim":0}}]}'),
    ("int", Leaf("int", 3), '{"type":"int","value":3}'),
    ("bool", Leaf("bool", True), '{"type":"bool","value":true}'),
    ("float", Leaf("float", -math.inf), '{"type":"float","value":-Infinity}'),
    ("str", Leaf("str", 'ü"\n\ud800'), '{"type":"str","value":"\\u00fc\\"\\n\\ud800"}'),
    ("slice", Leaf("slice", [None, 0, None]), '{"type":"slice","value":[null,0,null]}'),
    ("dtype", Leaf("torch.dtype", "torch.int32"), '{"type":"torch.dtype","value":"torch.int32"}'),
    ("memory format", Leaf("torch.memory_format", extra={"format": "contiguous_format"}),
     '{"type":"torch.memory_format","format":"contiguous_format"}'),
    ("nothing", None, "null"),
]  # fmt: skip


@pytest.mark.parametrize(("leaf", "text"), [case[1:] for case in LEAVES], ids=[case[0] for case in LEAVES])
def test_a_leaf_is_written_in_its_form_and_read_back(tmp_path: Path, leaf: Leaf | None, text: str) -> None:
    write(tmp_path / "rank", call("Torch.f.0.forward", input_args=[leaf]))
    assert f'"Torch.f.0.forward": {{"input_args":[{text}]}}' in (tmp_path / "rank/dump.json").read_text()
    record = store.read(tmp_path / "rank")[0].records["Torch.f.0.forward"]
    # NaN equals nothing, so that what was read is compared by its text.
    assert repr(record.fields) == repr({"input_args": [leaf]})


def test_the_files_of_a_recording(tmp_path: Path) -> None:
    folder = tmp_path / "run/step3/rank1"
    inside = call(
        "Functional.linear.0.forward", input_args=[Leaf("int", 1)], input_kwargs={}, is_recompute=False
    )
    writer = Writer(folder, Header("tensor", "mix", "pytorch"), suffix=".pt", with_tensors=True)
    writer.append(inside._replace(parent="Module.fc.Linear.forward.0"))
    writer.append(call("Module.fc.Linear.forward.0", output=[None])._replace(stack=Stack(1, FRAMES[1:])))
    writer.append(call("Torch.add.0.forward", output=[])._replace(parent="optimizer", stack=Stack(7, FRAMES)))
    writer.append(Record(CallName.parse("Module.fc.Linear.parameters_grad"), {"weight": [None]}))
    writer.close({"outside the scope": 4})
    assert load(folder / "dump.json") == {
        "task": "tensor",
        "level": "mix",
        "framework": "pytorch",
        "dump_data_dir": str(folder / "dump_tensor_data"),
        "left_out": {"outside the scope": 4},
        "data": {
            "Functional.linear.0.forward": {
                "input_args": [{"type": "int", "value": 1}],
                "input_kwargs": {},
                "is_recompute": False,
            },
            "Module.fc.Linear.forward.0": {"output": [None]},
            "Torch.add.0.forward": {"output": []},
            "Module.fc.Linear.parameters_grad": {"weight": [None]},
        },
    }
    assert load(folder / "stack.json") == {
        "0": [["Functional.linear.0.forward", "Torch.add.0.forward"], list(FRAMES)],
        "1": [["Module.fc.Linear.forward.0"], list(FRAMES[1:])],
    }
    assert load(folder / "construct.json") == {
        "optimizer": None,
        "Functional.linear.0.forward": "Module.fc.Linear.forward.0",
        "Module.fc.Linear.forward.0": None,
        "Torch.add.0.forward": "optimizer",
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        "construct.json",
        "dump.json",
        "dump_tensor_data",
        "stack.json",
    ]


def test_level_debug_has_one_file(tmp_path: Path) -> None:
    saved = Record(CallName.parse("loss.0.debug"), {"a": [TENSOR, None]})  # type: ignore[arg-type]
    write(tmp_path / "rank", saved, header=Header("statistics", "debug", "pytorch"))
    assert [path.name for path in (tmp_path / "rank").iterdir()] == ["debug.json"]
    assert store.read(tmp_path / "rank/debug.json")[0].records == {
        "loss.0.debug": Record(CallName.parse("loss.0.debug"), {"value": {"a": [TENSOR, None]}})
    }


def test_an_empty_recording(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank")
    assert [load(folder / name) for name in ("dump.json", "stack.json", "construct.json")] == [
        {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": {}},
        {},
        {},
    ]


def test_a_record_that_comes_again_replaces_the_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        call("Torch.f.0.backward", output=[Leaf("int", 1)]),
        call("Torch.g.0.backward", output=[]),
        call("Torch.f.0.backward", output=[Leaf("int", 2)]),
    )
    assert list(load(tmp_path / "dump.json")["data"].items()) == [
        ("Torch.g.0.backward", {"output": []}),
        ("Torch.f.0.backward", {"output": [{"type": "int", "value": 2}]}),
    ]


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        (1, {"output": [{"type": "int", "value": 1}], "is_recompute": True}),
        (
            2,
            {
                "output": [{"type": "int", "value": 1}],
                "is_recompute": True,
                "recompute": {"output": [{"type": "int", "value": 2}], "is_recompute": False},
            },
        ),
    ],
    ids=["same", "different"],
)
def test_a_recomputed_call_marks_its_first_run(tmp_path: Path, second: int, kept: dict[str, Any]) -> None:
    """What recomputing gave is kept only where it differs."""
    write(
        tmp_path,
        call("Torch.f.0.forward", output=[Leaf("int", 1)], is_recompute=False),
        call("Torch.g.0.forward", output=[], is_recompute=False),
        call("Torch.f.0.forward", output=[Leaf("int", second)], is_recompute=True),
    )
    assert list(load(tmp_path / "dump.json")["data"].items()) == [
        ("Torch.f.0.forward", kept),
        ("Torch.g.0.forward", {"output": [], "is_recompute": False}),
    ]
    assert store.read(tmp_path)[0].records["Torch.f.0.forward"].fields["is_recompute"] is True


def test_publishing_again_adds_what_came(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER, suffix=".pt", with_tensors=False)
    seen = []
    for number in range(3):
        writer.append(call(f"Torch.f.{number}.forward", output=[]))
        writer.publish()
        before = (tmp_path / "dump.json").stat().st_ino
        writer.publish()  # nothing new: nothing is written
        seen.append(
            (len(load(tmp_path / "dump.json")["data"]), (tmp_path / "dump.json").stat().st_ino == before)
        )
    writer.close()
    assert seen == [(1, True), (2, True), (3, True)]
    assert not (tmp_path / "journal.log").exists()


def test_modes_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Run(tmp_path / "run").record(0, 2, HEADER, suffix=".pt", with_tensors=True).close()
        os.umask(0o777)
        Run(tmp_path / "run").record(1, 3, HEADER, suffix=".pt", with_tensors=True).close()
    finally:
        os.umask(before)
    paths = [path for path in (tmp_path / "run").rglob("*") if path.name != "previous"]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
    assert modes == {(True, 0o750), (False, 0o640)}


def test_a_forked_child_adds_nothing(tmp_path: Path) -> None:
    writer = Run(tmp_path).record(0, None, HEADER, suffix=".pt", with_tensors=False)
    writer.append(call("Torch.f.0.forward", output=[]))
    child = os.fork()
    if child == 0:
        try:
            writer.append(call("Torch.g.0.forward", output=[]))
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    writer.append(call("Torch.f.1.forward", output=[]))
    writer.close()
    assert list(load(tmp_path / "step0/rank/dump.json")["data"]) == ["Torch.f.0.forward", "Torch.f.1.forward"]


# --- reading ---------------------------------------------------------------------------------------


def test_read_takes_a_run_a_step_a_rank_and_a_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for place in ("step10/rank0", "step2/rank1", "step2/rank0", "step2/rank10"):
        write(run / place, call("Torch.f.0.forward", output=[]))
    (run / "notes").mkdir()
    write(run / "previous/20260101000000/step0/rank0", call("Torch.f.0.forward", output=[]))
    found = {
        name: [(recording.step, recording.rank) for recording in store.read(run / name)]
        for name in ("", "step2", "step2/rank1", "step2/rank1/dump.json", "previous/20260101000000")
    }
    assert found == {
        "": [(2, 0), (2, 1), (2, 10), (10, 0)],
        "step2": [(2, 0), (2, 1), (2, 10)],
        "step2/rank1": [(2, 1)],
        "step2/rank1/dump.json": [(2, 1)],
        "previous/20260101000000": [(0, 0)],
    }


def test_read_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "step3/rank1"
    inside = call(
        "Functional.linear.0.forward", input_args=[[TENSOR, None], Leaf("int", 1)], is_recompute=False
    )
    records = [
        inside._replace(parent="Module.fc.Linear.forward.0"),
        call("Module.fc.Linear.forward.0", output=[]),
    ]
    write(folder, *records)
    assert store.read(folder) == [
        Recording(HEADER, {str(record.name): record for record in records}, str(folder), 3, 1)
    ]


def test_an_unfinished_recording_reads_the_same(tmp_path: Path) -> None:
    records = [call("Torch.f.0.forward", output=[TENSOR]), call("Module.a.B.forward.0")._replace(stack=None)]
    writer = Writer(tmp_path / "rank", HEADER, suffix=".pt", with_tensors=False)
    for record in records:
        writer.append(record)
    (unfinished,) = store.read(tmp_path / "rank")
    writer.close()
    (finished,) = store.read(tmp_path / "rank")
    assert (unfinished.finished, finished.finished) == (False, True)
    assert unfinished.records == finished.records == {str(record.name): record for record in records}


def test_the_flat_stacks_of_release_1_2_2(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank", call("Torch.f.0.forward"), call("Torch.f.1.forward"))
    (folder / "stack.json").write_text(
        json.dumps({"Torch.f.0.forward": ["a", "b"], "Torch.f.1.forward": ["c"]})
    )
    records = store.read(folder)[0].records
    assert [record.stack and record.stack.frames for record in records.values()] == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("step3/rank1", (3, 1)),
        ("step0/rank", (0, None)),
        ("step7/proc3111", (7, None)),
        ("rank2", (None, 2)),
        ("x/y", (None, None)),
    ],
)
def test_step_and_rank_from_a_path(
    tmp_path: Path, folder: str, expected: tuple[int | None, int | None]
) -> None:
    assert step_and_rank(tmp_path / folder) == expected


HOSTILE = [
    ("[1]", "is not a recording: it has no 'data' object."),
    ('{"data": []}', "is not a recording: it has no 'data' object."),
    ("{", "is not valid JSON: "),
    ("\xff", "is not valid JSON: "),
    ('{"data": {"x": {}}}', "'x' is not a record name"),
    ('{"data": {"Torch.f.0.forward": 3}}', "Torch.f.0.forward is 3 and no object; the file is damaged."),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": [-1]}'), "has the shape [-1], which cannot be"),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": "2"}'), "has the shape '2', which cannot be"),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": [true]}'), "has the shape [True], which cannot be"),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": [], "Max": [1]}'), "has the statistics ([1], None, None, None, 0, 0), which cannot be"),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": [], "md5": 1}'), "has the dtype, md5 and data_name (None, 1, None), which cannot be"),
    ('{"data": {"Torch.f.0.forward": {"output": [%s]}}}' % ('{"type": "t", "shape": [], "sketch": "!"}'), "has the sketch '!', which cannot be"),
    ('{"data": {"Torch.f.0.forward": %s1%s}}' % ('{"a":' * 800, "}" * 800), "nested too deeply"),
    ("[" * 200_000, "is not valid JSON: "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "dump.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordingError) as error:
        store.read(tmp_path)
    assert sentence in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("stack.json", "[]", "does not hold an object"),
        ("stack.json", '{"0": 5}', "names and frames were expected"),
        ("stack.json", '{"0": [[1], ["x"]]}', "names and frames were expected"),
        ("stack.json", "nonsense", "is not valid JSON"),
        ("construct.json", "[]", "does not hold an object"),
    ],
)
def test_hostile_files_beside_are_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    write(tmp_path, call("Torch.f.0.forward"))
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordingError, match=sentence):
        store.read(tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../x.pt", "a/b.pt", "a\\b.pt", "a\0.pt", "/etc/passwd"])
def test_a_tensor_file_is_a_plain_name(tmp_path: Path, name: str) -> None:
    recording = Recording(HEADER, {}, str(tmp_path))
    with pytest.raises(RecordingError, match="which is no plain file name"):
        store.tensor_path(recording, TENSOR._replace(data_name=name))


def test_where_a_tensor_file_is(tmp_path: Path) -> None:
    recording = Recording(HEADER, {}, str(tmp_path))
    names = (None, "Torch.f.0.forward.input.0.pt", "..a.pt")
    assert [store.tensor_path(recording, TENSOR._replace(data_name=name)) for name in names] == [
        None,
        tmp_path / "dump_tensor_data/Torch.f.0.forward.input.0.pt",
        tmp_path / "dump_tensor_data/..a.pt",
    ]


@pytest.mark.parametrize("name", ["gone", "empty", "empty/file.txt"])
def test_nothing_to_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/file.txt").write_text("{}")
    with pytest.raises(RecordingError, match="holds no recording|is not a recording"):
        store.read(tmp_path / name)


# --- one run after another ---------------------------------------------------------------------------


def record_step(run: Run, step: int = 0, rank: int | None = None, name: str = "Torch.f.0.forward") -> Path:
    writer = run.record(step, rank, HEADER, suffix=".pt", with_tensors=False)
    writer.append(call(name, output=[]))
    writer.close()
    return writer.folder


def tree(root: Path) -> dict[str, list[str]]:
    """Each recording below a folder, and the calls in it; the time in `previous/{time}` is left out."""
    found = {}
    for path in sorted(root.rglob("dump.json")):
        parts = path.parent.relative_to(root).parts
        name = "/".join(("previous", *parts[2:]) if parts[0] == "previous" else parts)
        found[name] = list(load(path)["data"])
    return found


def test_a_second_run_moves_the_first_aside(tmp_path: Path, logged: list[str]) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    record_step(first, 0, name="Torch.old.0.forward")
    record_step(first, 1, name="Torch.old.0.forward")
    first.close()
    record_step(second, 0)
    assert tree(tmp_path) == {
        "previous/step0/rank": ["Torch.old.0.forward"],
        "previous/step1/rank": ["Torch.old.0.forward"],
        "step0/rank": ["Torch.f.0.forward"],
    }
    assert not (tmp_path / "step1").exists()
    (place,) = (tmp_path / "previous").iterdir()
    assert logged == [f"{tmp_path} held an older recording; it is now in {place}."]


def test_runs_within_one_second_do_not_meet(tmp_path: Path) -> None:
    for number in range(4):
        run = Run(tmp_path)
        record_step(run, 0, name=f"Torch.f.{number}.forward")
        run.close()
    names = {tuple(load(path)["data"]) for path in (tmp_path / "previous").glob("*/step0/rank/dump.json")}
    assert names == {("Torch.f.0.forward",), ("Torch.f.1.forward",), ("Torch.f.2.forward",)}


def test_the_same_step_again_moves_its_first_recording_aside(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for number in range(2):
        record_step(run, 0, name=f"Torch.f.{number}.forward")
    assert tree(tmp_path) == {
        "previous/step0/rank": ["Torch.f.0.forward"],
        "step0/rank": ["Torch.f.1.forward"],
    }


def test_a_new_run_moves_all_ranks_of_the_old_one_to_one_place(tmp_path: Path) -> None:
    """Also those that it does not use itself, and folders of other releases."""
    old = [Run(tmp_path) for _ in range(3)]
    for rank, run in enumerate(old):
        record_step(run, 0, rank, "Torch.old.0.forward")
        run.close()
    write(tmp_path / "step0/proc77", call("Torch.other.0.forward"))
    for name in ("rank0", "rank1", "rank2"):  # claimed long before this process began
        os.utime(tmp_path / ".claims" / name, (1, 1))
    new = [Run(tmp_path) for _ in range(2)]
    for rank in (1, 0):
        record_step(new[rank], 0, rank)
    assert tree(tmp_path) == {
        "previous/step0/proc77": ["Torch.other.0.forward"],
        **{f"previous/step0/rank{rank}": ["Torch.old.0.forward"] for rank in range(3)},
        **{f"step0/rank{rank}": ["Torch.f.0.forward"] for rank in range(2)},
    }
    assert len(list((tmp_path / "previous").iterdir())) == 1


def test_a_rank_that_has_ended_already_stays(tmp_path: Path) -> None:
    """It began after this process was started, so it belongs to the same run."""
    quick, slow = Run(tmp_path), Run(tmp_path)
    record_step(quick, 0, 1)
    quick.close()
    record_step(slow, 0, 0)
    assert tree(tmp_path) == {f"step0/rank{rank}": ["Torch.f.0.forward"] for rank in range(2)}


def test_a_rank_known_late_is_claimed_when_it_is_known(tmp_path: Path) -> None:
    old = Run(tmp_path)
    record_step(old, 1, 0, "Torch.old.0.forward")
    old.close()
    run = Run(tmp_path)
    record_step(run, 0, None)
    record_step(run, 1, 0)
    assert tree(tmp_path) == {
        "previous/step1/rank0": ["Torch.old.0.forward"],
        "step0/rank": ["Torch.f.0.forward"],
        "step1/rank0": ["Torch.f.0.forward"],
    }


def test_foreign_files_stay_where_they_are(tmp_path: Path) -> None:
    foreign = ["model.pt", "step0/weights.bin", "step5/rank0/shard.bin", "steps/rank/dump.json", "stepX/a"]
    for name in foreign:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("foreign")
    write(tmp_path / "step0/rank", call("Torch.old.0.forward"))
    record_step(Run(tmp_path), 0)
    assert [(tmp_path / name).read_text() for name in foreign] == ["foreign"] * len(foreign)


def test_links_are_moved_and_never_followed(tmp_path: Path, logged: list[str]) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    write(outside / "rank", call("Torch.outside.0.forward"))
    (run / "step1").mkdir(parents=True)
    (run / "step0").symlink_to(outside)
    (run / "step1/rank").symlink_to(outside / "rank")
    record_step(Run(run), 0)
    assert tree(outside) == {"rank": ["Torch.outside.0.forward"]}
    assert list(load(run / "step0/rank/dump.json")["data"]) == ["Torch.f.0.forward"]
    (place,) = (run / "previous").iterdir()
    assert ((place / "step0").is_symlink(), (place / "step1/rank").is_symlink()) == (True, True)


def test_a_link_that_comes_later_is_refused(tmp_path: Path, logged: list[str]) -> None:
    run, outside = Run(tmp_path / "run"), tmp_path / "outside"
    record_step(run, 0)
    outside.mkdir()
    (tmp_path / "run/step1").symlink_to(outside)
    record_step(run, 1)
    assert list(outside.iterdir()) == []
    assert [line for line in logged if "links are not followed" in line] == [
        f"could not begin the recording in {tmp_path}/run/step1/rank: it is a link, and links are not followed; "
        "training goes on."
    ]


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    folder = tmp_path / "rank"
    folder.mkdir()
    for name in ("dump.json", "stack.json", "journal.log", "dump_error_info.log"):
        (folder / name).symlink_to(precious)
    writer = Writer(folder, HEADER, suffix=".pt", with_tensors=False)
    writer.append(call("Torch.f.0.forward"))
    writer.tell("do something", ValueError("it failed"))
    writer.close()
    assert precious.read_text() == "keep me"
    assert not any(path.is_symlink() for path in folder.iterdir())


RECORD_ELSEWHERE = """
import sys, time
from pathlib import Path
from msprobe.name import CallName
from msprobe.record import Header, Record
from msprobe.store.run import Run

run = Run(Path(sys.argv[1]))
writer = run.record(0, None, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False)
writer.append(Record(CallName.parse("Torch.elsewhere.0.forward"), {"output": []}))
{then}
print("ready", flush=True)
sys.stdin.readline()
writer.close()
"""


def elsewhere(run: Path, then: str = "") -> "subprocess.Popen[str]":
    """Another process that has begun to record into the folder, and goes on until it is told."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RECORD_ELSEWHERE).replace("{then}", then), str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("then", ["", "writer.close(); writer = run.record(7, None, writer_header, suffix='.pt', with_tensors=False)"], ids=["within a step", "between steps"])  # fmt: skip
def test_a_second_process_does_not_touch_the_first_ones_folders(
    tmp_path: Path, logged: list[str], then: str
) -> None:
    then = then.replace("writer_header", "Header('statistics', 'L1', 'pytorch')")
    first = elsewhere(tmp_path, then)
    second = Run(tmp_path)
    writers = [second.record(step, None, HEADER, suffix=".pt", with_tensors=True) for step in (0, 1)]
    for writer in writers:
        writer.append(call("Torch.f.0.forward"))
        writer.close()
    assert logged == [
        f"could not begin the recording in {tmp_path}/step0/rank: process {first.pid} on {os.uname().nodename} is "
        f"recording into the 'rank' folders of {tmp_path}, so this process records nothing; give each process a "
        "dump_path of its own, or initialise the process group before start(); training goes on."
    ]
    first.communicate("\n")
    assert tree(tmp_path)["step0/rank"] == ["Torch.elsewhere.0.forward"]
    assert not (tmp_path / "step1").exists()
    assert list(tmp_path.rglob("dump_error_info.log")) == []


def test_a_dead_process_gives_its_claim_up(tmp_path: Path) -> None:
    first = elsewhere(tmp_path)
    first.kill()
    first.wait()
    record_step(Run(tmp_path), 0)
    assert tree(tmp_path) == {"step0/rank": ["Torch.f.0.forward"]}
    (unfinished,) = store.read(next((tmp_path / "previous").iterdir()))
    assert (list(unfinished.records), unfinished.finished) == (["Torch.elsewhere.0.forward"], False)


def test_an_orphan_of_a_dead_process_holds_no_claim(tmp_path: Path) -> None:
    """A data loader's worker may outlive the training process by seconds."""
    first = elsewhere(tmp_path, "import os\nif os.fork() == 0: sys.stdin.readline(); os._exit(0)")
    first.kill()
    first.wait()
    record_step(Run(tmp_path), 0)  # the child still waits for its line
    assert tree(tmp_path) == {"step0/rank": ["Torch.f.0.forward"]}
    assert first.stdin is not None
    first.stdin.close()


def test_ranks_that_begin_together(tmp_path: Path) -> None:
    """Many processes meet in a folder with an old run: each keeps its own recording, the old ones are moved once."""
    for rank in range(4):
        write(tmp_path / f"step0/rank{rank}", call("Torch.old.0.forward"))
    code = RECORD_ELSEWHERE.replace("run.record(0, None", "run.record(0, int(sys.argv[2])").replace(
        "{then}", ""
    )
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for rank in range(4)
    ]
    for process in ranks:
        process.communicate(b"\n")
    assert tree(tmp_path) == {
        **{f"previous/step0/rank{rank}": ["Torch.old.0.forward"] for rank in range(4)},
        **{f"step0/rank{rank}": ["Torch.elsewhere.0.forward"] for rank in range(4)},
    }
    assert len(list((tmp_path / "previous").iterdir())) == 1


# --- the disk --------------------------------------------------------------------------------------


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows beyond 4 kB: the kernel cuts a write short and refuses the next, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGXFSZ, old)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_once_and_training_goes_on(
    tmp_path: Path, logged: list[str], full_disk: None
) -> None:
    run = Run(tmp_path)
    for step in range(2):
        writer = run.record(step, None, HEADER, suffix=".pt", with_tensors=False)
        for number in range(50):
            writer.append(call(f"Torch.f.{number}.forward", output=[TENSOR]))
        writer.publish()
        writer.close()
        assert (writer.records + writer.lost, writer.lost > 0) == (50, True)
    assert (
        len(logged) == len(set(logged)) <= 4
    )  # a cut write and refused ones, of the journal and of the JSON files
    assert all(line.endswith("training goes on.") for line in logged)
    assert "errors of these kinds followed" in (tmp_path / "step0/rank/dump_error_info.log").read_text()


def test_after_a_full_disk_the_journal_has_all_but_the_lost(tmp_path: Path, full_disk: None) -> None:
    writer = Writer(tmp_path / "rank", HEADER, suffix=".pt", with_tensors=False)
    for number in range(50):
        writer.append(call(f"Torch.f.{number}.forward", output=[TENSOR]))
    (recording,) = store.read(tmp_path / "rank")
    assert list(recording.records) == [f"Torch.f.{number}.forward" for number in range(writer.records)]
    assert 0 < writer.records < 50


def test_what_a_full_disk_tore_is_left_out_and_said_so(tmp_path: Path, full_disk: None) -> None:
    writer = Writer(tmp_path / "rank", HEADER, suffix=".pt", with_tensors=False)
    for number in range(50):
        writer.append(call(f"Torch.f.{number}.forward", output=[TENSOR]))
    lost = writer.lost
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )
    writer.append(call("Torch.g.0.forward", output=[TENSOR]))  # there is room again
    writer.close()
    whole = load(tmp_path / "rank/dump.json")
    assert (whole["lost_records"], len(whole["data"]), list(whole["data"])[-1]) == (
        lost,
        51 - lost,
        "Torch.g.0.forward",
    )
    (recording,) = store.read(tmp_path / "rank")
    assert recording.lost_records == lost
    stack = recording.records["Torch.g.0.forward"].stack
    assert stack is not None
    assert stack.frames == FRAMES


def test_a_folder_that_vanishes_is_told_once(tmp_path: Path, logged: list[str]) -> None:
    run = Run(tmp_path / "run")
    writer = run.record(0, None, HEADER, suffix=".pt", with_tensors=True)
    writer.append(call("Torch.f.0.forward"))
    shutil.rmtree(tmp_path / "run")
    writer.append(call("Torch.f.1.forward"))
    writer.publish()
    writer.publish()
    writer.close()
    assert logged == [
        "could not write the JSON files (`msprobe recover` makes them from the journal) in "
        f"{tmp_path}/run/step0/rank: No such file or directory; training goes on."
    ]
    record_step(run, 1)  # the next step is recorded again
    assert tree(tmp_path / "run") == {"step1/rank": ["Torch.f.0.forward"]}


@pytest.mark.parametrize("path", ["file/run", "/proc/msprobe/run"])
def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, logged: list[str], path: str) -> None:
    (tmp_path / "file").write_text("")
    run = Run(tmp_path / path)
    for step in range(3):
        writer = run.record(step, None, HEADER, suffix=".pt", with_tensors=True)
        writer.append(call("Torch.f.0.forward"))
        writer.publish()
        writer.close()
        assert writer.tensors is None
    (line,) = logged
    assert line.startswith(f"could not begin the recording in {tmp_path / path}/step0/rank: ")


def test_a_value_that_cannot_be_written_is_told_and_the_next_goes_on(
    tmp_path: Path, logged: list[str]
) -> None:
    folder = tmp_path / "rank"
    writer = Writer(folder, HEADER, suffix=".pt", with_tensors=False)
    for number in range(3):
        writer.append(call(f"Torch.f.{number}.forward", input_args=[Leaf("int", 10**5000)]))
    writer.append(call("Torch.g.0.forward", input_args=[Leaf("int", 1)]))
    writer.close()
    assert list(load(folder / "dump.json")["data"]) == ["Torch.g.0.forward"]
    assert load(folder / "dump.json")["lost_records"] == 3
    assert len(logged) == 1
    log = (folder / "dump_error_info.log").read_text()
    assert ("ValueError" in log, "2 further errors of these kinds followed" in log) == (True, True)


def test_each_kind_of_trouble_is_told_once_in_a_run(tmp_path: Path, logged: list[str]) -> None:
    run = Run(tmp_path)

    def trouble(kind: type[Exception]) -> Exception:
        try:
            raise kind("it failed")
        except kind as error:
            return error

    for step in range(3):
        writer = run.record(step, None, HEADER, suffix=".pt", with_tensors=False)
        for number in range(4):
            writer.tell(f"record the inputs of Torch.f.{number}.forward", trouble(ValueError))
            writer.tell(f"record the inputs of Torch.f.{number}.forward", trouble(TypeError))
        writer.close()
    assert (
        logged
        == [
            f"could not record the inputs of Torch.f.0.forward in {tmp_path}/step0/rank: it failed; training goes on."
        ]
        * 2
    )
    logs = [(tmp_path / f"step{step}/rank/dump_error_info.log").read_text() for step in range(3)]
    assert [log.count("[ERROR]") for log in logs] == [3, 3, 3]


def test_tensor_files_that_were_lost_are_listed(tmp_path: Path, logged: list[str]) -> None:
    folder = tmp_path / "rank"
    writer = Writer(folder, Header("tensor", "L1", "pytorch"), suffix=".pt", with_tensors=True)
    assert writer.tensors is not None
    writer.tensors.put("good", TensorData(b"\0" * 4, "float32", (1,)))
    writer.tensors.put("lost", TensorData(b"\1" * 3, "float32", (1,)))  # one byte too few
    writer.append(call("Torch.f.0.forward", output=[TENSOR._replace(data_name="lost.pt")]))
    writer.append(call("Torch.f.1.forward", output=[TENSOR._replace(data_name="good.pt")]))
    writer.close()
    assert load(folder / "dump.json")["missing_files"] == ["lost.pt"]
    assert len(logged) == 1
    assert store.read(folder)[0].missing_files == ("lost.pt",)


# --- small parts -------------------------------------------------------------------------------------


def test_a_whole_file_or_the_old_one(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    write_whole(tmp_path / "x", [b"old"])
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", chunks())
    assert ([path.name for path in tmp_path.iterdir()], (tmp_path / "x").read_bytes()) == (["x"], b"old")


def test_folders_below_a_run_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked-run").symlink_to(
        tmp_path / "real"
    )  # the run's folder itself may be one: the user chose it
    assert make_below(tmp_path / "linked-run", tmp_path / "linked-run/a/b").is_dir()
    (tmp_path / "real/link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="links are not followed"):
        make_below(tmp_path / "real", tmp_path / "real/link/x")


def test_make_folder_makes_all_that_is_missing(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a/b/c").is_dir()
    assert make_folder(tmp_path / "a/b/c") == tmp_path / "a/b/c"


def test_open_new_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("keep")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    os.close(open_new(tmp_path / "file"))
    assert ((tmp_path / "file").is_symlink(), (tmp_path / "target").read_text()) == (False, "keep")


def test_recordings_are_found_in_order_and_links_are_not_entered(tmp_path: Path) -> None:
    for place in ("step10/rank1", "step9/rank0", "step9/proc5", "rank/x"):
        write(tmp_path / place, call("Torch.f.0.forward"))
    (tmp_path / "step11").symlink_to(tmp_path / "step9")
    found = [str(folder.relative_to(tmp_path)) for folder in recording_folders(tmp_path)]
    assert found == ["step9/rank0", "step9/proc5", "step10/rank1"]
