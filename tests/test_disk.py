"""Whatever the disk does, the store raises nothing: it says so once, notes the reason, and goes on."""

import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from msprobe import store
from msprobe.record import Header, Leaf
from msprobe.store.run import Run
from msprobe.store.tensor_file import TensorData
from msprobe.store.writer import Writer
from store_case import FRAMES, HEADER, TENSOR, call, load, logged, record_step, tree

__all__ = ["logged"]

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
    sentence = f"could not record the inputs of Torch.f.0.forward in {tmp_path}/step0/rank: it failed; "
    assert logged == [f"{sentence}training goes on."] * 2
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
