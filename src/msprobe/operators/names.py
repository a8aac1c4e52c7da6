"""Which concept a recorded name stands for: one word for what a call does, the same for every framework."""

from __future__ import annotations

import functools
import re
from types import MappingProxyType

from msprobe.name import CallName, call_owner
from msprobe.operators.row import Operator, Summed
from msprobe.operators.table import TABLE


def operator_of(name: CallName) -> Operator:
    """Return the row of a call's operator."""
    return _operator_of(_uncounted(name))


def concept(name: CallName) -> str:
    """Return one word for what a call does, the same for every framework."""
    return _concept(_uncounted(name))


def _uncounted(name: CallName) -> CallName:
    """The same name for every call of an API: what it does depends on nothing else."""
    return CallName(name.owner, name.direction, None)


@functools.lru_cache(maxsize=16_384)
def _operator_of(name: CallName) -> Operator:
    word = _concept(name)
    row = TABLE.get(word)
    if name.prefix in _COMMUNICATIONS:
        return Operator(word, communicates=True)
    if row is None or (name.is_module and not row.is_class):
        return _unknown(word, name.is_module)  # users name their modules as they like
    if row.summed == "last axis of first" and name.prefix in _BY_TYPE:
        row = row._replace(summed=_BY_SIZES)  # they have a flag to transpose an argument
    return row._replace(overwrites=True) if not row.overwrites and _overwrites(name) else row


def operator_named(word: str) -> Operator:
    """Return the row of a concept."""
    return TABLE.get(word) or _unknown(word, False)


@functools.lru_cache(maxsize=16_384)
def _concept(name: CallName) -> str:
    text = name.kind if name.is_module or name.prefix in _BY_TYPE else name.api
    word = text.replace("_", "").replace(".", "").lower()
    if text.startswith("__"):
        word = _OF_PYTHON.get(word, word)
    word = _OF_MINDSPORE.get(call_owner(name.prefix, word)) or _WORD.get(word, word)
    for prefix in _PREFIXES:
        if word not in TABLE and word.startswith(prefix):
            rest = word.removeprefix(prefix)
            word = _WORD.get(rest, rest)
    return word


def is_reversed(name: CallName) -> bool:
    """Whether a call computes with its arguments in reverse order, as `rsub` does."""
    return name.api.replace("_", "") in _REVERSED


def _overwrites(name: CallName) -> bool:
    """Whether the call may replace the content of its first argument."""
    if name.is_module:
        return False
    api = name.api.rpartition(".")[2]
    return api == "__setitem__" or (api.endswith("_") and not api.endswith("__"))


@functools.lru_cache(maxsize=4096)
def _unknown(word: str, is_module: bool) -> Operator:
    draws = _DRAWS.search(word) is not None and not word.endswith(("backward", "grad"))
    return Operator(word, is_random=draws and not is_module)


_BY_SIZES: Summed = "as many as the sizes say"
_BY_TYPE = ("Primitive", "Kernel")  # prefixes of MindSpore, where the type stands behind the name
_COMMUNICATIONS = frozenset({"Distributed", "MintDistributed", "CommunicationFunctional"})  # prefixes
# What stands before the name of the same thing: `native_layer_norm`, `linalg.diagonal`, `_foreach_add_`.
_PREFIXES = ("foreach", "native", "npu", "special", "linalg", "fft", "tensor")
# Operators that draw random numbers and have no row: a second call of them would shift those of training.
_DRAWS = re.compile(
    "dropout|rand|uniform|bernoulli|multinomial|categorical|laplace|cauchy|shuffle|rrelu|gumbel|sampler"
    "|normal$|^gamma$|poisson$|^exponential$"
)

