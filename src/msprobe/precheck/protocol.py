"""What is said between the check and its workers: a line of JSON each way, and never an object of Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from msprobe.analyse.accuracy import Accuracy
from msprobe.metrics.rounding import Judged
from msprobe.name import FORWARD
from msprobe.precheck.arguments import Rebuilder
from msprobe.precheck.calls import Call
from msprobe.precheck.exact_call import Setups, Suspect, replay_suspect
from msprobe.precheck.judging import Answer
from msprobe.precheck.overflow_kind import Overflow, overflow_of
from msprobe.precheck.run import HOST
from msprobe.precheck.work import Setup, check
from msprobe.record import Header, Recording
from msprobe.report.precheck_csv import Result, Summed
from msprobe.store.dump_json import decode_record, encode_fields
from msprobe.verdict.replay_evidence import ReplayEvidence

CHECK, OVERFLOW, SUSPECT = "check", "overflow", "suspect"


class Order(NamedTuple):
    """The first line to a worker."""

    kind: str
    folder: str  # of the recording; for suspects that with the tensor files of the target
    device: int
    outputs: str
    error_folder: str | None
    threads: int
    golden: str | None = None  # for suspects: the folder with the tensor files of the golden run


class Ready(NamedTuple):
    """The first line from a worker."""

    device: str = ""
    apis: tuple[str, ...] = ()
    refused: str = ""  # why it cannot work at all


# ---- lines to a worker ----


def order_line(order: Order) -> str:
    return json.dumps(order._asdict())


def call_line(call: Call) -> str:
    """The records stand in it as they stand in dump.json."""
    forward = encode_fields(call.forward.fields).decode()
    backward = "null" if call.backward is None else encode_fields(call.backward.fields).decode()
    return (
        f'{{"name": {json.dumps(str(call.name))}, "has_backward": {json.dumps(call.has_backward)}, '
        f'"forward": {forward}, "backward": {backward}}}'
    )


def suspect_line(suspect: Suspect) -> str:
    target = "null" if suspect.target is None else call_line(suspect.target)
    rest = json.dumps([suspect.direction, suspect.replaced, suspect.own_units])
    return f'{{"target": {target}, "golden": {call_line(suspect.golden)}, "rest": {rest}}}'


def _suspect(line: str) -> Suspect:
    told = json.loads(line)
    target = None if told["target"] is None else _call(told["target"])
    return Suspect(target, _call(told["golden"]), *told["rest"])


def _call(told: dict[str, Any]) -> Call:
    forward = decode_record(told["name"], told["forward"], "the order")
    backward = None
    if told["backward"] is not None:
        name = str(forward.name.facing("backward"))
        backward = decode_record(name, told["backward"], "the order")
    assert forward.name.direction == FORWARD
    return Call(forward.name, forward, backward, told["has_backward"])


# ---- lines from a worker ----


def read_ready(line: str) -> Ready:
    told = json.loads(line)
    return Ready(told["device"], tuple(told["apis"]), told["refused"])


def _answer_line(answer: Answer | Overflow | ReplayEvidence) -> str:
    if not isinstance(answer, Answer):
        return json.dumps(answer)
    return json.dumps([answer.summed, answer.results])


def read_answer(line: str) -> Answer:
    summed, results = json.loads(line)
    return Answer(Summed(*summed), tuple(map(_result, results)))


def read_overflow(line: str) -> Overflow:
    return Overflow(*json.loads(line))


def read_evidence(line: str) -> ReplayEvidence:
    return ReplayEvidence(*json.loads(line))


def _result(told: list[Any]) -> Result:
    result = Result(*told)
    return result._replace(
        shape=None if result.shape is None else tuple(result.shape),
        accuracy=None if result.accuracy is None else Accuracy(*result.accuracy),
        judged=None if result.judged is None else Judged(*result.judged),
    )


# ---- the worker's part ----


def serve(
    lines: Iterable[str], answers: TextIO, replay: Rebuilder, set_threads: Callable[[int], None]
) -> None:
    """Answer each line; each call begins with the same random numbers, whatever came before it."""

    def say(line: str) -> None:
        answers.write(f"{line}\n")
        answers.flush()

    waiting = iter(lines)
    order = Order(**json.loads(next(waiting)))
    if order.threads:
        set_threads(order.threads)
    try:
        device = HOST if order.kind == SUSPECT else replay.device(order.device)
    except ValueError as error:
        say(json.dumps(Ready(refused=str(error))._asdict()))
        return
    say(json.dumps(Ready(device, tuple(replay.apis()))._asdict()))
    folder = Path(order.error_folder) if order.error_folder is not None else None
    setup = Setup(_recording(order.folder), device, order.outputs, folder)
    random = replay.randomness()
    for line in waiting:
        replay.restore_randomness(random)
        say(_answer_line(_answer(order, line, setup, replay)))


def _answer(order: Order, line: str, setup: Setup, replay: Rebuilder) -> Answer | Overflow | ReplayEvidence:
    if order.kind == SUSPECT:
        ours, theirs = (
            setup._replace(recording=_recording(folder, folder))
            for folder in (order.folder, order.golden or order.folder)
        )
        return replay_suspect(_suspect(line), Setups(ours, theirs), replay)
    call = _call(json.loads(line))
    return overflow_of(call, setup, replay) if order.kind == OVERFLOW else check(call, setup, replay)


def _recording(folder: str, tensor_folder: str | None = None) -> Recording:
    """Where tensor files are; the records come with each call."""
    return Recording(Header("", "", ""), {}, folder, tensor_folder=tensor_folder)
