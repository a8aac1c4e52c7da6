"""Online check, the parts, in this process: messages, waiting calls, results on disk, keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.errors import ConfigError, UsageError
from msprobe.name import CallName
from msprobe.online import tls
from msprobe.online.blob import Malformed, decode, encode
from msprobe.online.client import Network
from msprobe.online.desk import Desk, Occupied, Refused
from msprobe.online.folder import FolderWay, call_file
from msprobe.online.folder_source import FolderSource
from msprobe.online.kept import Kept
from msprobe.online.ledger import Judged, Ledger, forget_all, left_behind
from msprobe.online.message import (
    MOST_UNANSWERED,
    Farewell,
    Greeting,
    Welcome,
    call_message,
    done_line,
    farewell_line,
    greeting_line,
    read_call,
    read_farewell,
    read_greeting,
    read_line,
    read_welcome,
    welcome_line,
)
from msprobe.online.outbox import Outbox
from msprobe.online.sender import Sender
from msprobe.online.server import listening
from msprobe.online.spool import Spool, Spooled
from msprobe.online.transport import PROTOCOL
from msprobe.online.workers import Task
from msprobe.plural import counted
from msprobe.precheck.calls import Call, Lists
from msprobe.precheck.work import skipped
from msprobe.record import Leaf, Record, leaves
from msprobe.store.dtypes import DTYPES, TensorData
from msprobe.store.dump_json import decode_record
from online_case import Authority, free_port, read_rows
from online_client import call

RUN = "0123456789abcdef" * 2


def joined(chunks: list[Any]) -> bytes:
    return b"".join(bytes(memoryview(chunk).cast("B")) for chunk in chunks if memoryview(chunk).nbytes)


# ---- messages ----


def tensors() -> dict[str, TensorData]:
    """One of each dtype, a scalar and an empty one."""
    made = {}
    for place, (dtype, kind) in enumerate(DTYPES.items()):
        data = np.arange(6, dtype=np.uint8).repeat(kind.numpy.itemsize)
        made[f"t{place}"] = TensorData(data.tobytes(), dtype, (2, 3))
    return {
        **made,
        "scalar": TensorData(b"\1\2\3\4", "float32", ()),
        "empty": TensorData(b"", "int64", (0, 3)),
    }


def test_a_blob_gives_back_what_went_in() -> None:
    found = decode(joined(encode('text "quoted" ü', tensors())))
    assert found.text == 'text "quoted" ü'
    assert {name: bytes(part) for name, part in found.tensors.items()} == {
        name: bytes(tensor.data) for name, tensor in tensors().items()
    }


def test_a_blob_is_a_safetensors_file() -> None:
    library = pytest.importorskip("safetensors")
    found = dict(library.deserialize(joined(encode("text", tensors()))))
    assert {name: bytes(entry["data"]) for name, entry in found.items()} == {
        name: bytes(tensor.data) for name, tensor in tensors().items()
    }
    assert (found["t0"]["dtype"], found["t0"]["shape"]) == ("F64", [2, 3])
    assert (found["scalar"]["dtype"], found["scalar"]["shape"]) == ("F32", [])


def test_a_call_comes_back() -> None:
    record, sent = call(3)
    received = read_call(joined(call_message(7, 2, record, sent)))
    assert (received.sequence, received.step, received.record.name) == (7, 2, record.name)
    assert {name: (bytes(t.data), t.dtype, t.shape) for name, t in received.tensors.items()} == sent
    assert [leaf.data_name for leaf in received.record.fields["input_args"]] == ["0"]


def test_lines_come_back() -> None:
    greeting, welcome = Greeting(RUN, 3), Welcome(5, 6, 7, 8)
    assert read_greeting(greeting_line(greeting)) == greeting
    assert read_welcome(welcome_line(welcome)) == welcome
    assert read_line(done_line(9), "done") == 9
    assert read_farewell(farewell_line(Farewell(2))) == Farewell(2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no line of JSON"),
        ("[" * 60_000, "is no line of JSON"),
        ("1", "does not say greeting"),
        (json.dumps({"greeting": 1}), "does not say who greets"),
        (json.dumps({"greeting": {"run": "../..", "rank": 0}}), "names no run"),
        (json.dumps({"greeting": {"run": RUN, "rank": -1}}), "has no number"),
        (json.dumps({"greeting": {"run": RUN, "rank": True}}), "has no number"),
        (json.dumps({"greeting": {"run": RUN, "rank": 0, "more": 1}}), "does not say who greets"),
        (" " * 70_000, "is a line of 70000 characters"),
    ],
)
def test_a_greeting_that_lies_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read_greeting(text)


def lie(change: Any) -> bytes:
    """The message of a call, its record changed."""
    record, sent = call(0)
    told: dict[str, Any] = {
        "sequence": 1,
        "step": 0,
        "name": str(record.name),
        "record": {
            "input_args": [
                {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [64], "data_name": "0"}
            ],
            "input_kwargs": {},
        },
    }
    change(told)
    return joined(encode(json.dumps(told), sent))


LIES: dict[str, Any] = {
    "has no number where one belongs": lambda told: told.update(sequence=-1),
    "holds a record that cannot be": lambda told: told.pop("step"),
    "cannot be understood: .* is not a record name": lambda told: told.update(name="rm -rf"),
    "its name cannot be shown": lambda told: told.update(name="Torch.abs\n.0.forward"),
    "is no call of an API": lambda told: told.update(name="Module.a.Linear.forward.0"),
    "lacks the tensor '9'": lambda told: told["record"]["input_args"][0].update(data_name="9"),
    "holds a tensor that cannot be": lambda told: told["record"]["input_args"][0].update(shape=[1 << 40]),
    "holds a tensor that cannot": lambda told: told["record"]["input_args"][0].update(dtype="torch.object"),
    "names a tensor twice": lambda told: told["record"].update(output=told["record"]["input_args"]),
    "holds a record of .* parts": lambda told: told["record"]["input_args"].append([1] * 500_000),
    "tensor of dtype '.x1b": lambda told: told["record"]["input_args"][0].update(dtype="\x1b[31m"),
    "holds a record that": lambda told: told["record"]["input_args"][0].update(data_name="../../etc/passwd"),
}


@pytest.mark.parametrize("reason", LIES)
def test_a_call_that_lies_is_refused(reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read_call(lie(LIES[reason]))


def test_a_tensor_without_its_content_is_noticed() -> None:
    def huge(told: dict[str, Any]) -> None:
        told["record"]["input_args"][0] |= {"shape": [1 << 40], "Max": 1.0, "Min": 0.0}
        del told["record"]["input_args"][0]["data_name"]

    assert not read_call(lie(huge)).is_whole
    assert read_call(lie(lambda told: None)).is_whole


@given(st.binary(max_size=200))
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        read_call(content)


@given(st.data())
def test_a_damaged_message_is_read_or_refused(data: st.DataObject) -> None:
    record, sent = call(0, size=4)
    content = bytearray(joined(call_message(1, 0, record, sent)))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        read_call(bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_an_announced_header_is_not_believed() -> None:
    with pytest.raises(Malformed, match="announces a header of"):
        decode(struct.pack("<Q", 1 << 62) + b"{}")


def test_a_record_is_gone_through_once_however_often_it_ran_again() -> None:
    """Sixty kilobytes, nested so, took half a minute."""
    visits = []

    class Counted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            visits.append(self)
            return super().__iter__()

    record: dict[str, Any] = {"input_args": Counted([1])}
    for _ in range(30):
        record = {"recompute": record}
    fields = decode_record("Torch.abs.0.forward", record, "a file").fields
    assert [leaf.value for leaf in leaves(fields)] == [1]
    assert len(visits) == 1


def test_tensors_that_overlap_are_refused() -> None:
    """Each would become a file: a small message could fill the disk."""
    header = {"__metadata__": {"msprobe": ""}, "a": {"data_offsets": [0, 8]}, "b": {"data_offsets": [4, 8]}}
    line = json.dumps(header).encode()
    with pytest.raises(Malformed, match="overlap"):
        decode(struct.pack("<Q", len(line)) + line + bytes(8))


# ---- waiting calls ----


def put(outbox: Outbox, number: int, size: int = 64) -> bool:
    record, sent = call(number, size)
    return outbox.put(0, record, sent)


def taken(outbox: Outbox, most: int = 100) -> list[int]:
    found = []
    while (one := outbox.next(most, 1 << 30)) is not None:
        found.append(one.sequence)
    return found


def test_calls_are_sent_in_order_and_again_until_they_are_acknowledged() -> None:
    outbox = Outbox()
    assert [put(outbox, number) for number in range(4)] == [True] * 4
    assert taken(outbox, most=3) == [1, 2, 3]
    outbox.settle(2)
    assert taken(outbox) == [4]
    outbox.rewind()
    assert taken(outbox) == [3, 4]
    outbox.settle(4)
    assert (outbox.settled, outbox.dropped, outbox.unsettled) == (4, 0, 0)


def test_so_many_bytes_may_be_unanswered() -> None:
    outbox = Outbox()
    for number in range(3):
        put(outbox, number, 1 << 16)
    assert [outbox.next(9, 1 << 19) is not None for _ in range(3)] == [True, False, False]


def test_training_waits_for_room_that_comes() -> None:
    outbox = Outbox(most=1, patience=60)
    put(outbox, 0)
    threading.Timer(0.05, outbox.settle, [1]).start()
    assert put(outbox, 1)


def test_training_does_not_wait_twice_while_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    outbox = Outbox(most=2, patience=0.01)
    assert [put(outbox, number) for number in range(6)] == [True, True, False, False, False, False]
    assert (outbox.waits, outbox.dropped) == (1, 4)
    outbox.settle(1)
    assert [put(outbox, number) for number in range(6, 9)] == [True, False, False]
    assert (outbox.waits, outbox.dropped) == (2, 6)
    assert capsys.readouterr().err.count("is the first call that is not checked") == 1


def test_a_call_that_cannot_be_sent_is_dropped_alone(capsys: pytest.CaptureFixture[str]) -> None:
    outbox = Outbox()
    record, sent = call(0)
    outbox.put(0, record, {**sent, "0": TensorData(b"short", "float32", (64,))})
    put(outbox, 1, 1 << 12)
    put(outbox, 2)
    sizes = []
    while (one := outbox.next(9, 1 << 30)) is not None:
        sizes.append(outbox.message_of(one, 1 << 14) is not None)
    assert (sizes, outbox.dropped, outbox.unsettled) == ([False, False, True], 2, 1)
    outbox.settle(3)
    assert (outbox.settled, outbox.unsettled) == (1, 0)
    assert capsys.readouterr().err.count("a call is not checked, Torch.abs.0.forward for one") == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [("x" * (5 << 20), "its message needs a header of "), ([1] * 500_000, "its message holds a record of ")],
)
def test_what_the_checker_would_refuse_is_not_sent(
    value: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would refuse the whole process."""
    outbox = Outbox()
    record, sent = call(0)
    outbox.put(0, record._replace(fields={**record.fields, "input_kwargs": {"x": Leaf("x", value)}}), sent)
    one = outbox.next()
    assert one is not None and outbox.message_of(one, 1 << 30) is None
    assert (outbox.dropped, outbox.unsettled) == (1, 0)
    assert f"Torch.abs.0.forward for one: {reason}" in capsys.readouterr().err


