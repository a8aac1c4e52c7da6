"""The existing tool in environments of its own: it records the same nets, and compares our recordings."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from msprobe import store
from msprobe.record import Leaf, Record, Recording

ROOT = Path(__file__).resolve().parents[1]
FORKS = ROOT / "tests/forks.py"
SCRIPTS = {"golden": ROOT / "tests/golden/pytorch/make_dump.py"}
TRAIN_NET = ROOT / "tests/train_net.py"

OURS, OLD, NEW = "ours", "8.3.3", "26.2.0"
WITH_MINDSPORE = "-mindspore"  # behind a release: its environment that has MindSpore too
LEVELS = ("L1", "L0", "mix")
MODES = ("statistics", "md5", "tensor")


class Order(NamedTuple):
    """One recording to be made."""

    net: str
    level: str
    mode: str
    variant: str = "same"  # perturbed: one weight is another

    def folder(self, root: Path, maker: str) -> Path:
        return root / maker / "_".join(self)

    def argv(self, root: Path, maker: str) -> list[str]:
        extra: dict[str, Any] = {OURS: {"rm_dropout": False}, NEW: {"risk_level": "ALL"}}.get(maker, {})
        task = "tensor" if self.mode == "tensor" else "statistics"
        words = [] if self.net in SCRIPTS else [self.net]
        words += ["--level", self.level, "--task", task, "--out", str(self.folder(root, maker))]
        words += [
            "--summary",
            self.mode if self.mode in ("md5", "sketch") else "statistics",
            "--extra",
            json.dumps(extra),
        ]
        words += ["--perturb", "0.01"] if self.variant == "perturbed" else []
        return words


def python_of(maker: str) -> str:
    """The interpreter of an environment; those of the existing tool are made by `make envs-incumbent`.

    MSPROBE_ENV_8_3_3 and MSPROBE_ENV_26_2_0 may name other places, MSPROBE_ENV_8_3_3_MINDSPORE and
    MSPROBE_ENV_26_2_0_MINDSPORE those that have MindSpore too.
    """
    if maker == OURS:
        return sys.executable
    place = os.environ.get(f"MSPROBE_ENV_{re.sub('[.-]', '_', maker).upper()}", str(ROOT / f".venv-{maker}"))
    python = Path(place).expanduser() / "bin/python"
    if not python.exists():
        pytest.skip(f"there is no environment with release {maker}: run `make envs-incumbent`")
    return str(python)


def run_many(maker: str, target: str, orders: Iterable[tuple[list[str], Path]], preload: str) -> list[int]:
    """Run a script or function once for each order; the exit codes."""
    lines = [json.dumps({"argv": argv, "log": str(log)}) for argv, log in orders]
    environment = dict(os.environ)
    if maker != OURS:
        environment["PYTHONPATH"] = str(ROOT / "tests/prove")  # where synchronous.py is
    result = subprocess.run(
        [python_of(maker), str(FORKS), preload, target],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [int(line) for line in result.stdout.split()]


def record(root: Path, maker: str, orders: Iterable[Order]) -> None:
    """Make recordings, all of one net by one process."""
    (root / maker).mkdir(parents=True, exist_ok=True)
    by_script: dict[Path, list[Order]] = {}
    for order in orders:
        by_script.setdefault(SCRIPTS.get(order.net, TRAIN_NET), []).append(order)
    for script, same in by_script.items():
        lines = [(order.argv(root, maker), order.folder(root, maker).with_suffix(".log")) for order in same]
        at_once = "" if maker == OURS else "synchronous,"
        codes = run_many(maker, str(script), lines, f"torch,torch._dynamo,{at_once}msprobe.pytorch")
        assert dict(zip(same, codes, strict=True)) == dict.fromkeys(same, 0)


def read_step(root: Path, maker: str, order: Order, step: int = 0) -> Recording:
    (recording,) = store.read(order.folder(root, maker) / f"step{step}")
    return recording


class Verdicts(NamedTuple):
    """A result table of the existing compare: for each row its names on both sides and its verdict."""

    rows: list[tuple[str, str, str]]

    @property
    def matched(self) -> float:
        return sum(golden not in ("N/A", "") for _, golden, _ in self.rows) / max(len(self.rows), 1)

    @property
    def judged(self) -> set[str]:
        return {verdict for _, _, verdict in self.rows}


def compare(
    root: Path, release: str, pairs: Mapping[str, tuple[Path, Path]], *words: str
) -> dict[str, Verdicts]:
    """Let the existing tool compare pairs of dump.json files, with more options; its tables."""
    place = root / f"compared-by-{release}"
    framework = "mindspore" if release.endswith(WITH_MINDSPORE) else "pytorch"
    orders = []
    for name, (target, golden) in pairs.items():
        out = place / name
        out.mkdir(parents=True, mode=0o750)
        if release.startswith(OLD):
            request = place / f"{name}.json"
            request.write_text(json.dumps({"npu_path": str(target), "bench_path": str(golden)}))
            request.chmod(0o640)
            argv = ["-f", framework, "compare", "-i", str(request), "-o", str(out), "-s", *words]
        else:
            argv = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *words]
        orders.append((argv, place / f"{name}.log"))
    # MindSpore starts threads when it is imported, which a fork does not have.
    preload = "pandas" if framework == "mindspore" else "torch,pandas,msprobe.msprobe"
    codes = run_many(release, "msprobe.msprobe:main", orders, preload)
    failed = [
        (name, log.read_text()[-1000:])
        for name, code, (_, log) in zip(pairs, codes, orders, strict=True)
        if code
    ]
    assert failed == []
    tables = {name: next((place / name).glob("compare_result*")) for name in pairs}
    if release.startswith(OLD):
        subprocess.run([python_of(release), "-c", _TO_CSV, *map(str, tables.values())], check=True)
        tables = {name: Path(f"{path}.csv") for name, path in tables.items()}
    return {name: _verdicts(path) for name, path in tables.items()}


_TO_CSV = """
import pandas, sys
for path in sys.argv[1:]:
    pandas.read_excel(path, keep_default_na=False).to_csv(path + '.csv')
