"""The MindSpore half of docs/tutorial_mindspore.md: the same net, recorded in ./mindspore_run."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from msprobe.mindspore import PrecisionDebugger


class Block(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.mapping, self.projection = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.relu = nn.ReLU()

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return x + self.projection(self.relu(self.mapping(self.norm(x))))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Dense(8, 16)
        self.layers = nn.SequentialCell(Block(16), Block(16))
        self.classifier = nn.Dense(16, 4)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.classifier(self.layers(self.embedding(x)))


NAMES = {
    "embedding": "embed",
    "layers": "blocks",
    "mapping": "fc1",
    "projection": "fc2",
    "classifier": "head",
    "gamma": "weight",
    "beta": "bias",
}
net = Net()
weights = np.load("weights.npz")
for parameter in net.get_parameters():
    name = ".".join(NAMES.get(part, part) for part in parameter.name.split("."))
    parameter.set_data(ms.Tensor(weights[name]))

random = np.random.RandomState(0)
optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
training = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, net.trainable_params())
debugger = PrecisionDebugger(task="tensor", level="mix", dump_path="./mindspore_run")
for step in range(2):
    x = ms.Tensor(0.1 * random.randn(32, 8).astype(np.float32))
    y = ms.Tensor(random.randint(0, 4, 32).astype(np.int32))
    debugger.start(net)
    loss, gradients = training(x, y)
    debugger.stop()
    debugger.step()
    optimizer(gradients)
    print(f"step {step}: loss {loss.asnumpy():.6f}")
