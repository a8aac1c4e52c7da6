"""Part `checks`: run_ut over scaled tensors and wrong kernels, free_benchmark, overflow_check.

Every tensor that was scaled must be reported by run_ut, and no other. free_benchmark calls again in higher
precision what was computed in half precision: a kernel that is wrong in half precision must be named. What
overflow_check is given is in overflows.py.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from truth import kernel_faults as k
from truth import overflows
from truth.cases import Run, Suite, beside
from truth.jobs import Job, Kind, do
from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, WRONG, Outcome
from truth.part_kernels import ROWS, Row, prepare, train
from truth.recordings import Recordings

__all__ = ["measure", "prepare", "suite"]
SOURCES = (
    "cases.py",
    "kernel_faults.py",
    "nets.py",
    "overflows.py",
    "part_kernels.py",
    "part_checks.py",
    "recording.py",
)
NETS, DTYPES, FACTOR = ("transformer", "conv"), ("float32", "bfloat16"), 1.02
MODE = "tensor"
UT_SCALED, UT_SOUND, UT_ITSELF = "run_ut, scaled by 1.02", "run_ut, sound", "api_precision_compare, itself"
UT_FAULTS = "run_ut, kernel faults"
FREE_FAULTS, FREE_SOUND = "free_benchmark, kernel faults", "free_benchmark, sound"
# A column of our own verdict in the details of run_ut, if there is one; else the specified status counts.
OWN_VERDICTS, REPORTED = ("Verdict", "Our Verdict"), ("error", "fault")
# The faults that free_benchmark is shown: a kernel in half precision, what it does, which call it belongs to.
FREE = (
    ("transformer", "gelu_5%", k.Fault("gelu", 1, k.scaled(1.05)), r"Functional\.gelu\.1\.forward"),
    ("transformer", "linear_5%", k.Fault("addmm", 6, k.scaled(1.05)), r"Functional\.linear\.6\.forward"),
    ("transformer", "norm_row", k.Fault("native_layer_norm", 3, k.row_dropped), r"layer_norm\.3\.forward"),
    ("transformer", "matmul_heads", k.Fault("bmm", 1, k.heads_swapped), r"Torch\.matmul\.1\.forward"),
    ("conv", "conv_5%", k.Fault("convolution", 1, k.scaled(1.05)), r"Functional\.conv2d\.1\.forward"),
    ("conv", "silu_sign", k.Fault("silu", 0, k.negated), r"Functional\.silu\.0\.forward"),
    ("transformer", "gelu_back_5%", k.Fault("gelu_backward", 1, k.scaled(1.05)), r"Functional\.gelu\.1\."),
    ("conv", "silu_back_5%", k.Fault("silu_backward", 0, k.scaled(1.05)), r"Functional\.silu\.0\."),
)  # fmt: skip
FREE_DTYPES = ("bfloat16", "float16")
# The wrong kernels of part `kernels` that run_ut is shown, in each of the dtypes.
UT_ROWS = {
    "transformer": (
        "up_slight",
        "softmax_rolled",
        "heads_swapped",
        "norm_shifted",
        "down_element",
        "norm_back_2%",
        "linear_back_tile",
    ),
    "conv": (
        "conv_slight",
        "norm_shifted",
        "pool_row",
        "conv_weight_grad",
        "norm_back_sign",
        "silu_back_rolled",
    ),
}
SOUND_MODES = ("improve_precision", "add_noise", "bit_noise", "no_change", "change_value")


def suite() -> Suite:
    """The recordings that the checks work on; there are no pairs to compare."""
    made = Suite({}, [], SOURCES)
    for net in NETS:
        for dtype in DTYPES:
            made.add(Run(f"{net}.{dtype}.sound", partial(train, net, dtype, k.EXACT, None)))
            made.add(Run(f"{net}.{dtype}.scaled", _unused, record=partial(_scaled, net, dtype)))
        for dtype in ("float32", *FREE_DTYPES):
            for mode in SOUND_MODES if dtype == "float32" else SOUND_MODES[:1] + SOUND_MODES[3:]:
                for stage in ("forward", "backward"):
                    name = f"{net}.{dtype}.free.{mode}.{stage}"
                    made.add(Run(name, _unused, record=partial(_free, net, dtype, mode, stage, None)))
    for net, dtype, name, fault, _ in _free_faults():
        stage = "backward" if "backward" in fault.kernel else "forward"
        record = partial(_free, net, dtype, "improve_precision", stage, fault)
        made.add(Run(name, _unused, record=record))
    for name, (net, dtype, row) in _ut_faults().items():
        made.add(Run(name, partial(train, net, dtype, k.EXACT, row)))
    overflows.add(made)
    return made


def _ut_faults() -> dict[str, tuple[str, str, Row]]:
    """The runs with a wrong kernel that run_ut checks."""
    return {
        f"{net}.{dtype}.ut.{row.name}": (net, dtype, row)
        for net, names in UT_ROWS.items()
        for dtype in DTYPES
        for row in ROWS[net]
        if row.name in names
    }


def _free_faults() -> Iterator[tuple[str, str, str, k.Fault, str]]:
    """The net, dtype and name of each run with a wrong kernel that free_benchmark watches, and its call."""
    for net, name, fault, culprit in FREE:
        for dtype in FREE_DTYPES:
            yield net, dtype, f"{net}.{dtype}.free.{name}", fault, culprit


def _unused() -> Any:
    raise AssertionError("this run is recorded in its own way")


def _record(net: str, dtype: str, config: str, fault: k.Fault | None = None) -> None:
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(7)
    model, step = train(net, dtype, k.EXACT, None)
    debugger = PrecisionDebugger(config)
    debugger.start(model)
    with k.kernels(k.EXACT, fault, getattr(torch, dtype)):  # the second calls are in float32
        step(0)
    debugger.stop()
    debugger.step()


def _scaled(net: str, dtype: str, config: str) -> None:
    """Record a sound step, and scale what was recorded of outputs and of gradients that calls gave."""
    _record(net, dtype, config)
    folder = Path(json.loads(Path(config).read_text(encoding="utf-8"))["dump_path"])
    for path in folder.glob("step0/rank*/dump_tensor_data/*ward.output.*.pt"):
        value = torch.load(path, weights_only=True)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            path.unlink()  # a tensor that another call was given may be the same file
            torch.save((value * FACTOR).detach().clone(), path)


def _free(net: str, dtype: str, mode: str, stage: str, fault: k.Fault | None, config: str) -> None:
    """Train one step with free_benchmark; it leaves a table in the folder of the recording."""
    keys = json.loads(Path(config).read_text(encoding="utf-8"))
    asked = {"pert_mode": mode, "fuzz_stage": stage, "list": []}
    keys = {"task": "free_benchmark", "level": "L1", "dump_path": keys["dump_path"], "free_benchmark": asked}
    Path(config).write_text(json.dumps(keys), encoding="utf-8")
    _record(net, dtype, config, fault)


# ---- what the checks answer ----


def measure(recordings: Recordings, at_once: int) -> list[Outcome]:
    """Run the checks on the recordings and judge what they report."""
    outcomes = [*_free_outcomes(recordings), *overflows.outcomes(recordings)]
    answers: dict[str, tuple[int, float]] = {}

    def done(job: Job, answer: dict[str, Any]) -> None:
        answers[job.order["name"]] = int(answer["status"]), answer["seconds"]

    do([_run_ut(recordings, run) for run in (*_checked(), *_ut_faults())], at_once, done)
    do([_itself(recordings, run) for run in _checked() if run.endswith("sound")], at_once, done)
    for run in _checked():
        outcomes += _of_run_ut(recordings, run, *answers[run])
    for run, (_, dtype, row) in _ut_faults().items():
        outcomes.append(_of_kernel_fault(recordings, run, dtype, row.culprit, *answers[run]))
    for run in _checked():
        if run.endswith("sound"):
            outcomes += _of_itself(recordings, run, *answers[f"{run} itself"])
    return outcomes


def _checked() -> list[str]:
    return [f"{net}.{dtype}.{kind}" for net in NETS for dtype in DTYPES for kind in ("sound", "scaled")]


def _out(recordings: Recordings, run: str) -> Path:
    return recordings.folder(f"{run}.run_ut", MODE)


def _run_ut(recordings: Recordings, run: str) -> Job:
    out = _fresh(_out(recordings, run))
    dump = next(recordings.folder(run, MODE).glob("step0/rank*/dump.json"))
    argv = ["-f", "pytorch", "run_ut", "-api_info", str(dump), "-o", str(out)]
    return Job(Kind(None), {"argv": argv, "log": str(out / "screen.txt"), "name": run})


def _itself(recordings: Recordings, run: str) -> Job:
    out = _fresh(recordings.folder(f"{run}.itself", MODE))
    details = str(next(_out(recordings, run).glob("accuracy_checking_details_*.csv")))
    argv = ["-f", "pytorch", "api_precision_compare", "-npu", details, "-gpu", details, "-o", str(out)]
    return Job(Kind(None), {"argv": argv, "log": str(out / "screen.txt"), "name": f"{run} itself"})


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def _of_run_ut(recordings: Recordings, run: str, status: int, seconds: float) -> Iterator[Outcome]:
    """One outcome for each floating-point tensor that run_ut judged; gradients are counted apart."""
    out = _out(recordings, run)
    rows = [row for row in _rows(next(out.glob("accuracy_checking_details_*.csv"))) if _is_judged(row)]
    reported = _reported(rows)
    for row in rows:
        name = row["API Name"]
        if run.endswith("scaled"):
            if _is_zero(recordings, run, name):
                continue  # nothing was scaled
            outcome, bench, expected = FIRST if name in reported else NONE, UT_SCALED, name
        else:
            outcome, bench, expected = ACCUSED if name in reported else SOUND, UT_SOUND, ""
        mode = f"{run.split('.')[1]}, {'backward' if '.backward.' in name else 'forward'}"
        words = f"{row['Status']} {row['Message']}"
        share = seconds / len(rows)
        yield Outcome(
            "checks",
            bench,
            f"{run} {name}",
            mode,
            outcome,
            name in reported,
            status,
            name,
            words,
            expected,
            0.0,
            share,
        )


def _of_kernel_fault(
    recordings: Recordings, run: str, dtype: str, culprit: str, status: int, seconds: float
) -> Outcome:
    """Whether run_ut reports the call with the wrong kernel, and no other.

    A wrong result that backward uses again makes the gradients of the same call wrong, too.
    """
    rows = _rows(next(_out(recordings, run).glob("accuracy_checking_details_*.csv")))
    found = list(
        dict.fromkeys(re.sub(r"ward\..*", "ward", row["API Name"]) for row in rows if _is_error(row))
    )
    named = [call for call in found if re.search(culprit, call)]
    owners = {call.rpartition(".")[0] for call in named}
    others = [call for call in found if call.rpartition(".")[0] not in owners]
    outcome = (LISTED if others else FIRST) if named else WRONG if found else NONE if rows else ERROR
    words = f"reports {', '.join(found) or 'nothing'}"
    mode = f"{dtype}, {'backward' if 'backward' in culprit else 'forward'}"
    return Outcome(
        "checks", UT_FAULTS, run, mode, outcome, bool(found), status, "", words, culprit, 0.0, seconds
    )


def _is_judged(row: dict[str, str]) -> bool:
    return row["Status"] != "SKIP" and "float" in row["DEVICE Dtype"]


def _is_zero(recordings: Recordings, run: str, name: str) -> bool:
    path = next(recordings.folder(run, MODE).glob(f"step0/rank*/dump_tensor_data/{name}.pt"), None)
    return path is None or not torch.load(path, weights_only=True).count_nonzero()


def _reported(rows: list[dict[str, str]]) -> set[str]:
    """The tensors that our own verdict reports, or the specified status where there is no such column."""
    return {row["API Name"] for row in rows if _is_error(row)}


def _is_error(row: dict[str, str]) -> bool:
    column = next((each for each in OWN_VERDICTS if each in row), "Status")
    return row[column].strip().lower() in REPORTED


def _of_itself(recordings: Recordings, run: str, status: int, seconds: float) -> Iterator[Outcome]:
    """A device beside itself: one outcome for each API that is judged to be worse."""
    screen = (recordings.folder(f"{run}.itself", MODE) / "screen.txt").read_text(
        encoding="utf-8", errors="replace"
    )
    errors = [line for line in screen.splitlines() if line.startswith("error: ")]
    outcome = ACCUSED if errors else ERROR if status not in (0, 1) else SOUND
    words = errors[0] if errors else screen.strip().splitlines()[-1] if screen.strip() else ""
    mode = run.split(".")[1]
    yield Outcome("checks", UT_ITSELF, run, mode, outcome, bool(errors), status, "", words, "", 0.0, seconds)


def _free_outcomes(recordings: Recordings) -> Iterator[Outcome]:
    for _, dtype, run, _, culprit in _free_faults():
        named = _named(recordings.folder(run, MODE))
        right = [call for call in named or () if re.search(culprit, call)]
        outcome = ERROR if named is None else WRONG if named else NONE
        if right:
            outcome = FIRST if right == named else LISTED
        yield _free_outcome(FREE_FAULTS, run, dtype, outcome, named, culprit)
    for run in suite().runs:
        if match := re.fullmatch(r"\w+\.(\w+)\.free\.(\w+)\.(\w+)", run):
            named = _named(recordings.folder(run, MODE))
            outcome = ERROR if named is None else ACCUSED if named else SOUND
            yield _free_outcome(FREE_SOUND, run, f"{match[1]}, {match[2]}, {match[3]}", outcome, named, "")


def _free_outcome(
    bench: str, run: str, mode: str, outcome: str, named: list[str] | None, expected: str
) -> Outcome:
    words = "no table was written" if named is None else f"names {', '.join(named) or 'nothing'}"
    return Outcome("checks", bench, run, mode, outcome, bool(named), 0, "", words, expected, 0.0, 0.0)


def _named(folder: Path) -> list[str] | None:
    """The calls that the log names, the first of each API; None if nothing was checked.

    The table has what the specified rule reports, which is more; it is there if the check has run.
    """
    if not (folder / "free_benchmark.csv").exists():
        return None
    log = beside(folder, ".log").read_text(encoding="utf-8", errors="replace")
    return list(dict.fromkeys(re.findall(r"(\S+) is not stable under ", log)))
