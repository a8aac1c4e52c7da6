"""The samples that the specification prints for dynamic graphs, run on a CPU; each edit has its comment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore.dataset
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Probe, probe

__all__ = ["probe"]

STEPS = 2
CELL = "Cell.conv1.Conv2d"


class AlexNet(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Network(nn.Cell):
    """Every kind of call that the printed tree shows, under the names that it has there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.relu, self.fc = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Dense(16, 3)
        self.tail = AlexNet()

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        a, b = ops.split(mint.nn.functional.relu(mint.abs(x)), 1, axis=1)
        return self.tail(self.fc((a + b).reshape((x.shape[0], -1))))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    random = np.random.RandomState(0)
    for _ in range(STEPS):
        yield Tensor(random.randn(2, 1, 4, 4).astype(np.float32)), Tensor(np.array([0, 2], np.int32))


def rows() -> Iterator[tuple[Any, Any]]:
    for data, label in batches():
        yield from zip(data.asnumpy(), label.asnumpy(), strict=True)


def without_model_api(with_model: bool) -> None:
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")  # edit: the device

    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="./config.json")
    model = Network()  # edit: a network, data and a loss, which the print leaves out
    data_loader, loss_fn = batches(), nn.CrossEntropyLoss()
    for data, label in data_loader:
        if with_model:
            debugger.start(model)
        else:
            debugger.start()
        # edit: value_and_grad, because ms.grad(model)(data) differentiates a whole output by the data alone
        forward = lambda data, label: loss_fn(model(data), label)  # noqa: E731
        ms.value_and_grad(forward, None, model.trainable_params())(data, label)
        debugger.stop()
        debugger.step()


def with_model_api(with_model: bool) -> None:
    import mindspore as ms
    from mindspore.train import Model

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")  # edit: the device

    from msprobe.mindspore import PrecisionDebugger
    from msprobe.mindspore.common.utils import MsprobeStep

    debugger = PrecisionDebugger(config_path="./config.json")
    model = Network()  # edit: a network, data, a loss and an optimizer, which the print leaves out
    loss_fn, optimizer = nn.CrossEntropyLoss(), nn.SGD(model.trainable_params(), 0.1)
    generator = mindspore.dataset.GeneratorDataset(list(rows()), ["data", "label"], shuffle=False)
    train_dataset = generator.batch(2)
    if with_model:
        debugger.start(model)
    trainer = Model(model, loss_fn=loss_fn, optimizer=optimizer, metrics={"accuracy"})
    trainer.train(1, train_dataset, callbacks=[MsprobeStep(debugger)])


def a_block_of_code(with_model: bool) -> None:
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    # edit: no set_device("Ascend", 0); the device is the CPU, and a process may set it only once

    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="./config.json")
    model = Network()  # edit: a network, data and a loss, which the print leaves out
    data_loader, loss_fn = batches(), nn.CrossEntropyLoss()
    for data, label in data_loader:

        def forward(data: Tensor, label: Tensor) -> Tensor:
            debugger.start(model) if with_model else debugger.start()
            output = model(data)
            debugger.stop()
            return loss_fn(output, label)

        # edit: value_and_grad runs the code above and then backward; MindSpore has no loss.backward()
        ms.value_and_grad(forward, None, model.trainable_params())(data, label)
        debugger.step()


