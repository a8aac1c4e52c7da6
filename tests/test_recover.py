"""After a kill at any moment: the journal, the reader and `msprobe recover` give every finished call."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from msprobe import store
from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Stack
from msprobe.store.finish import Finished
from msprobe.store.recovery import Outcome, recover_all
from msprobe.store.run import Run
from msprobe.store.tensor_file import TensorData
from msprobe.store.writer import Writer

HEADER = Header("statistics", "mix", "pytorch")
TENSOR = Leaf(
    "torch.Tensor",
    dtype="torch.float32",
    shape=(2,),
    stats=Statistics(1.0, 0.0, 0.5, 1.0),
    requires_grad=True,
)


def call(number: int, **fields: Any) -> Record:
    name = CallName.parse(f"Torch.f.{number}.forward")
    return Record(
        name, {"input_args": [TENSOR], **fields}, Stack(0, ("a", "b")), "Module.a.B.forward.0", True
    )


def unfinished(folder: Path, *records: Record, header: Header = HEADER, with_tensors: bool = False) -> Writer:
    """A recording as a killed process leaves it: appended, never published."""
    writer = Writer(folder, header, suffix=".pt", with_tensors=with_tensors)
    for record in records:
        writer.append(record)
    return writer


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_appended_call_is_recovered(tmp_path: Path) -> None:
    folder = tmp_path / "step0/rank"
    unfinished(folder, *(call(number) for number in range(5)))
    assert list(recover_all(tmp_path)) == [Outcome(folder, Finished(5))]
    whole = load(folder / "dump.json")
    assert (list(whole), whole["recovered"], list(whole["data"])) == (
        ["task", "level", "framework", "dump_data_dir", "recovered", "data"],
        {"records": 5, "damaged_lines": 0},
        [f"Torch.f.{number}.forward" for number in range(5)],
    )
    assert load(folder / "stack.json") == {"0": [list(whole["data"]), ["a", "b"]]}
    assert load(folder / "construct.json") == dict.fromkeys(whole["data"], "Module.a.B.forward.0")
    assert names(folder) == ["construct.json", "dump.json", "stack.json"]


def test_recovering_twice_is_harmless(tmp_path: Path) -> None:
    folder = tmp_path / "step0/rank"
    unfinished(folder, call(0))
    list(recover_all(tmp_path))
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}
    assert list(recover_all(tmp_path)) == [Outcome(folder)]
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()} == before


def test_what_was_published_before_is_kept_and_completed(tmp_path: Path) -> None:
    writer = unfinished(tmp_path / "rank", call(0))
    writer.publish()
    writer.append(call(1))
    list(recover_all(tmp_path))
    assert list(load(tmp_path / "rank/dump.json")["data"]) == ["Torch.f.0.forward", "Torch.f.1.forward"]


def test_a_finished_recording_is_not_marked(tmp_path: Path) -> None:
    unfinished(tmp_path / "rank", call(0)).close()
    list(recover_all(tmp_path))
    assert "recovered" not in load(tmp_path / "rank/dump.json")
    assert store.read(tmp_path)[0].recovered is False


def test_level_debug_is_recovered_too(tmp_path: Path) -> None:
    saved = Record(CallName.parse("loss.0.debug"), TENSOR)  # type: ignore[arg-type]
    unfinished(tmp_path / "rank", saved, header=Header("statistics", "debug", "pytorch"))
    list(recover_all(tmp_path))
    assert names(tmp_path / "rank") == ["debug.json"]
    (recording,) = store.read(tmp_path)
    assert (recording.recovered, list(recording.records)) == (True, ["loss.0.debug"])


def test_missing_tensor_files_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "step0/rank"
    records = [
        call(i, output=[TENSOR._replace(data_name=f"Torch.f.{i}.forward.output.0.pt")]) for i in range(3)
    ]
    writer = unfinished(folder, *records, header=Header("tensor", "L1", "pytorch"), with_tensors=True)
    assert writer.tensors is not None
    writer.tensors.put("Torch.f.1.forward.output.0", TensorData(b"\0" * 8, "float32", (2,)))
    writer.tensors.drain()
    missing = ("Torch.f.0.forward.output.0.pt", "Torch.f.2.forward.output.0.pt")
    assert store.read(folder)[0].missing_files == missing
    assert list(recover_all(tmp_path)) == [Outcome(folder, Finished(3, missing))]
    assert load(folder / "dump.json")["missing_files"] == list(missing)
    (recording,) = store.read(folder)
    assert (recording.missing_files, recording.recovered) == (missing, True)


def test_half_written_files_are_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    unfinished(folder, call(0), with_tensors=True)
    left = [".dump.json.77.part", ".journal.log.77.part", "dump_tensor_data/.77-1a.tmp"]
    for name in left:
        (folder / name).write_text("half")
    (folder / "notes.part").write_text("mine")
    list(recover_all(tmp_path))
    kept = ["construct.json", "dump.json", "dump_tensor_data", "notes.part", "stack.json"]
    assert (names(folder), names(folder / "dump_tensor_data")) == (kept, [])


def test_a_recording_that_was_only_begun_leaves_nothing(tmp_path: Path) -> None:
    """Killed between making the folder and naming the journal; folders with anything else in them stay."""
    unfinished(tmp_path / "step0/rank", call(0))
    for folder in ("step1/rank", "step2/rank0", "step3/rank", "step4/rank"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "step1/rank/.journal.log.77.part").write_text("H\t")
    (tmp_path / "step2/rank0/weights.bin").write_text("mine")
    (tmp_path / "step3/notes").write_text("mine")
    assert list(recover_all(tmp_path)) == [Outcome(tmp_path / "step0/rank", Finished(1))]
    assert sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "step0" not in str(path)
    ) == [*("step2", "step2/rank0", "step2/rank0/weights.bin", "step3", "step3/notes")]


def test_earlier_runs_are_recovered_too(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.record(0, None, HEADER, suffix=".pt", with_tensors=False).append(call(0))
    first.close()  # its process died: the journal stays
    second = Run(tmp_path)
    second.record(0, None, HEADER, suffix=".pt", with_tensors=False).append(call(1))
    second.close()
    (place,) = (tmp_path / "previous").iterdir()
    assert list(recover_all(tmp_path)) == [
        Outcome(tmp_path / "step0/rank", Finished(1)),
        Outcome(place / "step0/rank", Finished(1)),
    ]


def test_a_recording_in_progress_is_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    writer = run.record(0, None, HEADER, suffix=".pt", with_tensors=False)
    writer.append(call(0))
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert list(recover_all(tmp_path)) == [Outcome(tmp_path / "step0/rank", holder=holder)]
    writer.append(call(1))
    writer.close()
    run.close()
    assert list(load(tmp_path / "step0/rank/dump.json")["data"]) == ["Torch.f.0.forward", "Torch.f.1.forward"]


def test_one_damaged_journal_does_not_keep_the_others(tmp_path: Path) -> None:
    for step in range(3):
        unfinished(tmp_path / f"step{step}/rank", call(0))
    journal = tmp_path / "step1/rank/journal.log"
    journal.write_bytes(b"nonsense\n")
    damage = f"{journal} has no header line, so nothing of this recording can be read."
    assert list(recover_all(tmp_path)) == [
        Outcome(tmp_path / "step0/rank", Finished(1)),
        Outcome(tmp_path / "step1/rank", damage=damage),
        Outcome(tmp_path / "step2/rank", Finished(1)),
    ]
    assert journal.exists()


@pytest.mark.parametrize(
    ("kept", "damaged"),
    [(0, 1), (1, 1), (-1, 1), (-10, 1), (-100, 1)],
    ids=["one byte", "two bytes", "all but the line feed", "torn in its check", "torn in its fields"],
)
def test_a_torn_last_line_is_dropped(tmp_path: Path, kept: int, damaged: int) -> None:
    folder = tmp_path / "rank"
    unfinished(folder, call(0), call(1))
    journal = folder / "journal.log"
    *whole, last, _ = journal.read_bytes().split(b"\n")
    torn = (last + b"\n")[: kept + 1] if kept >= 0 else (last + b"\n")[:kept]
    journal.write_bytes(b"\n".join([*whole, torn]))
    (outcome,) = recover_all(tmp_path)
    assert outcome.recovered == Finished(1, (), damaged)
    assert list(load(folder / "dump.json")["data"]) == ["Torch.f.0.forward"]


def test_lines_damaged_in_the_middle_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    unfinished(folder, *(call(number) for number in range(4)))
    journal = folder / "journal.log"
    data = bytearray(journal.read_bytes())
    data[data.index(b"Torch.f.1.forward") + 8] ^= 1  # still JSON, still a name, but not what was written
    start = data.index(b"Torch.f.2.forward")
    data[start : start + 40] = bytes(40)  # a lost sector
    journal.write_bytes(data)
    list(recover_all(tmp_path))
    whole = load(folder / "dump.json")
    assert (whole["recovered"], list(whole["data"])) == (
        {"records": 2, "damaged_lines": 2},
        ["Torch.f.0.forward", "Torch.f.3.forward"],
    )


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    unfinished(folder, call(0))
    from msprobe.kernels import checksum

    line = b"H\t2\t{}"
    (folder / "journal.log").write_bytes(line + b"\t" + checksum(line).encode() + b"\n")
    with pytest.raises(RecordingError, match="is not a journal of format 1; use the msprobe that wrote it"):
        store.read(folder)


def test_a_journal_is_never_without_its_header(tmp_path: Path) -> None:
    """It has its name only when the header is in it, so a kill in between leaves no journal at all."""
    code = """
    import os, sys
    from pathlib import Path
    from msprobe.store import journal

    replace = os.replace
    os.replace = lambda *paths: os.kill(os.getpid(), 9)
    journal.Journal(Path(sys.argv[1]), '{"level": "L1"}')
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "journal.log")], check=False)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]


