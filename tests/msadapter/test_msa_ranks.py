"""Two workers that msrun starts: the folders of their ranks, and calls that communicate."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")

HERE = Path(__file__).parent
NAME = "Distributed.all_reduce.0.forward"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, place = tmp_path_factory.mktemp("ranks"), Path(sys.executable).parent
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [str(place / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={port}"]
    command += [f"--log_dir={made / 'log'}", "--join=True", str(HERE / "msa_worker.py"), str(made)]
    # msrun starts whatever python stands first on the path
    environment = {**os.environ, "PATH": os.pathsep.join([str(place), os.environ["PATH"]])}
    ended = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, timeout=300)
    logs = "\n".join(file.read_text()[-3000:] for file in sorted((made / "log").glob("worker*")))
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{logs}"
    return made


@pytest.mark.spec("A028", "MSA")
@pytest.mark.spec("A029", "MSA")
def test_a_folder_for_each_rank(folder: Path) -> None:
    found = {path.relative_to(folder).as_posix() for path in folder.glob("dump/step0/*/*")}
    inside = ("dump_tensor_data", "dump.json", "stack.json", "construct.json")
    assert found == {f"dump/step0/rank{rank}/{name}" for rank in (0, 1) for name in inside}


@pytest.mark.spec("A038", "MSA")
@pytest.mark.parametrize("rank", [0, 1])
def test_calls_that_communicate(folder: Path, rank: int) -> None:
    """No CPU has the kernel, so that the call fails: what it was given is recorded, and how it failed."""
    where = folder / f"dump/step0/rank{rank}"
    data = json.loads((where / "dump.json").read_text())["data"]
    assert list(data) == [NAME]
    assert data[NAME]["exception"] == (folder / f"refused{rank}.txt").read_text()[:500]
    assert np.load(where / f"dump_tensor_data/{NAME}.input.0.npy").tolist() == [rank + 1.0] * 2
