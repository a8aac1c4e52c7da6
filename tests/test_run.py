"""One run after another, and beside another, in one folder: they never mix, and none destroys another."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from msprobe import store
from msprobe.store.run import Run
from msprobe.store.writer import Writer
from store_case import HEADER, call, load, logged, record_step, tree, write

__all__ = ["logged"]

# --- one run after another ---------------------------------------------------------------------------


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
        f"could not begin the recording in {tmp_path}/run/step1/rank: it is a link, and links are not "
        "followed; training goes on."
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
import os, sys
from pathlib import Path
from msprobe.name import CallName
from msprobe.record import Header, Record
from msprobe.store.run import Run

def begin(step):
    header = Header("statistics", "L1", "pytorch")
    return run.record(step, rank, header, suffix=".pt", with_tensors=False)

run = Run(Path(sys.argv[1]))
rank = int(sys.argv[2]) if sys.argv[2:] else None
writer = begin(0)
writer.append(Record(CallName.parse("Torch.elsewhere.0.forward"), {"output": []}))
THEN
print("ready", flush=True)
sys.stdin.readline()
writer.close()
"""


def elsewhere(run: Path, *words: str, then: str = "") -> "subprocess.Popen[str]":
    """Another process that records into the folder; it does what `then` says, and ends when it is told."""
    code = RECORD_ELSEWHERE.replace("THEN", then)
    command = [sys.executable, "-c", code, str(run), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begun(process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("then", ["", "writer.close()"], ids=["within a step", "between steps"])
def test_a_second_process_does_not_touch_the_first_ones_folders(
    tmp_path: Path, logged: list[str], then: str
) -> None:
    first = begun(elsewhere(tmp_path, then=then))
    second = Run(tmp_path)
    for step in (0, 1):
        writer = second.record(step, None, HEADER, suffix=".pt", with_tensors=True)
        writer.append(call("Torch.f.0.forward"))
        writer.close()
    assert logged == [
        f"could not begin the recording in {tmp_path}/step0/rank: process {first.pid} on "
        f"{os.uname().nodename} is recording into the 'rank' folders of {tmp_path}, so this process records "
        "nothing; give each process a dump_path of its own, or initialise the process group before start(); "
        "training goes on."
    ]
    first.communicate("\n")
    assert tree(tmp_path) == {"step0/rank": ["Torch.elsewhere.0.forward"]}
    assert not (tmp_path / "step1").exists()
    assert list(tmp_path.rglob("dump_error_info.log")) == []


def test_a_dead_process_gives_its_claim_up(tmp_path: Path) -> None:
    first = begun(elsewhere(tmp_path))
    first.kill()
    first.wait()
    record_step(Run(tmp_path), 0)
    assert tree(tmp_path) == {"step0/rank": ["Torch.f.0.forward"]}
    (unfinished,) = store.read(next((tmp_path / "previous").iterdir()))
    assert (list(unfinished.records), unfinished.finished) == (["Torch.elsewhere.0.forward"], False)


def test_an_orphan_of_a_dead_process_holds_no_claim(tmp_path: Path) -> None:
    """A data loader's worker may outlive the training process by seconds."""
    first = begun(elsewhere(tmp_path, then="if os.fork() == 0: sys.stdin.readline(); os._exit(0)"))
    first.kill()
    first.wait()
    record_step(Run(tmp_path), 0)  # the child still waits for its line
    assert tree(tmp_path) == {"step0/rank": ["Torch.f.0.forward"]}
    assert first.stdin is not None
    first.stdin.close()


def test_ranks_that_begin_together(tmp_path: Path) -> None:
    """Many processes meet in a folder with an old run: each keeps what it records, the old is moved once."""
    for rank in range(4):
        write(tmp_path / f"step0/rank{rank}", call("Torch.old.0.forward"))
    ranks = [elsewhere(tmp_path, str(rank)) for rank in range(4)]
    for process in ranks:
        process.communicate("\n")
    assert tree(tmp_path) == {
        **{f"previous/step0/rank{rank}": ["Torch.old.0.forward"] for rank in range(4)},
        **{f"step0/rank{rank}": ["Torch.elsewhere.0.forward"] for rank in range(4)},
    }
    assert len(list((tmp_path / "previous").iterdir())) == 1


def test_a_refused_process_keeps_nothing_of_its_steps(tmp_path: Path) -> None:
    """Why it was refused is remembered as a sentence: an exception would hold the frames of each step."""

    class Big:
        pass

    begun(elsewhere(tmp_path))
    run = Run(tmp_path)
    kept = []

    def step(number: int) -> None:
        run.record(number, None, HEADER, suffix=".pt", with_tensors=False).close()
        big = Big()
        kept.append(weakref.ref(big))

    for number in range(3):
        step(number)
    assert [reference() for reference in kept] == [None, None, None]
