"""Two nets that are the same in MindSpore and PyTorch, and by hand: which of their calls belong together.

Everything that has a counterpart is listed. What is not listed has none: MindSpore casts the parameters of a
layer norm before it uses them, asks for shapes, and PyTorch calls functions where the other has a module.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

BATCH, LENGTH, WIDTH, HEADS, WORDS, CLASSES = 2, 5, 8, 2, 11, 5

Array = np.ndarray[Any, Any]
Pairs = Mapping[str, str]


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """The value of a parameter or statistic, by the name that PyTorch has for it."""
    if name.endswith(("running_mean", "running_var")):
        return np.full(shape, name.endswith("var"), np.float32)
    random = np.random.RandomState(zlib.crc32(name.encode()))
    near = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
    return (near + 0.3 * random.randn(*shape)).astype(np.float32)


def data(net: str) -> tuple[Array, Array, Array]:
    """What goes in, the mask, and what should come out."""
    random = np.random.RandomState(7)
    if net == "transformer":
        words = random.randint(0, WORDS, (BATCH, LENGTH)).astype(np.int32)
        mask = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
        return words, mask, random.randint(0, WORDS, (BATCH * LENGTH,)).astype(np.int32)
    images = random.randn(4, 3, 8, 8).astype(np.float32)
    return images, np.zeros(0, bool), random.randint(0, CLASSES, (4,)).astype(np.int32)


# ---- the hand-written lists ----


def transformer_cells() -> dict[str, str]:
    cells = {
        "embedding.Embedding": "wte.Embedding",
        "norm.LayerNorm": "ln_f.LayerNorm",
        "head.Linear": "lm_head.Linear",
    }
    for n in (0, 1):
        here, there = f"encoder.{n}", f"h.{n}"
        cells |= {
            f"{here}.EncoderLayer": f"{there}.Block",
            f"{here}.norm1.LayerNorm": f"{there}.ln_1.LayerNorm",
            f"{here}.attention.SelfAttention": f"{there}.attn.Attention",
            f"{here}.attention.query.Dense": f"{there}.attn.q_proj.Linear",
            f"{here}.attention.key.Dense": f"{there}.attn.k_proj.Linear",
            f"{here}.attention.value.Dense": f"{there}.attn.v_proj.Linear",
            f"{here}.attention.out.Dense": f"{there}.attn.o_proj.Linear",
            f"{here}.norm2.LayerNorm": f"{there}.ln_2.LayerNorm",
            f"{here}.ffn.FeedForward": f"{there}.mlp.MLP",
            f"{here}.ffn.dense1.Dense": f"{there}.mlp.fc1.Linear",
            f"{here}.ffn.act.GELU": f"{there}.mlp.gelu.GELU",
            f"{here}.ffn.dense2.Dense": f"{there}.mlp.fc2.Linear",
        }
    return cells


def resnet_cells() -> dict[str, str]:
    cells = {
        "stem.Conv2d": "conv1.Conv2d",
        "stem_bn.BatchNorm2d": "bn1.BatchNorm2d",
        "relu.ReLU": "relu.ReLU",
        "pool.MaxPool2d": "maxpool.MaxPool2d",
        "stage1.SequentialCell": "layer1.Sequential",
        "stage2.SequentialCell": "layer2.Sequential",
        "stage2.0.shortcut.SequentialCell": "layer2.0.downsample.Sequential",
        "stage2.0.shortcut.0.Conv2d": "layer2.0.downsample.0.Conv2d",
        "stage2.0.shortcut.1.BatchNorm2d": "layer2.0.downsample.1.BatchNorm2d",
        "classifier.Dense": "fc.Linear",
    }
    for here, there in (("stage1.0", "layer1.0"), ("stage1.1", "layer1.1"), ("stage2.0", "layer2.0")):
        cells[f"{here}.ResBlock"] = f"{there}.BasicBlock"
        for part in ("conv1.Conv2d", "bn1.BatchNorm2d", "conv2.Conv2d", "bn2.BatchNorm2d"):
            cells[f"{here}.{part}"] = f"{there}.{part}"
    return cells


CELLS = {"transformer": transformer_cells, "resnet": resnet_cells}
_PARAMETERS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def torch_name(net: str, parameter: str) -> str:
    """What PyTorch calls a parameter of MindSpore's net."""
    path, _, last = parameter.rpartition(".")
    for ours, theirs in CELLS[net]().items():
        if ours.rpartition(".")[0] == path:
            return f"{theirs.rpartition('.')[0]}.{_PARAMETERS.get(last, last)}"
    raise KeyError(parameter)


