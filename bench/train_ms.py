"""One training run of the GPT of train.py in MindSpore, dynamic graph, plain or recorded."""

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from timed import SIZES, configuration, options, train

LAYERS = 4
WORDS = 512


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)

    def construct(self, x, mask):
        x = x + self.attend(self.norm1(x), mask)
        return x + self.down(ops.gelu(self.up(self.norm2(x))))

    def attend(self, x, mask):
        batch, length, width = x.shape
        parts = ops.split(self.qkv(x), width, axis=2)
        q, k, v = (ops.transpose(part.reshape(batch, length, self.heads, -1), (0, 2, 1, 3)) for part in parts)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * (width // self.heads) ** -0.5
        weights = ops.softmax(ops.masked_fill(scores, mask, -1e9), axis=-1)
        mixed = ops.matmul(weights, v)
        return self.out(ops.transpose(mixed, (0, 2, 1, 3)).reshape(batch, length, width))


class Gpt(nn.Cell):
    def __init__(self, width: int, length: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.CellList([Block(width, heads) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, WORDS, has_bias=False)
        self.mask = Tensor(np.triu(np.ones((length, length), bool), k=1))
        self.numbers = Tensor(np.arange(length), mindspore.int32)

    def construct(self, words):
        x = self.words(words) + self.places(self.numbers)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def main() -> None:
    given = options(["plain", "ours", "off"])
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_device("CPU")
    mindspore.set_seed(0)
    width, length, batch, heads = SIZES[given.net]
    model = Gpt(width, length, heads)
    debugger = None
    if given.tool != "plain":
        from msprobe.mindspore import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=configuration(given))
    optimizer = nn.Adam(model.trainable_params(), learning_rate=1e-3)

    def loss_of(words: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(model(words).reshape(-1, WORDS), labels.reshape(-1))

    forward_backward = mindspore.value_and_grad(loss_of, None, model.trainable_params())
    draw = np.random.default_rng(0)

    def step(record: bool) -> float:
        words = draw.integers(0, WORDS, (batch, length + 1)).astype(np.int32)
        if record:
            debugger.start(model)
        loss, gradients = forward_backward(Tensor(words[:, :-1]), Tensor(words[:, 1:]))
        if record:
            debugger.stop()
            debugger.step()
        optimizer(gradients)
        return float(loss.asnumpy())

    train(given, step)


if __name__ == "__main__":
    main()
