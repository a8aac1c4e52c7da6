"""One run for bench/compare.py, recorded by whichever tool is there; `--noise` rounds all numbers otherwise.

tensor       one step of a GPT, about 300 MB of tensors
statistics   one step of 20 000 calls
"""

import argparse
import json
import os

import torch
import torch.nn.functional as F
from train import Gpt

CALLS = 20_000
WIDTH, LENGTH, BATCH, HEADS, WORDS = 160, 96, 8, 4, 512


def shaken(model: torch.nn.Module, noise: bool) -> torch.nn.Module:
    """Each weight a rounding or two away, so that every tensor that is computed differs by rounding."""
    if noise:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1.2e-7 * torch.randn_like(parameter))
    return model


def train_gpt(noise: bool):
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
    model = shaken(Gpt(WIDTH, LENGTH, HEADS), noise)

    def step() -> None:
        F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()

    return model, step


def many_calls(noise: bool):
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    model = shaken(torch.nn.Linear(8, 8), noise)

    def step() -> None:
        y = x
        with torch.no_grad():
            for _ in range(CALLS // 4):
                y = torch.tanh(F.linear(y, model.weight, model.bias))
                y = torch.add(y, torch.mul(y, 0.5))

    return model, step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=["tensor", "statistics"], required=True)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tool", choices=["ours", "incumbent"], default="incumbent")
    options = parser.parse_args()
    os.makedirs(options.out, mode=0o750)
    task = {"scope": [], "list": [], "data_mode": ["all"]}
    config = {"task": options.task, "dump_path": options.out, "rank": [], "step": [], "level": "L1"}
    if options.tool == "incumbent":
        config["risk_level"] = "ALL"
    path = f"{options.out}.json"
    with open(path, "w") as stream:
        json.dump({**config, options.task: task}, stream)
    os.chmod(path, 0o640)
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=path)
    model, step = (train_gpt if options.task == "tensor" else many_calls)(options.noise)
    debugger.start(model)
    step()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main()
