"""What each of two gloo processes does; test_distributed.py runs `two_ranks.py RANK FOLDER` for both."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import all_reduce as bound_early

from leaving import leave
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe.pytorch import debugger as bound

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
OTHER = 1 - RANK


def t(value: float, size: int = 2) -> torch.Tensor:
    return torch.full((size,), float(value))


@contextmanager
def recording(name: str, **keys: Any) -> Iterator[type[PrecisionDebugger]]:
    """One run of its own below FOLDER."""
    path = FOLDER / f"{name}{RANK}.json"
    path.write_text(json.dumps({"dump_path": str(FOLDER / name), "rm_dropout": False, **keys}))
    PrecisionDebugger(str(path))
    yield PrecisionDebugger
    bound._the.get().close()
    bound._the.clear()


def like_the_golden_script() -> None:
    """The calls with which golden/ddp was recorded."""
    seed_all(7, mode=True)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model = nn.parallel.DistributedDataParallel(net)
    x = torch.full((3, 4), 0.1) + torch.arange(4.0) * (RANK + 1)
    with recording("golden", level="mix") as debugger:
        debugger.start(model=model)
        y = model(x)
        y.pow(2).mean().backward()
        a = torch.full((3,), float(RANK + 1))
        dist.all_reduce(a)
        dist.all_reduce(a, op=dist.ReduceOp.MAX)
        dist.broadcast(a, src=0)
        dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.full((2,), float(RANK)))
        dist.all_gather_into_tensor(torch.zeros(4), torch.full((2,), float(RANK + 5)))
        dist.all_reduce(a, async_op=True).wait()
        if RANK == 0:
            dist.send(torch.ones(2) * 3, dst=1)
        else:
            dist.recv(torch.zeros(2), src=0)
        mine = torch.ones(2) * RANK
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, OTHER), dist.P2POp(dist.irecv, torch.zeros(2), OTHER)]
        ):
            work.wait()
        dist.barrier()
        debugger.stop()
        debugger.step()
    torch.use_deterministic_algorithms(False)


def every_call() -> None:
    pair = dist.new_group([0, 1])
    with recording("calls", level="L1", task="tensor", tensor={"list": ["Distributed"]}) as debugger:
        debugger.start()
        dist.all_reduce(t(RANK + 1))
        dist.all_reduce(t(RANK + 1), op=dist.ReduceOp.MAX, group=pair)
        bound_early(t(RANK + 1))
        dist.broadcast(t(RANK + 5), src=0)
        dist.all_gather([t(0), t(0)], t(RANK + 1))
        dist.gather(t(RANK + 1), [t(0), t(0)] if RANK == 0 else None, dst=0)
        dist.scatter(t(0), [t(7), t(8)] if RANK == 0 else None, src=0)
        dist.reduce(t(RANK + 1), dst=0)
        dist.reduce_scatter(t(0), [t(RANK + 1), t(RANK + 10)])
        dist.reduce_scatter_tensor(t(0), t(RANK + 1, 4))
        dist._reduce_scatter_base(t(0), t(RANK + 1, 4))
        dist.all_gather_into_tensor(t(0, 4), t(RANK + 1))
        dist._all_gather_base(t(0, 4), t(RANK + 1))
        dist.all_to_all_single(t(0), torch.tensor([RANK * 10.0, RANK * 10.0 + 1]))
        dist.all_to_all([t(0), t(0)], [t(RANK), t(RANK + 10)])
        if RANK == 0:
            dist.send(t(3), dst=1)
            dist.isend(t(4), dst=1).wait()
        else:
            dist.recv(t(0), src=0)
            dist.irecv(t(0), src=0).wait()
        operations = [
            dist.P2POp(dist.isend, t(RANK + 1), OTHER, group=pair),
            dist.P2POp(dist.irecv, t(0), OTHER, group=pair),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        debugger.stop()
        debugger.step()


def asynchronous_calls() -> None:
    """torch.neg marks the places between: its records tell when the others were written."""
    with recording("later", level="L1") as debugger:
        debugger.start()
        shared = t(RANK + 1)
        work = dist.all_reduce(shared, async_op=True)
        torch.neg(t(0))
        work.wait()
        torch.neg(shared)
        first, second = t(RANK + 1), t(0)
        one, two = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, first, OTHER), dist.P2POp(dist.irecv, second, OTHER)]
        )
        two.wait()
        torch.neg(second)
        one.wait()
        torch.neg(t(0))
        needs = t(RANK + 1).requires_grad_()
        result = needs * 2
        dist.all_reduce(result)
        result.sum().backward()
        debugger.stop()
        debugger.step()


def calls_that_nobody_waits_for() -> None:
    with recording("open", level="L1", task="tensor") as debugger:
        debugger.start()
        done = dist.all_reduce(t(RANK + 1), async_op=True)
        while not done.is_completed():
            time.sleep(0.001)
        buffer = t(0)
        work = dist.irecv(buffer, src=OTHER)
        debugger.stop()
        dist.barrier()
        dist.send(t(6), dst=OTHER)
        work.wait()
        assert buffer.tolist() == [6.0, 6.0]
        debugger.step()


def some_ranks() -> None:
    for name, rank in (("only1", [1]), ("nobody", [10]), ("both", [])):
        with recording(name, rank=rank) as debugger:
            debugger.start()
            torch.neg(t(1))
            debugger.stop()
            debugger.step()


def trained(debugger: type[PrecisionDebugger] | None) -> list[Any]:
    """Losses, gradients, parameters and random state after two steps of distributed training."""
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(4, 2))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(2):
        if debugger is not None:
            debugger.start(model=model)
        loss = model(torch.randn(3, 4) + RANK).square().mean()
        loss.backward()
        found += [loss.item(), *(parameter.grad.tolist() for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [*found, *(parameter.tolist() for parameter in model.parameters()), torch.get_rng_state().tolist()]


def training() -> None:
    plain = trained(None)
    equal = {}
    for level in ("L0", "L1", "mix"):
        for task in ("statistics", "tensor"):
            with recording(f"train_{level}_{task}", level=level, task=task) as debugger:
                equal[f"{level} {task}"] = trained(debugger) == plain
    (FOLDER / f"equal{RANK}.json").write_text(json.dumps(equal))


def main() -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=2, timeout=timedelta(seconds=120)
    )
    before = dict(vars(dist.Work)), dict(vars(dist.ProcessGroup)), dict(vars(torch.Tensor))
    like_the_golden_script()
    every_call()
    asynchronous_calls()
    calls_that_nobody_waits_for()
    some_ranks()
    training()
    assert before == (dict(vars(dist.Work)), dict(vars(dist.ProcessGroup)), dict(vars(torch.Tensor)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
