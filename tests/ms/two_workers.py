"""What each of two workers does, which test_ms_ranks.py starts: two_workers.py FOLDER ["ranks only"]."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import comm_func, get_rank, init

from msprobe.mindspore import PrecisionDebugger

FOLDER = Path(sys.argv[1])


def t(value: float) -> Tensor:
    return Tensor(np.full((2, 2), value, np.float32))


@contextmanager
def recording(name: str, model: Any = None, **keys: Any) -> Iterator[None]:
    """One step of a run of its own below FOLDER."""
    path = FOLDER / f"{name}{get_rank()}.json"
    path.write_text(json.dumps({"dump_path": str(FOLDER / name), **keys}))
    debugger = PrecisionDebugger(str(path))
    debugger.start(model)
    yield
    debugger.stop()
    debugger.step()
    PrecisionDebugger.the.get().close()
    PrecisionDebugger.the.clear()


class Summing(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.reduce = nn.Dense(2, 2), ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce(self.fc(x))


def communicate() -> None:
    rank = get_rank()
    with recording("calls", level="L1", task="tensor"):
        shared = t(rank + 1)
        mint.distributed.all_reduce(shared)
        ops.abs(shared)
        try:
            comm_func.all_reduce(t(rank + 1))[0].asnumpy()
        except RuntimeError as error:  # a CPU has no kernel for it
            (FOLDER / f"refused{rank}.txt").write_text(str(error))


def train(net: nn.Cell) -> list[Any]:
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(np.ones(parameter.shape, np.float32) * 0.5))
    step = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), None, net.trainable_params())
    loss, gradients = step(t(get_rank() + 1))
    return [value.asnumpy().tolist() for value in (loss, *gradients)]


def train_recorded() -> None:
    alone, equal = train(Summing()), {}
    for level in ("L0", "L1", "mix"):
        net = Summing()
        with recording(f"train_{level}", net, level=level):
            equal[level] = train(net) == alone
    (FOLDER / f"equal{get_rank()}.json").write_text(json.dumps(equal))


def choose_ranks() -> None:
    for name, rank in (("first", [0]), ("second", [1]), ("third", [2]), ("all", [])):
        with recording(name, rank=rank, level="L1"):
            ops.abs(t(1))


def main() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()
    if "ranks only" not in sys.argv:
        communicate()
        train_recorded()
    choose_ranks()
    (FOLDER / f"ended{get_rank()}").touch()


if __name__ == "__main__":
    main()
