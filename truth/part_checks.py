"""Part `checks`: run_ut over recordings with scaled tensors, and free_benchmark over faulty kernels.

Every tensor that was scaled must be reported by run_ut, and no other. free_benchmark calls again in higher
precision what was computed in half precision: a kernel that is wrong in half precision must be named.
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
from truth.cases import Run, Suite
from truth.jobs import Job, Kind, do
from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, Outcome
from truth.part_kernels import prepare, train
from truth.recordings import Recordings

__all__ = ["measure", "prepare", "suite"]
SOURCES = ("cases.py", "kernel_faults.py", "nets.py", "part_kernels.py", "part_checks.py", "recording.py")
NETS, DTYPES, FACTOR = ("transformer", "conv"), ("float32", "bfloat16"), 1.02
MODE = "tensor"
UT_SCALED, UT_SOUND, UT_ITSELF = "run_ut, scaled by 1.02", "run_ut, sound", "api_precision_compare, itself"
FREE_FAULTS, FREE_SOUND = "free_benchmark, kernel faults", "free_benchmark, sound"
# A column of our own verdict in the details of run_ut, if there is one; else the specified status counts.
OWN_VERDICTS, REPORTED = ("Verdict", "Our Verdict"), ("error", "fault")
# The faults that free_benchmark is shown: a kernel in bfloat16, what it does, which call it belongs to.
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
SOUND_MODES = ("improve_precision", "add_noise", "bit_noise", "no_change")


def suite() -> Suite:
    """The recordings that the checks work on; there are no pairs to compare."""
    made = Suite({}, [], SOURCES)
    for net in NETS:
        for dtype in DTYPES:
            made.add(Run(f"{net}.{dtype}.sound", partial(train, net, dtype, k.EXACT, None)))
            made.add(Run(f"{net}.{dtype}.scaled", _unused, record=partial(_scaled, net, dtype)))
            for mode in SOUND_MODES if dtype == "float32" else SOUND_MODES[:1] + SOUND_MODES[3:]:
                for stage in ("forward", "backward"):
                    name = f"{net}.{dtype}.free.{mode}.{stage}"
                    made.add(Run(name, _unused, record=partial(_free, net, dtype, mode, stage, None)))
    for net, name, fault, _ in FREE:
        stage = "backward" if "backward" in fault.kernel else "forward"
        record = partial(_free, net, "bfloat16", "improve_precision", stage, fault)
        made.add(Run(f"{net}.free.{name}", _unused, record=record))
    return made


def _unused() -> Any:
    raise AssertionError("this run is recorded in its own way")


def _record(net: str, dtype: str, config: str, fault: k.Fault | None = None) -> None:
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(7)
    model, step = train(net, dtype, k.EXACT, None)
    debugger = PrecisionDebugger(config)
    debugger.start(model)
    with k.kernels(k.EXACT, fault, torch.bfloat16):
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
    outcomes = list(_free_outcomes(recordings))
    answers: dict[str, tuple[int, float]] = {}

    def done(job: Job, answer: dict[str, Any]) -> None:
        answers[job.order["name"]] = int(answer["status"]), answer["seconds"]

    do([_run_ut(recordings, run) for run in _checked()], at_once, done)
    do([_itself(recordings, run) for run in _checked() if run.endswith("sound")], at_once, done)
    for run in _checked():
        outcomes += _of_run_ut(recordings, run, *answers[run])
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


def _is_judged(row: dict[str, str]) -> bool:
    return row["Status"] != "SKIP" and "float" in row["DEVICE Dtype"]


def _is_zero(recordings: Recordings, run: str, name: str) -> bool:
    path = next(recordings.folder(run, MODE).glob(f"step0/rank*/dump_tensor_data/{name}.pt"), None)
    return path is None or not torch.load(path, weights_only=True).count_nonzero()


def _reported(rows: list[dict[str, str]]) -> set[str]:
    """The tensors that our own verdict reports, or the specified status where there is no such column."""
    column = next((each for each in OWN_VERDICTS if rows and each in rows[0]), "Status")
    return {row["API Name"] for row in rows if row[column].strip().lower() in REPORTED}


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
    for net, name, _, culprit in FREE:
        run = f"{net}.free.{name}"
        named = _named(recordings.folder(run, MODE))
        right = [call for call in named if re.search(culprit, call)]
        others = sorted(set(named) - set(right))
        words = f"names {', '.join(named) or 'nothing'}"
        outcome = FIRST if right and not others else LISTED if right else NONE
        yield Outcome(
            "checks", FREE_FAULTS, run, "bfloat16", outcome, bool(named), 0, "", words, culprit, 0.0, 0.0
        )
    for run in suite().runs:
        if match := re.fullmatch(r"\w+\.(\w+)\.free\.(\w+)\.(\w+)", run):
            named = _named(recordings.folder(run, MODE))
            words = f"names {len(named)} calls: {', '.join(named[:5])}"
            outcome = ACCUSED if named else SOUND
            mode = f"{match[1]}, {match[2]}, {match[3]}"
            yield Outcome("checks", FREE_SOUND, run, mode, outcome, bool(named), 0, "", words, "", 0.0, 0.0)


def _named(folder: Path) -> list[str]:
    table = folder / "free_benchmark.csv"
    return list(dict.fromkeys(row["api_name"] for row in _rows(table))) if table.exists() else []
