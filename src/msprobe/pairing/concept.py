"""What the APIs, module classes and parameters of either framework do, as one word for each."""

from __future__ import annotations

import functools
from types import MappingProxyType

from msprobe.name import CallName, call_owner

# Every word for one thing, by the word that is used here. Case and underscores do not count.
_SAME = MappingProxyType(
    {
        "linear": "dense",
        "matmul": "bmm batchmatmul mm matmulext",
        "permute": "transpose swapaxes swapdims t",
        "reshape": "view flatten viewas reshapeas resize",
        "unsqueeze": "expanddims",
        "cat": "concat concatenate",
        "to": "cast astype type typeas float half double bfloat16 int long bool",
        "sub": "subtract rsub",
        "mul": "multiply rmul",
        "add": "radd tensoradd",
        "div": "divide truedivide realdiv truediv rtruediv",
        "floordivide": "floordiv",
        "remainder": "mod floormod",
        "pow": "power rpow",
        "eq": "equal",
        "ne": "notequal",
        "gt": "greater",
        "lt": "less",
        "ge": "greaterequal",
        "le": "lessequal",
        "where": "select",
        "clamp": "clip clipbyvalue",
        "neg": "negative",
        "reciprocal": "inv",
        "mean": "reducemean",
        "sum": "reducesum",
        "max": "reducemax",
        "min": "reducemin",
        "softmax": "softmaxext",
        "logsoftmax": "logsoftmaxext",
        "silu": "swish",
        "gelu": "fastgelu",
        "conv2d": "conv2dext",
        "batchnorm": "batchnorm1d batchnorm2d batchnorm3d batchnormext",
        "layernorm": "layernormext fusedlayernorm",
        "rmsnorm": "npurmsnorm",
        "maxpool2d": "maxpool",
        "avgpool2d": "avgpool",
        "adaptiveavgpool2d": "adaptiveavgpool",
        "tile": "repeat",
        "unbind": "unstack",
        "clone": "copy",
        "crossentropy": "softmaxcrossentropywithlogits crossentropyloss",
        "mseloss": "mse",
        "nllloss": "nll",
        "attention": "flashattentionscore npufusionattention scaleddotproductattention",
        "sequential": "sequentialcell",
        "arange": "range",
        "dropout": "dropoutext",
        "gather": "gatherelements gatherd",
        "indexselect": "indexselectext",
        "embedding": "embeddingext",
        "convtranspose1d": "conv1dtranspose",
        "convtranspose2d": "conv2dtranspose",
        "convtranspose3d": "conv3dtranspose",
        "maskedfill": "maskedfillscalar",
    }
)
_WORD = MappingProxyType({word: meaning for meaning, words in _SAME.items() for word in words.split()})