def transformer_apis() -> dict[str, str]:
    """MindSpore projects and splits queries, keys and values in this order, PyTorch queries last."""
    apis = {
        "Primitive.layer_norm.LayerNorm.4": "Functional.layer_norm.4",
        "Primitive.dense.Dense.0": "Functional.linear.12",
        "Tensor.reshape.8": "Tensor.reshape.8",
        "Functional.cross_entropy.0": "Functional.cross_entropy.0",
    }
    for n in (0, 1):
        for here, there in ((0, 2), (1, 0), (2, 1), (3, 3)):
            apis[f"Tensor.reshape.{4 * n + here}"] = f"Tensor.reshape.{4 * n + there}"
            apis[f"Tensor.transpose.{4 * n + here}"] = f"Tensor.permute.{4 * n + there}"
        apis |= {
            f"Primitive.layer_norm.LayerNorm.{2 * n}": f"Functional.layer_norm.{2 * n}",
            f"Tensor.swapaxes.{n}": f"Tensor.transpose.{n}",
            f"Functional.matmul.{2 * n}": f"Torch.matmul.{2 * n}",
            f"Tensor.__truediv__.{n}": f"Tensor.__truediv__.{n}",
            f"Functional.masked_fill.{n}": f"Tensor.masked_fill.{n}",
            f"Functional.softmax.{n}": f"Functional.softmax.{n}",
            f"Functional.matmul.{2 * n + 1}": f"Torch.matmul.{2 * n + 1}",
            f"Tensor.__add__.{2 * n}": f"Tensor.__add__.{2 * n}",
            f"Primitive.layer_norm.LayerNorm.{2 * n + 1}": f"Functional.layer_norm.{2 * n + 1}",
            f"Functional.gelu.{n}": f"Functional.gelu.{n}",
            f"Tensor.__add__.{2 * n + 1}": f"Tensor.__add__.{2 * n + 1}",
        }
    return apis


def resnet_apis() -> dict[str, str]:
    """MindSpore runs the convolution of a shortcut after the other two, PyTorch before them."""
    apis = {
        "Primitive.max_pool.MaxPool.0": "Functional.max_pool2d.0",
        "Functional.mean.0": "Torch.mean.0",
        "Tensor.reshape.0": "Tensor.reshape.0",
        "Functional.cross_entropy.0": "Functional.cross_entropy.0",
    }
    order = {n: n for n in range(5)} | {5: 6, 6: 7, 7: 5}
    apis |= {f"Primitive.conv2d.Conv2D.{n}": f"Functional.conv2d.{order[n]}" for n in range(1, 8)}
    apis |= {f"Primitive.bn_train.BatchNorm.{n}": f"Functional.batch_norm.{order[n]}" for n in range(8)}
    apis |= {f"Primitive.relu.ReLU.{n}": f"Functional.relu.{n}" for n in range(7)}
    return apis | {f"Tensor.__add__.{n}": f"Tensor.__add__.{n}" for n in range(3)}


APIS = {"transformer": transformer_apis, "resnet": resnet_apis}


class Several(NamedTuple):
    """Calls of MindSpore that do together what one of PyTorch does: where its tensors stand among them."""

    golden: str
    inputs: tuple[tuple[str, int], ...]  # the call, and which of its tensors; by the inputs of PyTorch's
    output: str
    indices: int | None = None  # the input that holds whole numbers, which have no gradient


def dense(matmul: int, linear: int, reshape: int | None) -> Several:
    """`reshape` is the first of two around a Dense on three dimensions."""
    core, bias = f"Primitive.matmul.MatMul.{matmul}", f"Primitive.bias_add.BiasAdd.{matmul}"
    first, last = core, bias
    if reshape is not None:
        first, last = (f"Primitive.reshape.Reshape.{reshape + n}" for n in (0, 1))
    return Several(f"Functional.linear.{linear}", ((first, 0), (core, 1), (bias, 1)), last)


