"""Which recordings of the two nets are wanted, and the frame of the scripts that make them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

LEVELS = ("L0", "L1", "mix")
TESTS = Path(__file__).parent
ARCHIVE = TESTS / "golden/across.tar.xz"
SCRIPTS = {
    "mindspore": TESTS / "ms/across_mindspore.py",
    "pytorch": TESTS / "ms/across_torch.py",
}


class Wanted(NamedTuple):
    """One recording: of a net, at a level, of statistics, md5 or tensor, of the net as it is or changed."""

    net: str
    level: str
    mode: str = "statistics"
    variant: str = "same"

    @property
    def name(self) -> str:
        return "_".join(self)


NETS = ("transformer", "resnet")
_CHANGED = [
    Wanted(net, level, variant=variant) for net in NETS for level in LEVELS for variant in ("eps", "other")
]
_APPROXIMATED = [Wanted("transformer", level, variant="gelu") for level in LEVELS]
MODES = (("L0", "statistics"), ("L1", "md5"), ("L1", "tensor"), ("mix", "statistics"), ("mix", "tensor"))
# For comparisons within MindSpore: of every kind one recording, and one of the same net with another weight.
_READ = [Wanted("transformer", *each, variant) for each in MODES for variant in ("same", "perturbed")]
_SAME = [Wanted(net, level) for net in NETS for level in LEVELS]
WANTED = {
    "mindspore": list(dict.fromkeys([*_SAME, *_CHANGED, *_APPROXIMATED, *_READ])),
    "pytorch": [*_SAME, Wanted("transformer", "mix", "tensor")],
}


def main(record: Callable[[Wanted, str], float]) -> None:
    """Make the recordings that the command names, NET_LEVEL_MODE_VARIANT, below the folder named first."""
    folder, *names = sys.argv[1:]
    for name in names:
        wanted = Wanted(*name.split("_"))
        task = "tensor" if wanted.mode == "tensor" else "statistics"
        section = {"summary_mode": "md5"} if wanted.mode == "md5" else {}
        keys = {"task": task, "level": wanted.level, "dump_path": str(Path(folder) / name), task: section}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            json.dump(keys, config)
            config.flush()
            print(f"{name}: loss {record(wanted, config.name):.6f}", flush=True)


def record_all(framework: str, folder: Path, wanted: Iterable[Wanted]) -> dict[str, float]:
    """Make recordings in a process of their own; the loss of each."""
    command = [sys.executable, str(SCRIPTS[framework]), str(folder), *(each.name for each in wanted)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.split(": loss ") for line in done.stdout.splitlines() if ": loss " in line)
    return {name: float(loss) for name, loss in lines}