# Classes of the frameworks themselves: two of them that do different things are never the same module.
_LIBRARY = (
    *("linear", "bilinear", "conv1d", "conv2d", "conv3d", "convtranspose1d", "convtranspose2d"),
    *("batchnorm", "layernorm", "groupnorm", "instancenorm", "rmsnorm", "embedding", "relu"),
    *("relu6", "gelu", "silu", "sigmoid", "tanh", "softmax", "logsoftmax", "leakyrelu", "elu"),
    *("mish", "hardswish", "softplus", "maxpool2d", "avgpool2d", "adaptiveavgpool2d"),
    *("adaptivemaxpool2d", "dropout", "dropout2d", "identity", "crossentropy", "mseloss"),
    *("nllloss", "l1loss", "flatten", "pad", "lstm", "gru", "rnn", "multiheadattention"),
    *("upsample", "reshape"),
)
_PARAMETERS = MappingProxyType(
    {
        "gamma": "weight",
        "beta": "bias",
        "embedding_table": "weight",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
)
_KEYWORDS = MappingProxyType(
    {
        "axis": "dim",
        "keep_dims": "keepdim",
        "keepdims": "keepdim",
        "x": "input",
        "input_x": "input",
        "y": "other",
        "label": "target",
        "labels": "target",
        "logits": "input",
    }
)
# What stands at each position, where tensors of one shape come in another order in a primitive of MindSpore.
_ROLES = MappingProxyType({"batchnorm": ("input", "running_mean", "running_var", "weight", "bias")})
_ROLES_OF_PRIMITIVES = MappingProxyType(
    {"batchnorm": ("input", "weight", "bias", "running_mean", "running_var")}
)
_PRIMITIVE = "Primitive"
# What plain numbers at the positions of a call are, where both frameworks agree on it and the number enters
# the result as it is. Axes are none of them: -1 beside 3 may be the same axis.
_PLAIN_ROLES = MappingProxyType(
    {
        **dict.fromkeys(
            ("add", "sub", "mul", "div", "pow", "floordivide", "remainder", "maximum", "minimum"),
            ("input", "other"),
        ),
        **dict.fromkeys(("eq", "ne", "gt", "lt", "ge", "le"), ("input", "other")),
        "clamp": ("input", "min", "max"),
        "maskedfill": ("input", "mask", "value"),
        "leakyrelu": ("input", "negative_slope"),
    }
)
TRANSPOSED = ("linear",)  # the last step of these gives the gradient of the second tensor transposed
# The last step of these has other inputs than they have themselves, though of the same shapes.
_WITH_INNER_STEPS = ("crossentropy", "rmsnorm", "instancenorm", "normalize")
_REVERSED = ("rsub", "rtruediv", "rpow")  # the plain number comes first in what they compute
# `mint` of MindSpore defines its APIs as PyTorch does, behind these prefixes.
MINT_PREFIXES = MappingProxyType(
    {"Mint": "Torch", "MintFunctional": "Functional", "MintDistributed": "Distributed"}
)
# These are called as others in PyTorch are; the prefixes are those that only MindSpore has for them.
_OF_MINDSPORE = MappingProxyType({"Functional.gather": "indexselect", "Primitive.gather": "indexselect"})
_IN_PLACE = MappingProxyType({f"i{word}": word for word in ("add", "sub", "mul", "truediv", "matmul", "pow")})


@functools.lru_cache(maxsize=65_536)
def concept(name: CallName) -> str:
    """What a call does; two calls of which it is the same may belong together."""
    text = name.kind if name.is_module or name.prefix == _PRIMITIVE else name.api
    word = text.replace("_", "").replace(".", "").lower()
    if text.startswith("__"):
        word = _IN_PLACE.get(word, word)
    return _OF_MINDSPORE.get(call_owner(name.prefix, word)) or _WORD.get(word, word)


def roles(name: CallName) -> tuple[str, ...]:
    """What the tensors at the positions of a call are, where one must know that to pair them."""
    known = _ROLES_OF_PRIMITIVES if name.prefix == _PRIMITIVE else _ROLES
    return () if name.is_module else known.get(concept(name), ())


def are_defined_alike(ours: CallName, theirs: CallName, *, same_framework: bool) -> bool:
    """Whether every argument of two calls means the same: one API, an operator of Python, or one of mint."""
    if ours.is_module or theirs.is_module:
        return same_framework and ours.is_module == theirs.is_module and ours.kind == theirs.kind
    if ours.api != theirs.api:
        return False
    prefixes = {MINT_PREFIXES.get(name.prefix, name.prefix) for name in (ours, theirs)}
    is_mint = len(prefixes) == 1 and ours.prefix != theirs.prefix
    is_operator = ours.api.startswith("__") and ours.api.endswith("__")
    return is_operator or is_mint or (same_framework and ours.prefix == theirs.prefix)


def plain_role(name: CallName, position: int) -> str:
    """What a plain number at a position of a call is, if frameworks agree on it; else empty."""
    word = name.api.replace("_", "")
    known = () if name.is_module or word in _REVERSED else _PLAIN_ROLES.get(concept(name), ())
    return known[position] if position < len(known) else ""


def has_inner_steps(word: str) -> bool:
    """Whether it is done in several steps, so that the gradients of the last are not those of its inputs."""
    return word in _WITH_INNER_STEPS


def is_library(word: str) -> bool:
    """Whether a concept is that of a class which a framework brings."""
    return word in _LIBRARY


def other_slot(slot: str) -> str | None:
    """How PyTorch calls the parameter or keyword at the end of a slot, if otherwise than MindSpore."""
    head, _, last = slot.rpartition(".")
    known = _KEYWORDS if head.endswith("input") else _PARAMETERS
    return f"{head}.{known[last]}" if last in known else None
