"""The store: what is appended is what is in the files, and what is read back."""

import json
import math
import os
import stat
import tracemalloc
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
from msprobe.store.writer import Writer
from store_case import FRAMES, HEADER, STATS, TENSOR, call, load, write

# --- the files -------------------------------------------------------------------------------------


def tensor_text(after: str, *, dtype: str = "torch.float32", shape: str = "[2,3]", stats: str = "") -> str:
    stats = stats or '"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":3.0'
    return f'{{"type":"torch.Tensor","dtype":"{dtype}","shape":{shape},{stats},{after}}}'


GRAD = '"requires_grad":true'
LEAVES: list[tuple[str, Leaf | None, str]] = [
    ("tensor", TENSOR, tensor_text(GRAD)),
    (
        "integers",
        TENSOR._replace(dtype="torch.int64", stats=Statistics(2**60, 0, 3.5, 4.0), requires_grad=False),
        tensor_text(
            '"requires_grad":false',
            dtype="torch.int64",
            stats='"Max":1152921504606846976,"Min":0,"Mean":3.5,"Norm":4.0',
        ),
    ),
    (
        "not finite",
        TENSOR._replace(stats=Statistics(math.inf, -math.inf, math.nan, math.inf, 0, 2)),
        tensor_text(GRAD, stats='"Max":Infinity,"Min":-Infinity,"Mean":NaN,"Norm":Infinity,"Inf_count":2'),
    ),
    (
        "a norm beyond all numbers",
        TENSOR._replace(stats=Statistics(1.5, -2.0, 0.25, math.inf)),
        tensor_text(GRAD, stats='"Max":1.5,"Min":-2.0,"Mean":0.25,"Norm":Infinity'),
    ),
    (
        "counts",
        TENSOR._replace(stats=STATS._replace(nan=3, inf=1)),
        tensor_text(f'"Nan_count":3,"Inf_count":1,{GRAD}'),
    ),
    (
        "booleans",
        TENSOR._replace(dtype="torch.bool", shape=(), stats=Statistics(True, False, None, None)),
        tensor_text(
            GRAD, dtype="torch.bool", shape="[]", stats='"Max":true,"Min":false,"Mean":null,"Norm":null'
        ),
    ),
    (
        "checksum and file",
        TENSOR._replace(checksum="0badf00d", data_name='a"b.pt'),
        tensor_text(f'{GRAD},"md5":"0badf00d","data_name":"a\\"b.pt"'),
    ),
    (
        "sketch",
        TENSOR._replace(sketch=b"\x00\xff\x10" * 85 + b"\x00"),
        tensor_text(f'{GRAD},"sketch":"cs64:{"AP8Q" * 85}AA=="'),
    ),
    (
        "further facts",
        TENSOR._replace(extra={"placements": [{"Shard": {"dim": 0}}]}),
        tensor_text(f'{GRAD},"placements":[{{"Shard":{{"dim":0}}}}]'),
    ),
    ("int", Leaf("int", 3), '{"type":"int","value":3}'),
    ("bool", Leaf("bool", True), '{"type":"bool","value":true}'),
    ("float", Leaf("float", -math.inf), '{"type":"float","value":-Infinity}'),
    ("str", Leaf("str", 'ü"\n'), '{"type":"str","value":"\\u00fc\\"\\n"}'),
    ("a float that is none", Leaf("float", math.nan), '{"type":"float","value":NaN}'),
    ("an int of 67 bits", Leaf("int", 2**66), '{"type":"int","value":73786976294838206464}'),
    ("floats in a list", Leaf("slice", [math.inf, 0.5]), '{"type":"slice","value":[Infinity,0.5]}'),
    ("slice", Leaf("slice", [None, 0, None]), '{"type":"slice","value":[null,0,null]}'),
    ("dtype", Leaf("torch.dtype", "torch.int32"), '{"type":"torch.dtype","value":"torch.int32"}'),
    (
        "memory format",
        Leaf("torch.memory_format", extra={"format": "contiguous_format"}),
        '{"type":"torch.memory_format","format":"contiguous_format"}',
    ),
    ("nothing", None, "null"),
]


@pytest.mark.parametrize(("leaf", "text"), [case[1:] for case in LEAVES], ids=[case[0] for case in LEAVES])
def test_a_leaf_is_written_in_its_form_and_read_back(tmp_path: Path, leaf: Leaf | None, text: str) -> None:
    write(tmp_path / "rank", call("Torch.f.0.forward", input_args=[leaf]))
    assert f'"Torch.f.0.forward": {{"input_args":[{text}]}}' in (tmp_path / "rank/dump.json").read_text()
    record = store.read(tmp_path / "rank")[0].records["Torch.f.0.forward"]
    # NaN equals nothing, so that what was read is compared by its text.
    assert repr(record.fields) == repr({"input_args": [leaf]})