def transformer_several() -> list[Several]:
    found = [
        Several(
            "Functional.embedding.0",
            (("Primitive.reshape_flat.Reshape.0", 0), ("Primitive.gather.Gather.0", 0)),
            "Primitive.reshape.Reshape.0",
            indices=0,
        )
    ]
    for n in (0, 1):
        for here, there in enumerate((2, 0, 1, 3, 4, 5)):  # query, key, value, out, and the two of the MLP
            found.append(dense(6 * n + here, 6 * n + there, 1 + 2 * (6 * n + here)))
    return found


def resnet_several() -> list[Several]:
    stem = (("Primitive.conv2d.Conv2D.0", 0), ("Primitive.conv2d.Conv2D.0", 1))
    bias = "Primitive.bias_add.BiasAdd.0"
    return [
        Several("Functional.conv2d.0", (*stem, (bias, 1)), bias),
        dense(0, 0, None)._replace(
            inputs=(
                ("Primitive.matmul.MatMul.0", 0),
                ("Primitive.matmul.MatMul.0", 1),
                ("Primitive.bias_add.BiasAdd.1", 1),
            ),
            output="Primitive.bias_add.BiasAdd.1",
        ),
    ]


SEVERAL = {"transformer": transformer_several, "resnet": resnet_several}
_OF_CLASS = {
    "Dense": {"weight": "weight", "bias": "bias"},
    "Linear": {"weight": "weight", "bias": "bias"},
    "LayerNorm": {"gamma": "weight", "beta": "bias"},
    "BatchNorm2d": {"gamma": "weight", "beta": "bias"},
    "Embedding": {"embedding_table": "weight"},
    "Conv2d": {"weight": "weight"},
}


# ---- what they mean for a recording ----


def calls(net: str, level: str) -> dict[str, str]:
    """The calls that belong together, forward and backward, and the gradients of parameters."""
    found = {}
    if level != "L1":
        for a, b in CELLS[net]().items():
            for side in ("forward", "backward"):
                found[f"Cell.{a}.{side}.0"] = f"Module.{b}.{side}.0"
            if a.rpartition(".")[2] in _OF_CLASS:
                found[f"Cell.{a}.parameters_grad"] = f"Module.{b}.parameters_grad"
    if level != "L0":
        for a, b in APIS[net]().items():
            found.update((f"{a}.{side}", f"{b}.{side}") for side in ("forward", "backward"))
    return found


def parameters(net: str) -> dict[str, str]:
    """The parameters that belong together, and their gradients."""
    found = {}
    for a, b in CELLS[net]().items():
        of_class = dict(_OF_CLASS.get(a.rpartition(".")[2], {}))
        if a == "stem.Conv2d":
            of_class["bias"] = "bias"
        for ours, theirs in of_class.items():
            found[f"Cell.{a}.forward.0.parameters.{ours}"] = f"Module.{b}.forward.0.parameters.{theirs}"
            found[f"Cell.{a}.parameters_grad.{ours}"] = f"Module.{b}.parameters_grad.{theirs}"
    return found


def running_statistics(net: str) -> dict[str, str]:
    """What batch norm keeps: parameters of a Cell, buffers of a Module."""
    return {
        f"Cell.{a}.forward.0.parameters.{ours}": f"Module.{b}.forward.0.buffers.{theirs}"
        for a, b in CELLS[net]().items()
        if a.rpartition(".")[2] == "BatchNorm2d"
        for ours, theirs in (("moving_mean", "running_mean"), ("moving_variance", "running_var"))
    }


def several_places(net: str) -> dict[str, str]:
    """The places of several calls that belong to those of one."""
    return {a: b for each in SEVERAL[net]() for a, b in _places(each)}


def _places(each: Several) -> Iterator[tuple[str, str]]:
    for number, (call, tensor) in enumerate(each.inputs):
        yield f"{call}.forward.input.{tensor}", f"{each.golden}.forward.input.{number}"
        if number != each.indices:
            yield f"{call}.backward.output.{tensor}", f"{each.golden}.backward.output.{number}"
    yield f"{each.output}.forward.output.0", f"{each.golden}.forward.output.0"
    yield f"{each.output}.backward.input.0", f"{each.golden}.backward.input.0"
