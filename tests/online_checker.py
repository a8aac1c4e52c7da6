"""The checking side, quickly: `online_checker.py CONFIG OUT SECONDS`.

It has a worker without a framework, and waits no longer than this for a rank that is not there.
"""

from __future__ import annotations

import sys

from msprobe.config import RunUt, Scene, load
from msprobe.online.receiver import Patience, check_online
from msprobe.precheck.check import Options
from msprobe.precheck.pool import command_of


def main() -> int:
    path, out, seconds = sys.argv[1:]
    config, _ = load(path, scene=Scene.PYTORCH)
    assert isinstance(config.section, RunUt)
    options = Options(command_of("online_worker"))
    outcome = check_online(config.section, out, options, Patience(float(seconds), float(seconds)))
    print("\n".join(outcome.told()))
    return int(outcome.failed)


if __name__ == "__main__":
    raise SystemExit(main())