"""


def _verdicts(path: Path) -> Verdicts:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    verdict = "Result" if "Result" in rows[0] else "Accuracy Reached or Not"
    return Verdicts([(row["NPU Name"], row["Bench Name"], row[verdict]) for row in rows])


# --- rows of a recording ---------------------------------------------------------------------------------


def rows(recording: Recording) -> dict[str, Leaf]:
    """The leaf at each place of the forward records, and of what went into backward."""
    return {
        f"{name}.{slot}": leaf
        for name, call in recording.records.items()
        for slot, leaf in slots(call)
        if call.name.direction == "forward" or slot.startswith("input.")
    }


def slots(call: Record) -> Iterator[tuple[str, Leaf]]:
    """The places of a record, by the names that the existing compare gives to its rows."""
    words = {"input_args": "input", "input_kwargs": "kwargs"}
    for field, tree in call.fields.items():
        if call.name.direction == "parameters_grad":
            yield from _leaves(tree[0], field)
        else:
            yield from _leaves(tree, words.get(field, field))


def _leaves(tree: Any, slot: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(tree, Leaf):
        yield slot, tree
    elif isinstance(tree, (list, dict)):
        for key, item in enumerate(tree) if isinstance(tree, list) else tree.items():
            yield from _leaves(item, f"{slot}.{key}")


_EPSILON = {"torch.float16": 2**-10, "torch.bfloat16": 2**-7}


def disagreement(theirs: Leaf, ours: Leaf | None) -> str | None:
    """In what two leaves differ; mean and norm may do so by the precision of the leaf."""
    if ours is None:
        return "absent"
    if not theirs.is_tensor:
        return None if (theirs.type, theirs.value) == (ours.type, ours.value) else "value"
    for word in ("type", "dtype", "shape", "requires_grad"):
        if getattr(theirs, word) != getattr(ours, word):
            return word
    a, b = theirs.stats, ours.stats
    if not _same(a.max, b.max) or not _same(a.min, b.min):  # type: ignore[union-attr]
        return "max, min"
    scale = max((abs(x) for x in (b.max, b.min) if x is not None and x == x), default=0)  # type: ignore[union-attr]
    precision = 32 * _EPSILON.get(str(theirs.dtype), 2**-23) / (32 if theirs.dtype in _EPSILON else 1)
    if not _close(a.mean, b.mean, precision * scale):  # type: ignore[union-attr]
        return "mean"
    if not _close(a.norm, b.norm, precision * abs(b.norm or 0)):  # type: ignore[union-attr]
        return "norm"
    return None if theirs.checksum == ours.checksum else "crc"


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def _close(a: Any, b: Any, error: float) -> bool:
    return _same(a, b) or (a is not None and b is not None and abs(a - b) <= error)