def test_a_signal_handler_may_train_while_training_waits_here() -> None:
    outbox = Outbox()
    outbox.on_change(lambda: None if outbox.unsettled > 2 else again.append(put(outbox, len(again))))
    again: list[bool] = []
    worker = threading.Thread(target=put, args=(outbox, 0), daemon=True)
    worker.start()
    worker.join(30)
    assert (worker.is_alive(), again) == (False, [True, True])


def test_who_is_refused_waits_for_nothing() -> None:
    outbox = Outbox(most=1, patience=600)
    put(outbox, 0)
    outbox.refuse("rank 7 is not in rank_list")
    assert not put(outbox, 1)
    assert (outbox.unsettled, outbox.dropped, outbox.refused) == (0, 2, "rank 7 is not in rank_list")


# ---- a checker that stalls ----


@contextlib.contextmanager
def silent_checker() -> Iterator[int]:
    """Welcomes everybody and acknowledges nothing; its port."""
    server = pytest.importorskip("websockets.sync.server")

    def greet(talk: Any) -> None:
        read_greeting(talk.recv())
        talk.send(welcome_line(Welcome(0)))
        for _ in talk:
            pass

    with server.serve(greet, "127.0.0.1", 0, subprotocols=[PROTOCOL], max_size=None) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening.socket.getsockname()[1]
        listening.shutdown()
        thread.join()


