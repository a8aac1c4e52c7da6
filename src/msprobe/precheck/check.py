"""Story 3 (run_ut): recorded calls of APIs, made again and judged against a more precise reference."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msprobe import store
from msprobe.analyse.standards import ERROR, PASS, SKIP, WARNING
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.metrics.rounding import CANNOT_TELL
from msprobe.name import outer
from msprobe.plural import counted
from msprobe.precheck.calls import Call, Lists, calls_of, reason_to_skip, without_repeats
from msprobe.precheck.judging import Answer
from msprobe.precheck.pool import Lost, Pool
from msprobe.precheck.protocol import CHECK, Order, Ready, call_line, read_answer
from msprobe.precheck.run import HOST
from msprobe.precheck.tables import Tables
from msprobe.precheck.work import AUTO, RECORDED, skipped
from msprobe.record import Recording
from msprobe.report.precheck_csv import Summed
from msprobe.store.layout import TENSOR_FOLDER, make_folder

Progress = Callable[[int, int], None]

_FRAMEWORK = "pytorch"


class Options(NamedTuple):
    """How the calls of one recording are checked."""

    worker: list[str]  # the command that starts one
    lists: Lists = Lists()
    error_folder: Path | None = None  # below which inputs and outputs of failing calls go
    devices: tuple[int, ...] = (0,)
    workers: int = 1
    outputs: str = AUTO
    only_first: bool = False  # of calls that differ in nothing but the values of their tensors
    seconds: float = 300.0  # that one call may take
    threads: int = 0  # of one worker; 0: as many as the framework likes


class Checked(NamedTuple):
    """What a check came to."""

    summed: tuple[Summed, ...]
    result_file: Path
    details_file: Path
    left_out: int  # by only_first
    lost: int  # calls that ended or held up their process
    error_folder: Path | None

    def count(self, status: str) -> int:
        return sum(status_of(call) == status for call in self.summed)

    @property
    def failed(self) -> bool:
        return self.lost > 0 or self.count(ERROR) > 0

    @property
    def nothing_judged(self) -> str:
        """Return, in a sentence, why this check says nothing; empty if it judged a call or failed."""
        if self.failed or self.count(PASS):
            return ""
        unknown, reasons = self.count(CANNOT_TELL), Counter(map(_first_sentence, self.skipped_calls()))
        parts = [f"{counted(unknown, 'call')} cannot be told"] if unknown else []
        if reasons:
            reason, count = reasons.most_common(1)[0]
            number = counted(reasons.total(), "call", "were")
            which = "" if len(reasons) == 1 else f", {count} of them because of this"
            parts.append(f"{number} skipped{which}: {reason.rstrip('. ')}")
        return f"No call was judged: {'; '.join(parts)}."

    def skipped_calls(self) -> Iterator[Summed]:
        """The calls that neither side of was judged."""
        return (call for call in self.summed if status_of(call) == SKIP)


def status_of(call: Summed) -> str:
    """Return the verdict on the whole call: the worse of its two sides; one that was skipped does not count.

    A table of an older release has no verdicts: there it is the specified status, and a warning is a pass.
    """
    has_verdicts = call.forward_verdict or call.backward_verdict
    found = {call.forward_verdict, call.backward_verdict} if has_verdicts else _specified(call)
    return next((status for status in (ERROR, CANNOT_TELL, PASS) if status in found), SKIP)


def _specified(call: Summed) -> set[str]:
    return {PASS if status == WARNING else status for status in (call.forward, call.backward)}


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """The one recording at this path: a dump.json, or the folder that holds it."""
    sources = store.find(path)
    if len(sources) > 1:
        raise UsageError(f"{path} holds {len(sources)} recordings; name the dump.json of one of them.")
    recording = store.read_one(sources[0].path)
    store.must_be_of(recording, _FRAMEWORK)
    return recording


def precheck(api_info: str, tables: Tables, options: Options, progress: Progress) -> Checked:
    """Check each call that is not in the tables already."""
    recording = read_recording(api_info)
    _must_have_contents(recording, options)
    every = calls_of(recording)
    calls = without_repeats(every) if options.only_first else every
    todo = tables.begin(calls)
    error_folder = _error_folder(options, tables.stamp)
    lost = 0
    with Pool(options.worker, orders(recording.folder, options, error_folder), options.seconds) as pool:
        ready = pool.start()
        options.lists.must_be_known(ready.apis)
        _tell(ready, options, recording)
        for done, (call, answer) in enumerate(_in_order(todo, options.lists, pool), 1):
            if isinstance(answer, Lost):
                lost += 1
                logger().warning("%s: %s", call.text, answer.reason)
                answer = skipped(call, answer.reason)
            tables.add(answer)
            progress(len(calls) - len(todo) + done, len(calls))
    summed = tables.finish(calls)
    has_errors = error_folder is not None and error_folder.is_dir()
    return Checked(
        tuple(summed),
        tables.result_file,
        tables.details_file,
        len(every) - len(calls),
        lost,
        error_folder if has_errors else None,
    )


def orders(folder: str, options: Options, error_folder: Path | None = None) -> list[Order]:
    """One for each worker; the tensors of all calls are below the folder."""
    errors = str(error_folder) if error_folder is not None else None
    return [
        Order(
            CHECK,
            folder,
            options.devices[number % len(options.devices)],
            options.outputs,
            errors,
            options.threads,
        )
        for number in range(options.workers)
    ]


def _in_order(calls: Sequence[Call], lists: Lists, pool: Pool) -> Iterator[tuple[Call, Answer | Lost]]:
    """The answers in the order of the calls, whichever worker was the first."""
    answers: dict[int, Answer | Lost] = {}
    for number, call in enumerate(calls):
        reason = reason_to_skip(call, lists)
        if reason is not None:
            answers[number] = skipped(call, reason)
    numbers = [number for number in range(len(calls)) if number not in answers]
    following = 0

    def ready() -> Iterator[tuple[Call, Answer | Lost]]:
        nonlocal following
        while following in answers:
            yield calls[following], answers.pop(following)
            following += 1

    yield from ready()
    for place, line in pool.answers(call_line(calls[number]) for number in numbers):
        answers[numbers[place]] = line if isinstance(line, Lost) else read_answer(line)
        yield from ready()


def _error_folder(options: Options, stamp: str) -> Path | None:
    return None if options.error_folder is None else options.error_folder / f"ut_error_data{stamp}"


def _tell(ready: Ready, options: Options, recording: Recording) -> None:
    log = logger()
    if ready.device != HOST:
        log.info("The checked device is %s; the reference is computed on the CPU.", ready.device)
        return
    uses_recorded = options.outputs == RECORDED or (options.outputs == AUTO and _has_contents(recording))
    if uses_recorded:
        log.info(
            "No accelerator here: where contents were recorded, the recorded outputs are checked against the "
            "CPU in higher precision; elsewhere the CPU kernels of this machine are."
        )
    else:
        log.info(
            "No accelerator here: what is checked are the CPU kernels of this machine, against the CPU in "
            "higher precision."
        )


def _has_contents(recording: Recording) -> bool:
    return (Path(recording.folder) / TENSOR_FOLDER).is_dir()


def _must_have_contents(recording: Recording, options: Options) -> None:
    """What was computed when it was recorded can be judged only by the tensors of then."""
    if _has_contents(recording):
        return
    if options.outputs == RECORDED:
        raise UsageError(
            f"{recording.folder} has no {TENSOR_FOLDER}, so that its recorded outputs cannot be checked; "
            "record with task tensor, or leave --outputs out."
        )
    if recording.header.task == "tensor":
        logger().warning(
            "%s was recorded with tensors, but %s is not there: calls are made again with generated numbers, "
            "and what was computed when they were recorded is not checked.",
            recording.folder,
            TENSOR_FOLDER,
        )


# ---- summary ----


_REASON = re.compile(r"[^.]*\.")


def summary(checked: Checked) -> Iterator[str]:
    """The tables that stand on the screen at the end."""
    passed, failed = checked.count(PASS), checked.count(ERROR)
    unknown, left = checked.count(CANNOT_TELL), checked.count(SKIP)
    rate = f"{100 * passed / (passed + failed):.2f}%" if passed + failed else "-"
    yield from _table(
        "Overall Statistics",
        [
            ("Pass", passed),
            ("Fail", failed),
            ("Cannot Tell", unknown),
            ("Skip", left),
            ("Passing Rate", rate),
        ],
    )
    sides = Counter(
        (call.forward_verdict == ERROR, call.backward_verdict == ERROR) for call in checked.summed
    )
    yield from _table(
        "Detail Statistics",
        [
            ("Only Forward Fail", sides[True, False]),
            ("Only Backward Fail", sides[False, True]),
            ("Both Forward & Backward Fail", sides[True, True]),
        ],
    )
    yield from _table("APIs", _coverage(checked.summed))
    reasons = Counter(map(_first_sentence, checked.skipped_calls()))
    if reasons:
        yield from _table("Skipped", reasons.most_common())


def differences(checked: Checked) -> Iterator[str]:
    """Yield a sentence for each way in which verdicts differ from the specified rule."""
    for status, word in ((PASS, "pass"), (ERROR, "fail")):
        other = [
            call.call
            for call in checked.summed
            if status_of(call) == status and (ERROR in _specified(call)) != (status == ERROR)
        ]
        if other:
            rule = "does not fail them" if status == ERROR else "fails them"
            yield (
                f"The specified rule differs (columns Status and Test Success): {word} by what rounding "
                f"explains: {counted(len(other), 'call')}, and the rule {rule}: {', '.join(other[:3])}"
                f"{', ...' if len(other) > 3 else ''}."
            )


def _coverage(summed: Sequence[Summed]) -> list[tuple[str, object]]:
    apis: dict[str, set[str]] = {}
    for call in summed:
        apis.setdefault(outer(call.call), set()).add(status_of(call))
    judged = sum(found != {SKIP} for found in apis.values())
    return [
        ("Distinct", len(apis)),
        ("Judged", judged),
        ("Share", f"{100 * judged / len(apis):.2f}%" if apis else "-"),
    ]


def _first_sentence(call: Summed) -> str:
    found = _REASON.match(call.message)
    text = found[0] if found else call.message
    return re.sub("^API .* in black list", "API in black list", text)


def _table(title: str, rows: Sequence[tuple[str, object]]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    yield title
    yield "-" * max(len(title), width + 10)
    for name, value in rows:
        yield f"{name:<{width}}  {value!s:>8}"
    yield ""


def stamp_now() -> str:
    return time.strftime("%Y%m%d%H%M%S")


def new_tables(folder: str) -> Tables:
    """Tables of this moment in a folder, which is made."""
    return Tables(output_folder(Path(folder)), stamp_now())


def output_folder(out: Path) -> Path:
    try:
        return make_folder(out)
    except OSError as error:
        raise UsageError(f"The output folder {out} cannot be made: {error.strerror}.") from None
