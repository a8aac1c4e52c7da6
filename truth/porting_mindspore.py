"""The ported nets in MindSpore, with the names and habits of another author: the target half."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

from truth.porting import BATCH, CLASSES, HEADS, LENGTH, STEPS, WIDTH, WORDS, data, weight


class SelfAttention(nn.Cell):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.project, self.fault = nn.Dense(WIDTH, WIDTH), fault

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(part(x)) for part in (self.query, self.key, self.value))
        size = WIDTH if self.fault == "scale" else WIDTH // HEADS
        scores = ops.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(size)
        if self.fault != "no_mask":
            future = Tensor(np.triu(np.ones((LENGTH, LENGTH), dtype=bool), 1))
            scores = ops.masked_fill(scores, future, -1e9)
        shares = ops.softmax(scores, axis=-2 if self.fault == "softmax_axis" else -1)
        return self.project(ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH))

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)


class Layer(nn.Cell):
    def __init__(self, fault: str, number: int) -> None:
        super().__init__()
        epsilon = 1e-2 if (fault, number) == ("epsilon", 1) else 1e-5
        self.before, self.after = (
            nn.LayerNorm((WIDTH,), epsilon=1e-5),
            nn.LayerNorm((WIDTH,), epsilon=epsilon),
        )
        self.attention = SelfAttention(fault)
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.activation = nn.GELU(approximate=fault == "gelu_tanh")
        self.drop = nn.Dropout(p=0.1) if (fault, number) == ("dropout", 0) else None
        self.fault = fault

    def construct(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        x = (normed if self.fault == "residual" else x) + self.attention(normed)
        y = self.down(self.activation(self.up(self.after(x))))
        return x + (y if self.drop is None else self.drop(y))


class Encoder(nn.Cell):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.CellList([Layer(fault, number) for number in range(2)])
        self.norm, self.head = nn.LayerNorm((WIDTH,), epsilon=1e-5), nn.Dense(WIDTH, WORDS)
        self.fault = fault

    def construct(self, words: Tensor) -> Tensor:
        x = self.words(words)
        if self.fault != "no_position":
            x = x + self.places(Tensor(np.arange(LENGTH, dtype=np.int32)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).reshape(-1, WORDS)


class Conv(nn.Cell):
    def __init__(self, fault: str) -> None:
        super().__init__()
        momentum = 0.1 if fault == "momentum" else 0.9
        epsilon = 1e-2 if fault == "epsilon" else 1e-5
        self.first = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1)
        self.first_norm = nn.BatchNorm2d(8, eps=epsilon, momentum=momentum)
        if fault == "pad_mode":
            self.second = nn.Conv2d(8, 12, 3, stride=2, pad_mode="same", has_bias=True)
        else:
            self.second = nn.Conv2d(8, 12, 3, stride=2, pad_mode="pad", padding=1, has_bias=fault != "bias")
        self.second_norm = nn.BatchNorm2d(12, momentum=momentum)
        self.relu = nn.LeakyReLU(0.01) if fault == "leaky" else nn.ReLU()
        self.pool = nn.AvgPool2d(2, 2) if fault == "pool" else nn.MaxPool2d(2, 2)
        self.classifier = nn.Dense(12, CLASSES)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.first_norm(self.first(x))))
        return self.classifier(ops.mean(self.relu(self.second_norm(self.second(x))), (2, 3)))


class Mlp(nn.Cell):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Dense(WIDTH, 32), nn.Dense(32, 32), nn.Dense(32, CLASSES)
        self.activation = nn.Sigmoid() if fault == "activation" else nn.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        return self.third(ops.relu(self.second(self.activation(self.first(x)))))


NETS = {"encoder": Encoder, "conv": Conv, "mlp": Mlp}
# The name of each parameter in PyTorch, word by word.
NAMES = {
    "encoder": {"words": "embed", "places": "pos", "layers": "blocks", "before": "norm1", "after": "norm2",
                "attention": "attn", "query": "q", "key": "k", "value": "v", "project": "o", "up": "fc1",
                "down": "fc2", "head": "out"},
    "conv": {"first": "conv1", "first_norm": "norm1", "second": "conv2", "second_norm": "norm2",
             "classifier": "fc"},
    "mlp": {"first": "fc1", "second": "fc2", "third": "fc3"},
}  # fmt: skip
LAST = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def torch_name(net: str, name: str) -> str:
    """The name that a parameter has in PyTorch."""
    words = [NAMES[net].get(word, LAST.get(word, word)) for word in name.split(".")]
    return f"{net}.{'.'.join(words)}"


def load(model: nn.Cell, net: str, fault: str) -> None:
    """Copy the shared weights into a model, with the mistakes that a port makes there."""
    for parameter in model.get_parameters():
        name = torch_name(net, parameter.name)
        if "moving_" in name:
            continue
        value = weight(name, tuple(parameter.shape))
        if (fault, name) == ("transposed", "encoder.blocks.0.attn.q.weight"):
            value = np.ascontiguousarray(value.T)
        if (fault, name) in (("head_1.05", "encoder.out.weight"), ("second_1.05", "mlp.fc2.weight")):
            value = value * np.float32(1.05)
        parameter.set_data(Tensor(value))


def optimizer_of(parameters: list[Parameter], learning: str, fault: str) -> Any:
    """The optimizer of the port; a fault changes one of its settings."""
    rate = {"sgd": 0.1}.get(learning, 1e-2) * (1.1 if fault == "learning_rate" else 1.0)
    betas = (0.9, 0.9) if fault == "beta" else (0.9, 0.999)
    # Those of mint write into parameters in place, which on the CPU changes nothing in MindSpore 2.10.
    if learning == "sgd":
        return optim.SGD(parameters, rate)
    if learning == "adam":
        return optim.Adam(parameters, rate, betas=betas, eps=1e-8)
    return optim.AdamW(parameters, rate, betas=betas, weight_decay=0.01 if fault == "weight_decay" else 0.1)


def record(net: str, learning: str, fault: str, config: str) -> None:
    """Train the port with the recorder on."""
    from msprobe.mindspore import PrecisionDebugger

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(7)
    model = NETS[net](fault)
    load(model, net, fault)
    x, y = (Tensor(each) for each in data(net))
    smoothing = 0.1 if fault == "smoothing" else 0.0

    def forward() -> Tensor:
        return ops.cross_entropy(model(x), y, label_smoothing=smoothing)

    parameters = list(model.trainable_params())
    step = ms.value_and_grad(forward, None, parameters)
    optimizer = None if learning == "none" else optimizer_of(parameters, learning, fault)
    debugger = PrecisionDebugger(config)
    for number in range(STEPS[net]):
        model.set_train(net != "conv" or number == 0)
        debugger.start(model)
        _, gradients = step()
        if optimizer is not None:
            optimizer(gradients)
        debugger.stop()
        debugger.step()