# Every word for one thing, by the word that is used here. Case and underscores do not count.
_SAME = MappingProxyType(
    {
        "linear": "dense",
        "bilinear": "bidense",
        "matmul": "bmm batchmatmul mm matmulext bmmv2 intmm",
        "outer": "ger",
        "permute": "transpose swapaxes swapdims t movedim moveaxis",
        "reshape": "view flatten viewas reshapeas unflatten ravel unsafeview reshapealias",
        "unsqueeze": "expanddims",
        "cat": "concat concatenate",
        "vstack": "rowstack",
        "split": "splitwithsizes unsafesplit unsafesplitwithsizes",
        "chunk": "unsafechunk",
        "narrow": "narrowcopy",
        "diagonal": "diagonalcopy",
        "unfold": "unfoldcopy im2col",
        "fold": "col2im",
        "conj": "conjphysical",
        "flip": "reverse",
        "index": "unsafeindex",
        "indexput": "unsafeindexput",
        "liftfresh": "lift",
        "to": "cast astype type typeas float half double bfloat16 int long bool short byte char cpu cuda npu "
        "cfloat tocopy dtypecast",
        "pad": "constantpad1d constantpad2d constantpad3d constantpadnd zeropad1d zeropad2d zeropad3d "
        "reflectionpad1d reflectionpad2d reflectionpad3d replicationpad1d replicationpad2d replicationpad3d "
        "circularpad1d circularpad2d circularpad3d mirrorpad padding padv3",
        "sub": "subtract rsub",
        "mul": "multiply rmul",
        "add": "radd",
        "addn": "accumulaten",
        "div": "divide truedivide realdiv truediv rtruediv rdiv",
        "floordivide": "floordiv rfloordiv",
        "remainder": "mod floormod rmod",
        "pow": "power rpow",
        "eq": "equal",
        "ne": "notequal",
        "gt": "greater",
        "lt": "less",
        "ge": "greaterequal",
        "le": "lessequal",
        "lshift": "bitwiseleftshift",
        "rshift": "bitwiserightshift",
        "or": "ror",
        "xor": "rxor",
        "trunc": "fix",
        "where": "select",
        "clamp": "clip clipbyvalue",
        "neg": "negative",
        "abs": "absolute",
        "reciprocal": "inv",
        "inverse": "linalginv",
        "atan": "arctan",
        "asinh": "arcsinh",
        "asin": "arcsin",
        "acos": "arccos",
        "acosh": "arccosh",
        "atanh": "arctanh",
        "atan2": "arctan2",
        "sigmoid": "expit inplacesigmoid",
        "mean": "reducemean",
        "sum": "reducesum sumtosize",
        "prod": "reduceprod",
        "momentum": "applymomentum fusedmomentum",
        "adam": "applyadam bertapplyadam",
        "adamw": "applyadamw",
        "adagrad": "applyadagrad applyadagradv2",
        "rmsprop": "applyrmsprop applycenteredrmsprop",
        "ftrl": "applyftrl sparseapplyftrl",
        "max": "reducemax",
        "min": "reducemin",
        "any": "reduceany",
        "all": "reduceall",
        "softmax": "softmaxext safesoftmax softmax2d",
        "logsoftmax": "logsoftmaxext",
        "logsigmoid": "logsigmoidforward",
        "silu": "swish",
        "gelu": "fastgelu",
        "prelu": "prelukernel preluext",
        "hardswish": "hswish",
        "hardsigmoid": "hsigmoid",
        "hardshrink": "hshrink",
        "rrelu": "rreluwithnoise",
        "conv2d": "conv2dext",
        "convtranspose1d": "conv1dtranspose",
        "convtranspose2d": "conv2dtranspose",
        "convtranspose3d": "conv3dtranspose",
        "batchnorm": "batchnorm1d batchnorm2d batchnorm3d batchnormext syncbatchnorm cudnnbatchnorm "
        "batchnormimplindex batchnormlegit batchnormlegitfunctional batchnormlegitnotraining",
        "layernorm": "layernormext fusedlayernorm layernormeval layernormv3",
        "groupnorm": "groupnormext",
        "instancenorm": "instancenorm1d instancenorm2d instancenorm3d",
        "rmsnorm": "fusedrmsnorm",
        "localresponsenorm": "lrn",
        "maxpool1d": "maxpool1dwithindices",
        "maxpool2d": "maxpool maxpool2dwithindices maxpool2dext",
        "maxpool3d": "maxpool3dwithindices",
        "adaptivemaxpool1d": "adaptivemaxpool1dwithindices",
        "adaptivemaxpool2d": "adaptivemaxpool2dwithindices",
        "adaptivemaxpool3d": "adaptivemaxpool3dwithindices",
        "fractionalmaxpool2d": "fractionalmaxpool2dwithindices",
        "fractionalmaxpool3d": "fractionalmaxpool3dwithindices",
        "avgpool1d": "avgpool1dext",
        "avgpool2d": "avgpool avgpool2dext",
        "avgpool3d": "avgpool3dext",
        "adaptiveavgpool2d": "adaptiveavgpool",
        "upsamplenearest": "upsamplenearest1d upsamplenearest2d upsamplenearest3d upsamplingnearest2d",
        "upsamplelinear": "upsamplebilinear upsamplebilinear2d upsamplebilinear2daa upsamplingbilinear2d "
        "upsamplebicubic2d upsamplelinear1d upsampletrilinear3d",
        "tile": "repeat",
        "unbind": "unstack",
        "clone": "copy deepcopy",
        "crossentropy": "softmaxcrossentropywithlogits crossentropyloss",
        "linearcrossentropy": "linearcrossentropyloss",
        "mseloss": "mse",
        "nllloss": "nll nllloss2d nlllossforward nllloss2dforward",
        "l1loss": "l1 l1lossext maeloss",
        "kldiv": "kldivloss",
        "multilabelmarginloss": "multilabelmarginlossforward",
        "bcewithlogits": "binarycrossentropywithlogits bcewithlogitsloss",
        "bce": "binarycrossentropy bceloss",
        "attention": "flashattentionscore npufusionattention scaleddotproductattention "
        "scaleddotproductflashattentionforcpu scaleddotproductflashattention "
        "scaleddotproductefficientattention",
        "sequential": "sequentialcell",
        "arange": "range",
        "dropout": "dropoutext fuseddropout",
        "dropout2d": "dropout2dext",
        "gather": "gatherelements gatherd",
        "indexselect": "indexselectext",
        "embedding": "embeddingext",
        "embeddingbag": "embeddingbagforwardonly",
        "maskedfill": "maskedfillscalar",
        "norm": "linalgnorm",
        "cdist": "cdistforward euclideandist",
        "pdist": "pdistforward",
        "sort": "sortv2",
        "gridsample": "gridsampler gridsampler2d gridsampler3d",
        "scatter": "scatterelements",
        "set": "setdata",
    }
)
_WORD = MappingProxyType({word: meaning for meaning, words in _SAME.items() for word in words.split()})
# These are called as others in PyTorch are; the prefixes are those that only MindSpore has for them.
_OF_MINDSPORE = MappingProxyType(
    dict.fromkeys(("Functional.gather", "Primitive.gather", "Kernel.gather"), "indexselect")
)
# Operators of Python that change their left side begin like other names: `__iadd__`, but also `__int__`; and
# `__rand__` is no random number.
_OF_PYTHON = MappingProxyType(
    {
        **{
            f"i{word}": word
            for word in (
                *("add", "sub", "mul", "div", "truediv", "floordiv", "matmul", "pow", "mod"),
                *("and", "or", "xor", "lshift", "rshift"),
            )
        },
        "rand": "and",
        "rlshift": "lshift",
        "rrshift": "rshift",
    }
)
# The plain number comes first in what they compute.
_REVERSED = frozenset(
    {"rsub", "rtruediv", "rdiv", "rfloordiv", "rpow", "rmod", "rmatmul", "rlshift", "rrshift"}
)