def test_half_a_character_is_written_in_ascii(tmp_path: Path) -> None:
    write(tmp_path / "rank", call("Torch.f.0.forward", input_args=[Leaf("str", "a\udc80")]))
    assert '{"type":"str","value":"a\\udc80"}' in (tmp_path / "rank/dump.json").read_text("ascii")


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


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """Also where no step ever ends: what is in the journal is not in memory."""
    writer = Writer(tmp_path, HEADER, suffix=".pt", with_tensors=False)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(36_000):
            stats = Statistics(float(number), 0.0, 0.0, 0.0)
            writer.append(call(f"Torch.f.{number}.forward", output=[TENSOR._replace(stats=stats)]))
            if number in (15_000, 35_000):
                sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()
        writer.publish()
        published, peak = tracemalloc.get_traced_memory()
        writer.close()
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 1_000_000
    assert (peak - sizes[1]) / 36_000 < 800  # publishing keeps an index: names and places, no descriptions
    assert published < 1_000_000


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


def with_leaf(fields: str) -> str:
    return f'{{"data": {{"Torch.f.0.forward": {{"output": [{{"type": "t", {fields}}}]}}}}}}'


HOSTILE = [
    ("[1]", "is not a recording: it has no 'data' object."),
    ('{"data": []}', "is not a recording: it has no 'data' object."),
    ("{", "is not valid JSON: "),
    ("\xff", "is not valid JSON: "),
    ("[" * 200_000, "is not valid JSON: "),
    ('{"data": {"x": {}}}', "'x' is not a record name"),
    ('{"data": {"Torch.f.0.forward": 3}}', "Torch.f.0.forward is 3 and no object; the file is damaged."),
    ('{"data": {"Torch.f.0.forward": ' + '{"a":' * 800 + "1" + "}" * 802, "nested too deeply"),
    (with_leaf('"shape": [-2]'), "has the shape [-2], which cannot be"),
    (with_leaf('"shape": "2"'), "has the shape '2', which cannot be"),
    (with_leaf('"shape": [true]'), "has the shape [True], which cannot be"),
    (
        with_leaf('"shape": [], "Max": [1]'),
        "has the statistics ([1], None, None, None, 0, 0), which cannot be",
    ),
    (with_leaf('"shape": [], "md5": 1'), "has the md5 1, which cannot be"),
    (with_leaf('"shape": [], "sketch": "!"'), "has the sketch '!', which cannot be"),
]


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
    root = tmp_path / "rank0"  # a run's folder may be called so too
    for place in ("step10/rank1", "step9/rank0", "step9/proc5", "rank2/x", "rank3/step0/rank", "other/rank"):
        write(root / place, call("Torch.f.0.forward"))
    (root / "step11").symlink_to(root / "step9")
    (root / "step12/rank").mkdir(parents=True)
    found = [str(folder.relative_to(root)) for folder in recording_folders(root)]
    assert found == ["rank3/step0/rank", "step9/rank0", "step9/proc5", "step10/rank1"]


@pytest.mark.parametrize("runs", [2, 3, 4])
def test_many_differing_runs_keep_the_first_and_the_second(tmp_path: Path, runs: int) -> None:
    write(
        tmp_path,
        *(call("Torch.f.0.forward", output=[Leaf("int", run)], is_recompute=run > 0) for run in range(runs)),
    )
    text = (tmp_path / "dump.json").read_text()
    assert text.count('"recompute"') == 1
    entry = load(tmp_path / "dump.json")["data"]["Torch.f.0.forward"]
    assert (entry["output"][0]["value"], entry["recompute"]["output"][0]["value"]) == (0, 1)


def test_a_second_run_that_names_no_files_is_the_same(tmp_path: Path) -> None:
    named = TENSOR._replace(data_name='odd"\\name.pt')
    write(
        tmp_path,
        call("Torch.f.0.forward", is_recompute=False, output=[named, TENSOR]),
        call("Torch.f.0.forward", is_recompute=True, output=[named._replace(data_name=None), TENSOR]),
    )
    entry = load(tmp_path / "dump.json")["data"]["Torch.f.0.forward"]
    assert (entry["is_recompute"], "recompute" in entry, entry["output"][0]["data_name"]) == (
        True,
        False,
        'odd"\\name.pt',
    )