# --- mutations -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    writer = unfinished(
        folder, *(call(number, output=[TENSOR._replace(data_name="x.pt")]) for number in range(3))
    )
    writer.append(call(1)._replace(stack=Stack(1, ("c",))))
    return (folder / "journal.log").read_bytes()


EDIT = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "double", "drop"]), st.integers(0, 5000), st.binary(max_size=9)
)


def mutated(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, text in edits:
        at = place % max(len(data), 1)
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ (place % 255 + 1)]) + data[at + 1 :] if data else data
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + text + data[at:]
        elif kind == "double":
            data = data[:at] + data[at // 2 :]
        else:
            data = data[:at] + data[at + place % 50 :]
    return data


def try_to_read(folder: Path, data: bytes) -> None:
    (folder / "journal.log").write_bytes(data)
    try:
        recordings = store.read(folder)
    except RecordingError:
        return
    (outcome,) = recover_all(folder)
    assert outcome.recovered is not None
    assert [list(recording.records) for recording in store.read(folder)] == [
        list(recording.records) for recording in recordings
    ]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
@example(edits=[("cut", 0, b"")])
def test_a_mutated_journal_reads_or_says_why_not(
    tmp_path: Path, a_journal: bytes, edits: list[tuple[str, int, bytes]]
) -> None:
    try_to_read(tmp_path, mutated(a_journal, edits))


PIECES = [
    *(b"R", b"S", b"H", b"1", b"0", b"-", b"null", b"{}", b"[]", b"[[", b'"x"', b"\xff"),
    *(b'"Torch.f.0.forward"', b'{"level":"L1"}', b'{"data_name":"a","shape":[1]}'),
    b'{"output":[{"type":"t","shape":{}}]}',
]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.lists(st.sampled_from(PIECES), max_size=6), max_size=5))
def test_lines_that_check_but_say_nonsense(tmp_path: Path, lines: list[list[bytes]]) -> None:
    """A line with a right CRC was written by someone: even so nothing but a RecordingError comes of it."""
    from msprobe.kernels import checksum

    texts = [b"\t".join(line) for line in [[b"H", b"1", b'{"level":"L1"}'], *lines]]
    data = b"".join(text + b"\t" + checksum(text).encode() + b"\n" for text in texts)
    (tmp_path / "journal.log").write_bytes(data)
    try:
        store.read(tmp_path)
    except RecordingError as error:
        assert str(error)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_a_mutated_dump_reads_or_says_why_not(tmp_path: Path, edits: list[tuple[str, int, bytes]]) -> None:
    folder = tmp_path / "rank"
    if not (tmp_path / "whole.json").exists():
        unfinished(folder, call(0, output=[TENSOR]), call(1)).close()
        (folder / "dump.json").rename(tmp_path / "whole.json")
    (folder / "dump.json").write_bytes(mutated((tmp_path / "whole.json").read_bytes(), edits))
    try:
        store.read(folder)
    except RecordingError as error:
        assert str(error)


# --- real kills ------------------------------------------------------------------------------------------


@pytest.mark.spec("P18", "PT")
def test_a_few_kills_lose_no_finished_call(tmp_path: Path) -> None:
    """`make prove` does this with a hundred."""
    from killed import check_kill, kills

    checked = [check_kill(kill) for kill in kills(tmp_path, count=6, seed=7)]
    assert len(checked) == 6
    assert sum(kill.noted for kill in checked) > 0