@pytest.fixture(autouse=True)
def work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples name their configuration by a relative path."""
    monkeypatch.chdir(tmp_path)


def configure(probe: Probe, **keys: Any) -> None:
    config = {"task": "tensor", "dump_path": str(probe.folder), "rank": [], "step": [], **keys}
    Path("config.json").write_text(json.dumps(config))


# What the printed tree shows, by the level that it takes.
PRINTED = {
    "L0": {
        f"{CELL}.forward.0.parameters.weight.npy",
        f"{CELL}.parameters_grad.weight.npy",
        f"{CELL}.forward.0.input.0.npy",
        "Cell.relu.ReLU.forward.0.input.0.npy",
        "Cell.relu.ReLU.backward.0.input.0.npy",
    },
    "L1": {
        "MintFunctional.relu.0.backward.input.0.npy",
        "Mint.abs.0.forward.input.0.npy",
        "Functional.split.0.forward.input.0.npy",
        "Functional.split.0.forward.output.1.npy",
        "Tensor.__add__.0.forward.output.0.npy",
    },
}
PRINTED["mix"] = PRINTED["L0"] | PRINTED["L1"]
PRIMITIVE = (
    "Primitive.conv2d.Conv2D.0.forward.input.0.npy"  # printed as Conv2d; this is the primitive's class
)


SAMPLES = [
    pytest.param(sample, marks=[pytest.mark.spec(row, "MSd") for row in rows])
    for sample, rows in (
        (without_model_api, ["M038"]),
        (with_model_api, ["M039", "M006"]),
        (a_block_of_code, ["M040"]),
    )
]


@pytest.mark.spec("M051", "MSd")
@pytest.mark.spec("M053", "MSd")
@pytest.mark.spec("M054", "MSd")
@pytest.mark.spec("M055", "MSd")
@pytest.mark.spec("M056", "MSd")
@pytest.mark.spec("M057", "MSd")
@pytest.mark.spec("R08", "MSd")
@pytest.mark.parametrize(
    ("level", "with_model"), [("L0", True), ("L1", False), ("L1", True), ("mix", True)], ids=str
)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_printed_tree(sample: Callable[[bool], None], level: str, with_model: bool, probe: Probe) -> None:
    configure(probe, level=level)
    sample(with_model)
    shown = {folder.name for folder in probe.folder.iterdir() if not folder.name.startswith(".")}
    assert shown == {f"step{step}" for step in range(STEPS)}
    for step in range(STEPS):
        assert {file.name for file in probe.rank(step).iterdir()} == {
            "dump_tensor_data",
            "dump.json",
            "stack.json",
            "construct.json",
        }
        files = probe.files(step)
        assert files >= PRINTED[level]
        assert (PRIMITIVE in files) == (with_model and level != "L0")
        assert (probe.construct(step) == {}) == (level == "L1")
        named = [leaf["data_name"] for record in probe.data(step).values() for leaf in leaves(record)]
        assert files == set(named)


def leaves(node: Any) -> Iterator[dict[str, Any]]:
    """Those that have a file."""
    if isinstance(node, dict) and "data_name" in node:
        yield node
    elif isinstance(node, (dict, list)):
        for item in node.values() if isinstance(node, dict) else node:
            yield from leaves(item)


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        return mint.tanh(self.fc(x))


class Language(nn.Cell):
    """Says of each token which comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(32, 8), Layer(), nn.Dense(8, 32)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens)))


class LLM:
    """A small generation loop with the doors of vLLM that the sample goes through."""

    def __init__(self, model: str) -> None:
        self._model = Language()
        runner = SimpleNamespace(get_model=lambda: self._model)
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def generate(self, prompts: list[str], sampling_params: Any) -> list[list[int]]:
        written = []
        for prompt in prompts:
            tokens = [ord(letter) % 32 for letter in prompt]
            for _ in range(sampling_params.max_tokens):
                scores = self._model(Tensor(np.array([tokens], np.int32)))
                tokens.append(int(scores.asnumpy()[0, -1].argmax()))
            written.append(tokens)
        return written


@pytest.mark.spec("M022", "MSd")
@pytest.mark.spec("M043", "MSd")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_inference_with_a_token_range(level: str, probe: Probe) -> None:
    configure(probe, level=level)
    # edit: a generation loop of our own in place of vLLM, which needs Ascend
    from msprobe.mindspore import PrecisionDebugger, seed_all

    seed_all()
    debugger = PrecisionDebugger(config_path="./config.json", dump_path=str(probe.folder))
    prompts = ["Hello, my name is"]
    sampling_params = SimpleNamespace(temprature=0.8, top_p=0.95, max_tokens=6)
    llm = LLM(model="...")
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    debugger.start(model=model, token_range=[1, 3])
    output = llm.generate(prompts, sampling_params=sampling_params)
    debugger.stop()
    debugger.step()

    assert llm.generate(prompts, sampling_params) == output
    first = len(prompts[0]) + 1  # so long is what the model is given in round 1; round 0 is left out
    shapes = {"L0": "Cell.layer.Layer.forward.{}", "L1": "Mint.tanh.{}.forward"}
    for _, name in shapes.items() if level == "mix" else [(level, shapes[level])]:
        found = [probe.data().get(name.format(count)) for count in range(4)]
        lengths = [record and record["input_args"][0]["shape"][1] for record in found]
        assert lengths == [first, first + 1, first + 2, None]
