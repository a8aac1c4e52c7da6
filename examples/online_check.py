"""A Linear that is wrong by 1 %, found while the net trains: `python online_check.py transformer --fault`.

One process trains, with --fault as on a device with a faulty kernel, and sends each call and its gradients to
another one, which computes them again in higher precision. It names the calls of this Linear and no other.
Here both run on this machine and talk over 127.0.0.1; between machines set tls_path on both sides.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from wrong_linear import FAULTY, NETS, faulty_linear

from msprobe.pytorch import PrecisionDebugger


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def start_checker(out: Path, port: int) -> subprocess.Popen[bytes]:
    section = {"is_online": True, "host": "127.0.0.1", "port": port}
    config = {"task": "run_ut", "dump_path": str(out), "run_ut": section}
    (out / "checker.json").write_text(json.dumps(config))
    words = ["-f", "pytorch", "run_ut", "-config", str(out / "checker.json"), "-o", str(out)]
    return subprocess.Popen([sys.executable, "-m", "msprobe", *words])


def train(net: str, fault: bool, out: Path, port: int) -> None:
    torch.manual_seed(9)
    model = NETS[net](fault=False)
    if fault:
        F.linear = faulty_linear(getattr(model, FAULTY[net]))
    optimizer = torch.optim.AdamW(model.parameters())
    section = {"online_run_ut": True, "host": "127.0.0.1", "port": port}
    config = {"task": "tensor", "level": "L1", "dump_path": str(out / "dump"), "tensor": section}
    (out / "training.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(out / "training.json"))
    for _ in range(2):
        debugger.start(model)
        model.loss(torch.Generator().manual_seed(9)).backward()
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--fault", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("online_check"))
    parser.add_argument("--train", metavar="PORT", type=int, help="only the side that trains")
    words = parser.parse_args()
    if words.train is not None:
        train(words.net, words.fault, words.out, words.train)
        return 0
    words.out.mkdir(parents=True, exist_ok=True)
    port = free_port()
    checker = start_checker(words.out, port)
    trained = subprocess.run([sys.executable, *sys.argv, "--train", str(port)])
    if trained.returncode:
        checker.terminate()
    return trained.returncode or checker.wait()


if __name__ == "__main__":
    raise SystemExit(main())
