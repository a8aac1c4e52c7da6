"""What the tests of level L2 run in processes of their own: `kernel_script.py FOLDER SCENE [CONFIG]`.

MindSpore reads its dump settings once in a process. Each scene leaves the bits of its results in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, dataset, nn, ops
from mindspore.communication import init
from mindspore.train import Callback, Model

from msprobe.errors import UsageError
from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger
from msprobe.mindspore.framework import api

STEPS = 3


class Net(nn.Cell):
    """The net whose golden kernels the tests have."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


class Compiled(Net):
    """The same, compiled inside a dynamic graph."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


class Partly(nn.Cell):
    """Compiled in part."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = Compiled(), nn.Dense(2, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.abs(self.part(x)))


Data = list[tuple[Tensor, Tensor]]


def prepared(net: nn.Cell, changed: str = "") -> tuple[nn.Cell, Data]:
    """The weights and data of the golden kernels; one weight may be changed."""
    random = np.random.RandomState(0)
    for parameter in net.get_parameters():
        values = (random.randn(*parameter.shape) * 0.1).astype(np.float32)
        if parameter.name == changed:
            values.flat[0] += 0.5
        parameter.set_data(Tensor(values))
    shapes = ((2, 4), (2, 2))
    return net, [
        tuple(Tensor(random.randn(*shape).astype(np.float32)) for shape in shapes)  # type: ignore[misc]
        for _ in range(STEPS)
    ]


def one_step(net: nn.Cell) -> nn.Cell:
    training = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    training.set_train()
    return training


def bits(*tensors: Any) -> list[str]:
    return [tensor.asnumpy().tobytes().hex() for tensor in tensors]


def static_sample(folder: Path, debugger: Callable[[], Any], changed: str = "") -> list[str]:
    """Document 003, 7.1.2."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")  # edit: the device
    probe = debugger()
    probe.start()
    net, data = prepared(Net(), changed)  # edit: a real network, data and loss, as its comment asks for
    training = one_step(net)
    losses = [training(*each) for each in data]
    probe.stop()
    probe.step()
    return bits(*losses, *net.get_parameters())


def changed_weight(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    return static_sample(folder, debugger, changed="fc1.weight")


def static_loop(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """start(), stop() and step() in the loop; between the steps a graph runs that nobody asked for."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    probe = debugger()
    probe.start()
    net, data = prepared(Net())
    training, losses = one_step(net), []
    for each in data:
        probe.start()
        losses.append(training(*each))
        probe.stop()
        losses.append(net(each[0]))
        probe.step()
    return bits(*losses, *net.get_parameters())


def in_the_way(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """Where the folder should be there is something else."""
    return static_loop(folder, debugger)


def dynamic_sample(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """Document 003, 7.2.2.1."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")  # edit: the device
    probe = debugger()
    probe.start()
    net, data = prepared(Partly())  # edit: a real network, of which a part is compiled, data and loss
    found: list[Tensor] = []
    for x, y in data:
        # edit: value_and_grad, because ms.grad gives no loss
        loss, gradients = ms.value_and_grad(
            lambda x, y: nn.MSELoss()(net(x), y), None, net.trainable_params()
        )(x, y)
        found += [loss, *gradients]
    return bits(*found)


def dynamic_model(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """Document 003, 7.2.2.2."""
    return with_model(
        Partly(), ms.PYNATIVE_MODE, debugger
    )  # edit: a real network, of which a part is compiled


def dynamic_callback(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    return with_model(Partly(), ms.PYNATIVE_MODE, debugger, MsprobeStep)


def with_model(net: nn.Cell, mode: int, debugger: Callable[[], Any], *callbacks: Any) -> list[str]:
    ms.set_context(mode=mode, device_target="CPU")  # edit: the device
    probe = debugger()
    probe.start()
    net, data = prepared(net)  # edit: real data and loss
    pairs = [tuple(tensor.asnumpy() for tensor in each) for each in data]
    train_dataset = dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    trainer = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer)
    trainer.train(1, train_dataset, callbacks=[make(probe) for make in callbacks])
    return bits(*net.get_parameters())


class Resumed(Callback):  # type: ignore[misc]
    """Says, as a program does that loads a checkpoint, how many steps were done before."""

    def on_train_begin(self, run_context: Any) -> None:
        run_context.original_args().cur_step_num = 40


def resumed_model(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """A static graph; its first step comes from one callback, and another begins and ends the steps."""
    callbacks = (lambda probe: Resumed(), lambda probe: MsprobeInitStep(), MsprobeStep)
    return with_model(Net(), ms.GRAPH_MODE, debugger, *callbacks)


def counted_late(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """First nothing that is compiled; then what runs twice in each step, which only step() tells."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    original = api._JitExecutor.__call__
    probe = debugger()
    probe.start(token_range=[0, 1])
    probe.save(Tensor(1.0), "one")
    probe.register_custom_api(ops, "abs")
    found = [ops.abs(Tensor(np.float32(-1)))]
    probe.stop()
    assert api._JitExecutor.__call__ is original
    probe.set_init_step(4)
    net, data = prepared(Compiled())
    for x, _ in data:
        probe.start()
        found += [net(x), net(-x)]
        probe.stop()
        probe.step()
    return bits(*found)


class Long(nn.Cell):
    """Its kernels have names of more than 255 characters, and one gives bfloat16."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.a_cell_with_a_name_of_which_three_are_too_long_for_the_name_of_one_file_as_linux_has_it = (
            Long(depth - 1) if depth else nn.Dense(4, 2)
        )

    def construct(self, x: Tensor) -> Tensor:
        return self.a_cell_with_a_name_of_which_three_are_too_long_for_the_name_of_one_file_as_linux_has_it(x)


class Rounding(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x.astype(ms.bfloat16)


def long_names(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    probe = debugger()
    probe.start()
    net, data = prepared(Long())
    found = [net(data[0][0]), Rounding()(data[0][0]).astype(ms.float32)]
    probe.stop()
    probe.step()
    return bits(*found)


def too_late(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    net, data = prepared(Net())
    found = [net(data[0][0])]
    probe = debugger()
    probe.start()
    return bits(*found, Rounding()(data[0][0]).astype(ms.float32))


def refused(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    try:
        debugger().start()
    except UsageError as error:
        return [str(error), os.environ.get("MINDSPORE_DUMP_CONFIG", "")]
    return []


def two_ranks(folder: Path, debugger: Callable[[], Any]) -> list[str]:
    """Rank 1 starts in time; rank 0 too late."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    probe = debugger()
    if os.environ["RANK_ID"] == "1":
        probe.start()
    init()
    probe.start()
    net, data = prepared(Net())
    loss = one_step(net)(*data[0])
    probe.stop()
    probe.step()
    return bits(loss)


def main(folder: Path, scene: str, config: str = "") -> None:
    def debugger() -> PrecisionDebugger:
        path = folder / f"config{os.environ.get('RANK_ID', '')}.json"
        path.write_text(config)
        return PrecisionDebugger(str(path))

    results = globals()[scene](folder, debugger)
    (folder / f"results{os.environ.get('RANK_ID', '')}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
