"""What the two halves of a ported net share: sizes, data, weights, and the faults that a port may have."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

WORDS, WIDTH, HEADS, LENGTH, BATCH, CLASSES, SIDE = 41, 24, 3, 10, 4, 6, 12
STEPS = {"encoder": 1, "conv": 2, "mlp": 3}  # betas show in the second change


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value of a parameter, by its name in PyTorch: matrices of unit gain, vectors near one or zero."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    values = np.random.default_rng(seed).standard_normal(shape)
    if len(shape) > 1:
        values /= np.sqrt(np.prod(shape[1:]))
    else:
        values = 0.1 * values + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return values.astype(np.float32)


def data(net: str) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and labels of one batch."""
    random = np.random.default_rng(17)
    if net == "encoder":
        words = random.integers(0, WORDS, (2, BATCH, LENGTH)).astype(np.int32)
        return words[0], words[1].reshape(-1)
    if net == "conv":
        pictures = random.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
        return pictures, random.integers(0, CLASSES, BATCH).astype(np.int32)
    return random.standard_normal((16, WIDTH)).astype(np.float32), random.integers(0, CLASSES, 16).astype(
        np.int32
    )


class Port(NamedTuple):
    """A fault of a port, and what may be named: `module: calls` of either half, as in plants.py."""

    net: str
    fault: str
    calls: str


# An optimizer's own calls in either half, or the layer that first uses what it made.
LEARNT = ": add_|add|mul|div|sqrt|cast|__rpow__|__rsub__|__neg__|__add__ ; optimizer: .* ; first: .*|module"
PORTS = (
    Port("encoder", "epsilon", "layers.1.after: layer_norm|module ; layers.1.up: .*|module"),
    Port("encoder", "gelu_tanh", "layers.0.activation: .*|module ; layers.0.down: .*|module"),
    Port("encoder", "scale", "layers.0.attention: __truediv__|masked_fill"),
    Port("encoder", "no_mask", "layers.0.attention: masked_fill|softmax ; blocks.0.attn: masked_fill"),
    Port("encoder", "softmax_axis", "layers.0.attention: softmax"),
    Port("encoder", "transposed", "layers.0.attention.query: .*|module"),
    Port(
        "encoder", "no_position", ": __add__ ; pos: embedding|module ; layers.0.before: layer_norm|to|module"
    ),
    Port("encoder", "dropout", "layers.0.drop: .*|module ; layers.0: __add__"),
    Port("encoder", "residual", "layers.0: __add__ ; layers.0.after: layer_norm|to|module"),
    Port("encoder", "smoothing", ": cross_entropy"),
    Port("encoder", "head_1.05", "head: .*|module"),
    Port("conv", "pad_mode", "second: .*|module"),
    Port("conv", "epsilon", "first_norm: .*|module ; relu: .*|module"),
    Port("conv", "pool", "pool: .*|module ; second: .*|module"),
    Port("conv", "leaky", "relu: .*|module ; pool: .*|module"),
    Port("conv", "bias", "second: .*|module ; second_norm: .*|module"),
    Port("conv", "momentum", "first_norm: .*|module ; second_norm: .*|module"),
    Port("mlp", "activation", "activation: .*|module ; second: .*|module"),
    Port("mlp", "second_1.05", "second: .*|module"),
    Port("mlp", "learning_rate", LEARNT),
    Port("mlp", "beta", LEARNT),
    Port("mlp", "weight_decay", LEARNT),
)
STATE = ("momentum", "learning_rate", "beta", "weight_decay")