def test_a_checker_that_stalls_costs_training_one_wait(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with silent_checker() as port:
        outbox = Outbox(most=50, patience=0.05)
        sender = Sender(Network("127.0.0.1", port, None), 0, still=0.1, outbox=outbox)
        sent = [sender.put(0, *call(number)) for number in range(80)]
        assert sent == [True] * 50 + [False] * 30
        assert outbox.waits == 1
        sender.close()
    assert (outbox.settled, outbox.dropped) == (0, 80)
    assert "0 records taken, 80 dropped and not checked (50 of them still waited " in capsys.readouterr().err
    assert set(threading.enumerate()) == before


class SlowWay:
    """Acknowledges a call now and then, and would need long for all of them."""

    def __init__(self, pause: float) -> None:
        self._pause, self._over = pause, threading.Event()

    def carry(self, greeting: Greeting, outbox: Outbox) -> None:
        outbox.reached = True
        while not self._over.wait(self._pause) and (calling := outbox.next()) is not None:
            outbox.settle(calling.sequence)

    def abort(self) -> None:
        self._over.set()


def test_a_checker_that_is_slow_holds_the_end_for_so_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Something is acknowledged all the time; what remains is told while it is waited for, and at the end."""
    outbox = Outbox()
    sender = Sender(SlowWay(0.1), 0, longest=1.0, telling=0.3, outbox=outbox)
    assert all(sender.put(0, *call(number)) for number in range(500))
    sender.close()
    assert 0 < outbox.settled < 500
    assert outbox.settled + outbox.dropped == 500
    *waiting, last = (line.partition("online check: ")[2] for line in capsys.readouterr().err.splitlines())
    waits = r"training is over; waiting for the checker to take (\d+) records, for at most \d s\."
    left = [re.fullmatch(waits, line) for line in waiting]
    numbers = [int(found[1]) for found in left if found]
    assert len(numbers) == len(waiting) > 0
    assert numbers == sorted(numbers, reverse=True)
    taken, dropped = counted(outbox.settled, "record"), outbox.dropped
    assert re.fullmatch(
        rf"{taken} taken, {dropped} dropped and not checked \({dropped} of them still waited after \d+ s\)\.",
        last,
    )


# ---- results on disk ----


def judged(*sequences: int) -> list[Judged]:
    record = Record(CallName("Torch.abs", "forward", 0), {"input_args": [Leaf("int", 1)]})
    return [
        Judged(
            sequence,
            3,
            skipped(Call(record.name._replace(count=sequence), record), "It draws random numbers."),
        )
        for sequence in sequences
    ]


def names(ledger: Ledger) -> tuple[list[str], list[str]]:
    return (
        [row[0] for row in read_rows(ledger.result_file)],
        [row[0] for row in read_rows(ledger.details_file)],
    )


def whole(*numbers: int) -> tuple[list[str], list[str]]:
    return (
        [f"Torch.abs.{number}" for number in numbers],
        [f"Torch.abs.{number}.forward.output.0" for number in numbers],
    )


def test_a_ledger_goes_on_where_it_was_left(tmp_path: Path) -> None:
    first = Ledger(tmp_path, Greeting(RUN, 0))
    first.add(judged(1, 2))
    first.close(finished=False)
    again = Ledger(tmp_path, Greeting(RUN, 0))
    assert (again.resumed, again.done, again.counts, again.result_file) == (
        True,
        2,
        {"SKIP": 2},
        first.result_file,
    )
    again.add(judged(3))
    again.close(finished=True)
    assert names(again) == whole(1, 2, 3)
    assert read_rows(again.result_file)[0] == [
        *("Torch.abs.1", "SKIP", " ", "Step 3. It draws random numbers.", "SKIP", " ", " "),
    ]
    assert left_behind(tmp_path) == [Greeting(RUN, 0)]
    forget_all(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".csv"]


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_rows_that_were_not_acknowledged_are_cut_off(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(tmp_path, Greeting(RUN, 0))
    ledger.add(judged(1))
    (journal,) = tmp_path.glob(".online_*.log")
    before = journal.read_bytes()
    ledger.add(judged(2))
    ledger.close(finished=False)
    after = journal.read_bytes()
    journal.write_bytes(after[: len(before) + cut])  # killed before, or while, the journal was written
    again = Ledger(tmp_path, Greeting(RUN, 0))
    assert again.done == 1
    again.add(judged(2))
    again.close(finished=False)
    third = Ledger(tmp_path, Greeting(RUN, 0))
    assert (third.done, names(third)) == (2, whole(1, 2))
    third.close(finished=True)


def test_every_process_has_tables_of_its_own(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path, Greeting(f"{number:032x}", 5)) for number in range(3)]
    assert len({ledger.result_file for ledger in ledgers}) == 3
    assert all(ledger.result_file.name.endswith("_rank5.csv") for ledger in ledgers)
    for ledger in ledgers:
        ledger.close(finished=True)


def test_tables_that_were_taken_away_are_begun_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Greeting(RUN, 0))
    ledger.add(judged(1))
    ledger.close(finished=False)
    ledger.result_file.unlink()
    again = Ledger(tmp_path, Greeting(RUN, 0))
    assert (again.resumed, again.done) == (False, 0)
    again.close(finished=True)


# ---- tensors that wait ----


def spooled(spool: Spool, number: int, differentiable: bool = True) -> Spooled:
    record, sent = call(number, differentiable=differentiable)
    return spool.put("rank0", read_call(joined(call_message(number + 1, 0, record, sent))))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    out = tmp_path / "spool"
    out.mkdir()
    made = Spool(out)
    yield made
    made.close()
    assert [path.name for path in out.iterdir()] == [".online.lock"]


def files(spool: Spool) -> list[str]:
    return sorted(path.name for path in spool.folder.rglob("*.pt"))


def test_files_stay_as_long_as_somebody_holds_them(spool: Spool) -> None:
    one = spooled(spool, 0)
    assert [leaf.data_name for leaf in one.record.fields["output"]] == ["rank0-1-1.pt"]
    spool.hold(one)
    spool.release(one)
    assert files(spool) == ["rank0-1-0.pt", "rank0-1-1.pt"]
    spool.release(one)
    assert files(spool) == []


def test_calls_are_kept_for_their_gradients_until_the_step_ends(spool: Spool) -> None:
    kept = Kept(spool)
    for number in range(3):
        one = spooled(spool, number, differentiable=number != 1)
        kept.add(f"Torch.abs.{number}", one)
        spool.release(one)  # its row is written
    assert kept.take("Torch.abs.1") is None  # nothing that could have a gradient
    kept.enter(0)
    taken = kept.take("Torch.abs.0")
    assert taken is not None and str(taken.record.name) == "Torch.abs.0.forward"
    spool.release(taken)
    assert (kept.take("Torch.abs.0"), files(spool)) == (None, ["rank0-3-0.pt", "rank0-3-1.pt"])
    kept.enter(1)
    assert (kept.take("Torch.abs.2"), files(spool)) == (None, [])


def test_without_room_the_latest_calls_are_kept(spool: Spool) -> None:
    spool.room = 2 * 2 * (64 * 4 + 4096)
    kept = Kept(spool)
    for number in (0, 1, 2, 2):  # the last one runs again
        one = spooled(spool, number)
        kept.add(f"Torch.abs.{number}", one)
        spool.release(one)
    held = [kept.take(f"Torch.abs.{number}") for number in range(3)]
    assert [one is not None for one in held] == [False, True, True]
    for one in held[1:]:
        assert one is not None
        spool.release(one)
    assert files(spool) == []


def test_small_calls_are_not_kept_for_ever(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of four bytes takes a block of the disk, and a record takes memory."""
    kept = Kept(spool)
    spool.room = 3 * 2 * 4096
    one = spooled(spool, 0)
    assert one.weight > 0
    for number in range(9):
        small = Spooled(one.record, [], 2 * 4096 + 8, one.weight)
        kept.add(f"Torch.abs.{number}", small)
    assert [kept.take(f"Torch.abs.{number}") is not None for number in range(9)] == [False] * 7 + [True] * 2
    spool.room = 1 << 40
    monkeypatch.setattr("msprobe.online.kept._MOST_WEIGHT", 3 * one.weight)
    for number in range(9):
        kept.add(f"Torch.abs.{number}", Spooled(one.record, [], 0, one.weight))
    assert [kept.take(f"Torch.abs.{number}") is not None for number in range(9)] == [False] * 6 + [True] * 3
    spool.release(one)


def test_all_ranks_together_keep_a_quarter_of_the_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=8000))
    made = Spool(tmp_path, ranks=4)
    made.close()
    assert made.room == 500


