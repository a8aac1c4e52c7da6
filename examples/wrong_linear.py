"""A Linear that is wrong by 1 %, found without a second run: `python wrong_linear.py transformer --fault`.

With --fault one Linear of the net is computed as by a device with a faulty kernel. One training step is
recorded with its tensors; run_ut then computes each recorded call again in higher precision and holds what
was recorded against that. It names the calls of this Linear and no other. Without --fault all calls pass.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unstable_torch import ConvNet, Transformer

from msprobe.cli.main import main as msprobe
from msprobe.pytorch import PrecisionDebugger

NETS = {"transformer": Transformer, "conv": ConvNet}
FAULTY = {"transformer": "up", "conv": "head"}


def faulty_linear(layer: nn.Linear) -> Callable[..., Tensor]:
    """F.linear of a device that gets one layer wrong."""
    right = F.linear

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output = right(input, weight, bias)
        return output * 1.01 if weight is layer.weight else output

    return linear


def record(net: str, fault: bool, out: Path) -> Path:
    """Record one training step; the dump.json of it."""
    torch.manual_seed(9)
    model = NETS[net](fault=False)
    if fault:
        F.linear = faulty_linear(getattr(model, FAULTY[net]))
    optimizer = torch.optim.AdamW(model.parameters())
    out.mkdir(parents=True, exist_ok=True)
    config = {"task": "tensor", "level": "L1", "dump_path": str(out / "recording"), "tensor": {}}
    (out / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(out / "config.json"))
    debugger.start(model)
    model.loss(torch.Generator().manual_seed(9)).backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    return out / "recording" / "step0" / "rank" / "dump.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--fault", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("wrong_linear"))
    words = parser.parse_args()
    dump = record(words.net, words.fault, words.out)
    return msprobe(["-f", "pytorch", "run_ut", "-api_info", str(dump), "-o", str(words.out)])


if __name__ == "__main__":
    raise SystemExit(main())