def test_a_call_that_found_no_room_on_disk_is_not_acknowledged(tmp_path: Path, spool: Spool) -> None:
    async def converse() -> None:
        desk = Desk(tmp_path, spool, never_judged, (0,), Lists())
        run = desk.greet(Greeting(RUN, 0))
        shutil.rmtree(spool.folder)
        await desk.take(run, joined(call_message(1, 0, *call(0))))
        assert (run.ready(), run.done) == ([], 0)
        with pytest.raises(FileNotFoundError) as caught:
            desk.must_work()
        assert caught.value.filename == str(spool.folder / "dump_tensor_data")
        desk.close()

    asyncio.run(converse())


def test_one_folder_has_one_checker(spool: Spool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Another online check writes to"):
        Spool(tmp_path / "spool")


# ---- who may send what ----


def never_judged(task: Task) -> None:
    """In the place of workers."""


def test_nobody_sends_more_than_was_agreed_on(tmp_path: Path, spool: Spool) -> None:
    async def converse() -> None:
        desk = Desk(tmp_path, spool, never_judged, (0,), Lists())
        run = desk.greet(Greeting(RUN, 0))
        numbers = range(MOST_UNANSWERED + 1)
        messages = [joined(call_message(number + 1, 0, *call(number))) for number in numbers]
        for message in [*messages[:-1], messages[3]]:  # one comes again, and is not taken again
            await desk.take(run, message)
        assert (run.accepted, len(run.waiting)) == (MOST_UNANSWERED, MOST_UNANSWERED)
        with pytest.raises(Refused, match="more calls came than were agreed on"):
            await desk.take(run, messages[-1])
        run.waiting.clear()
        desk.stop(run)
        with pytest.raises(Refused, match="it said that it had ended"):
            await desk.take(run, messages[-1])

    asyncio.run(converse())


def test_one_process_of_a_rank_at_a_time(tmp_path: Path, spool: Spool) -> None:
    async def converse() -> None:
        desk = Desk(tmp_path, spool, never_judged, (0, 1), Lists())
        first = desk.greet(Greeting(RUN, 0))
        first.leave = lambda: None  # it is connected
        with pytest.raises(Occupied):
            desk.greet(Greeting("1" * 32, 0))
        assert desk.greet(Greeting(RUN, 0)) is first
        first.leave = None
        assert desk.greet(Greeting("1" * 32, 0)) is not first
        assert (first.stopped, first.complete) == (True, False)
        with pytest.raises(Refused, match="rank 2 is not in rank_list"):
            desk.greet(Greeting(RUN, 2))
        desk.close()

    asyncio.run(converse())


def test_a_rank_does_not_begin_for_ever(tmp_path: Path, spool: Spool) -> None:
    """Each time it gets files of its own."""

    async def converse() -> None:
        desk = Desk(tmp_path, spool, never_judged, (0, 1), Lists())
        for number in range(100):
            desk.greet(Greeting(f"{number:032x}", 0))
        with pytest.raises(Refused, match="has begun 100 times"):
            desk.greet(Greeting(RUN, 0))
        desk.greet(Greeting(RUN, 1))
        desk.close()

    asyncio.run(converse())


def test_a_call_of_many_small_tensors_is_one_message_of_few_frames(tmp_path: Path, spool: Spool) -> None:
    """A library that counts frames refused such a call for ever, and nothing behind it was checked."""
    pytest.importorskip("websockets")
    record, sent = call(0, size=1)
    inputs = [record.fields["input_args"][0]._replace(data_name=str(place)) for place in range(5000)]
    many = record._replace(fields={"input_args": [inputs], "input_kwargs": {}, "output": []})
    calls = [(many, dict.fromkeys(map(str, range(5000)), sent["0"])), call(1, size=3 << 20)]

    async def converse() -> tuple[int, int]:
        sizes: list[int] = []

        def give(task: Task) -> None:
            sizes.append(len(list(leaves(task.call.forward.fields["input_args"]))))
            task.answered(skipped(task.call, "no reason"))

        desk = Desk(tmp_path, spool, give, (0,), Lists())
        writing = asyncio.create_task(desk.write())
        port = free_port()
        async with listening(desk, "127.0.0.1", port, None, 1):
            sender = Sender(Network("127.0.0.1", port, None), 0)
            for one in calls:
                sender.put(0, *one)
            await asyncio.to_thread(sender.close)
        writing.cancel()
        assert sizes == [5000, 1]
        return sender.outbox.settled, sender.outbox.dropped

    assert asyncio.run(converse()) == (2, 0)


def test_so_many_are_let_in_at_a_time(tmp_path: Path, spool: Spool) -> None:
    """Each takes a descriptor: without any left, no tensor could be written."""
    pytest.importorskip("websockets")

    async def knock() -> int:
        desk = Desk(tmp_path, spool, never_judged, (0,), Lists())
        port = free_port()
        async with listening(desk, "127.0.0.1", port, None, 1):
            met = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            await asyncio.wait({asyncio.create_task(met[-1][0].read())})  # the last one is turned away
            found = sum(not reader.at_eof() for reader, _ in met)
            for _, writer in met:
                writer.close()
        return found

    assert asyncio.run(knock()) == 1 + 8 + 32


# ---- a shared folder ----


def sent_through(shared: Path, count: int) -> Path:
    """The folder of a process that sent so many calls and ended."""
    shared.mkdir()
    sender = Sender(FolderWay(str(shared)), 0)
    for number in range(count):
        sender.put(0, *call(number))
    sender.close()
    (folder,) = shared.iterdir()
    return folder


def judged_in(shared: Path, out: Path, spool: Spool, seconds: float = 60.0) -> list[str]:
    """The calls that have a row once all that can be read was read, or after so long."""

    async def read() -> list[str]:
        def give(task: Task) -> None:
            asyncio.get_running_loop().call_soon(task.answered, skipped(task.call, "no reason"))

        desk = Desk(out, spool, give, (0,), Lists())
        source = FolderSource(str(shared), desk)
        tasks = [asyncio.create_task(desk.write()), asyncio.create_task(source.read())]
        deadline = time.monotonic() + seconds
        while not any(run.closed for run in desk.runs.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await source.end()
        for task in tasks:
            task.cancel()
        source.close()
        return [row[0] for run in desk.runs.values() for row in read_rows(run.ledger.result_file)]

    return asyncio.run(read())


def test_what_is_no_file_holds_up_nobody(
    tmp_path: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sent_through(tmp_path / "shared", 6)
    secret = tmp_path / "secret"
    (folder / call_file(2)).rename(secret)
    (folder / call_file(2)).symlink_to(secret)
    (folder / call_file(3)).unlink()
    os.mkfifo(folder / call_file(3))
    (folder / call_file(7)).mkdir()
    found = judged_in(tmp_path / "shared", tmp_path, spool)
    assert found == [f"Torch.abs.{number}" for number in (0, 3, 4, 5)]
    assert secret.exists() and [path.name for path in folder.iterdir()] == [call_file(7)]
    said = capsys.readouterr().err
    assert said.count("is not checked and was removed: it is a link") == 1
    assert said.count("is not checked and was removed: it is not a regular file") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_of_another_user_is_left_alone(
    tmp_path: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    sent_through(tmp_path / "shared", 2).chmod(0o550)
    assert judged_in(tmp_path / "shared", tmp_path, spool, seconds=2) == []
    assert capsys.readouterr().err.count("let one user run both sides") == 1


# ---- keys and certificates ----


@pytest.mark.parametrize("side", [tls.checking_side, tls.training_side])
def test_plain_text_stays_on_this_machine(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tls.PLAIN_ALLOWED, raising=False)
    assert side("", "127.0.0.1") is None
    with pytest.raises(ConfigError, match=r"over the network to 10\.0\.0\.1 in plain text"):
        side("", "10.0.0.1")
    monkeypatch.setenv(tls.PLAIN_ALLOWED, "1")
    assert side("", "10.0.0.1") is None


@pytest.mark.parametrize("missing", ["server.key", "server.crt", "ca.crt"])
def test_each_file_is_needed(tmp_path: Path, missing: str) -> None:
    Authority().issue(tmp_path, "server")
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=f"has no {missing}"):
        tls.checking_side(str(tmp_path), "127.0.0.1")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue(tmp_path, "server")
    certificate = (tmp_path / "server.crt").read_bytes()
    authority.issue(tmp_path, "server")
    (tmp_path / "server.crt").write_bytes(certificate)
    with pytest.raises(ConfigError, match="cannot be used: key values mismatch"):
        tls.checking_side(str(tmp_path), "127.0.0.1")


@pytest.mark.parametrize("name", ["server.key", "server.crt"])
def test_what_is_no_certificate_is_said_to_be_none(tmp_path: Path, name: str) -> None:
    Authority().issue(tmp_path, "server")
    (tmp_path / name).write_text("nothing of the kind")
    with pytest.raises(
        ConfigError, match=r"cannot be used: server\.key or server\.crt is not in PEM format\."
    ):
        tls.checking_side(str(tmp_path), "127.0.0.1")


def test_what_every_client_would_refuse_is_told_at_once(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue(tmp_path, "server")
    assert tls.checking_side(str(tmp_path), "127.0.0.1") is not None
    assert tls.checking_side(str(tmp_path), "10.0.0.1") is not None  # which may have another name outside
    Authority("another").issue(tmp_path, "client")  # and its ca.crt
    with pytest.raises(ConfigError, match="refused by everybody: unable to get local issuer"):
        tls.checking_side(str(tmp_path), "127.0.0.1")
    authority.issue(tmp_path, "server", days=-1)
    with pytest.raises(ConfigError, match="refused by everybody: certificate has expired"):
        tls.checking_side(str(tmp_path), "127.0.0.1")


def test_a_password_needs_a_terminal(tmp_path: Path) -> None:
    Authority().issue(tmp_path, "client", password=b"secret")
    with pytest.raises(ConfigError, match="is encrypted, and there is no terminal"):
        tls.training_side(str(tmp_path), "127.0.0.1")


def test_a_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority().issue(tmp_path, "client", password=b"secret")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "secret")
    assert tls.training_side(str(tmp_path), "127.0.0.1") is not None
