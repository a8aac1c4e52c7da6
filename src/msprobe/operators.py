"""What each operator does: the one table of operators that every judgement reads.

A row is a concept, not a name of one framework: `torch.add`, `Tensor.__iadd__`, `mindspore.ops.Add` and
`aten.add_` are one row. An operator that the table does not know gets a conservative row of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Literal, NamedTuple

from msprobe.name import CallName, call_owner

# How errors of the arguments reach the result.
Kind = Literal[
    "moves",  # the result holds numbers of the arguments, at other positions or in another dtype
    "adds",  # the sum of the arguments, number by number
    "sums",  # each number of the result is the sum of many of the argument
    "multiplies",  # sums of products: matrix products, convolutions, products number by number
    "smooth",  # a function of each number, or of each row, whose slope is at most `slope`
    "powers",  # a function of each number that keeps relative errors of about the same size
    "exponential",  # the relative error of the result is the absolute error of the argument
    "normalises",  # divides by the spread of a row
    "attends",  # averages of rows of the third tensor, weighted by products of the first two
    "compares",  # the result is whole numbers or truth values, or jumps
    "makes",  # has no tensors among its arguments, or does not use their values
    "unknown",
]


class Operator(NamedTuple):
    """One row of the table."""

    concept: str
    kind: Kind = "unknown"
    slope: float = 1.0  # of "smooth": the largest change of the result by a change of an argument
    is_undefined: bool = False  # the result is whatever the memory held
    is_random: bool = False
    is_mean: bool = False  # of "sums": divided by the number of summands
    decides: bool = False  # picks numbers by comparing them; a tie may fall the other way
    overwrites: bool = False  # replaces the content of an argument, whatever it was
    changes_state: bool = False  # updates buffers that it is given, beside its result
    shapes_by_value: bool = False  # the shape of the result depends on values
    is_loss: bool = False  # a mean or sum over rows, each compared with its target
    bounded: float = 0.0  # no number of the result is larger than this; 0: no such bound
    degrees: tuple[float, float] | None = None  # of "smooth": the result grows by this power of the argument


def operator_of(name: CallName) -> Operator:
    """Return the row of a call's operator."""
    word = concept(name)
    row = _TABLE.get(word)
    if row is None:
        row = _unknown(word)
    if _overwrites(name):
        return row._replace(overwrites=True)
    return row


def _overwrites(name: CallName) -> bool:
    """Whether the call may replace the content of its first argument."""
    if name.is_module:
        return False
    api = name.api.rpartition(".")[2]
    return api == "__setitem__" or (api.endswith("_") and not api.endswith("__"))


@functools.lru_cache(maxsize=65_536)
def concept(name: CallName) -> str:
    """Return one word for what a call does, the same for every framework."""
    text = name.kind if name.is_module or name.prefix == _PRIMITIVE else name.api
    word = text.replace("_", "").replace(".", "").lower()
    if text.startswith("__"):
        word = _IN_PLACE.get(word, word)
    word = _OF_MINDSPORE.get(call_owner(name.prefix, word)) or _WORD.get(word, word)
    for prefix in _PREFIXES:
        if word not in _TABLE and word.startswith(prefix):
            rest = word.removeprefix(prefix)
            word = _WORD.get(rest, rest)
    return word


_PRIMITIVE = "Primitive"
# Aten names and lists of tensors: `aten._softmax`, `native_layer_norm`, `torch._foreach_add_`.
_PREFIXES = ("foreach", "native", "npu", "special", "fft")

# Every word for one thing, by the word that is used here. Case and underscores do not count.
_SAME = MappingProxyType(
    {
        "linear": "dense",
        "matmul": "bmm batchmatmul mm matmulext mv dot vdot inner outer ger multidot chainmatmul",
        "permute": "transpose swapaxes swapdims t movedim moveaxis adjoint",
        "reshape": "view flatten viewas reshapeas unflatten",
        "unsqueeze": "expanddims",
        "cat": "concat concatenate hstack vstack dstack columnstack",
        "to": "cast astype type typeas float half double bfloat16 int long bool short byte char cpu cuda npu",
        "sub": "subtract rsub",
        "mul": "multiply rmul",
        "add": "radd tensoradd",
        "div": "divide truedivide realdiv truediv rtruediv",
        "floordivide": "floordiv",
        "remainder": "mod floormod fmod",
        "pow": "power rpow floatpower",
        "eq": "equal",
        "ne": "notequal",
        "gt": "greater",
        "lt": "less",
        "ge": "greaterequal",
        "le": "lessequal",
        "where": "select",
        "clamp": "clip clipbyvalue clampmin clampmax",
        "neg": "negative",
        "abs": "absolute",
        "reciprocal": "inv",
        "mean": "reducemean",
        "sum": "reducesum sumtosize",
        "max": "reducemax",
        "min": "reducemin",
        "softmax": "softmaxext safesoftmax",
        "logsoftmax": "logsoftmaxext",
        "silu": "swish",
        "gelu": "fastgelu quickgelu",
        "conv2d": "conv2dext",
        "batchnorm": "batchnorm1d batchnorm2d batchnorm3d batchnormext syncbatchnorm cudnnbatchnorm",
        "layernorm": "layernormext fusedlayernorm",
        "groupnorm": "groupnormext",
        "instancenorm": "instancenorm1d instancenorm2d instancenorm3d",
        "rmsnorm": "npurmsnorm fusedrmsnorm",
        "maxpool2d": "maxpool maxpool2dwithindices",
        "avgpool2d": "avgpool",
        "adaptiveavgpool2d": "adaptiveavgpool",
        "tile": "repeat",
        "unbind": "unstack",
        "clone": "copy",
        "crossentropy": "softmaxcrossentropywithlogits crossentropyloss",
        "mseloss": "mse",
        "nllloss": "nll nllloss2d",
        "l1loss": "l1",
        "attention": "flashattentionscore npufusionattention scaleddotproductattention "
        "scaleddotproductflashattentionforcpu",
        "multiheadattention": "multiheadattentionforward",
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
        "bcewithlogits": "binarycrossentropywithlogits bcewithlogitsloss",
        "bce": "binarycrossentropy bceloss",
        "norm": "vectornorm linalgnorm linalgvectornorm matrixnorm frobeniusnorm",
        "emptylike": "empty newempty emptystrided newemptystrided emptypermuted emptywithformat",
        "rand": "randn randint randperm randlike randnlike randintlike standardnormal standardlaplace",
        "set": "setdata",
    }
)
_WORD = MappingProxyType({word: meaning for meaning, words in _SAME.items() for word in words.split()})
# These are called as others in PyTorch are; the prefixes are those that only MindSpore has for them.
_OF_MINDSPORE = MappingProxyType({"Functional.gather": "indexselect", "Primitive.gather": "indexselect"})
_IN_PLACE = MappingProxyType({f"i{word}": word for word in ("add", "sub", "mul", "truediv", "matmul", "pow")})


def _rows() -> dict[str, Operator]:
    found: dict[str, Operator] = {}

    def add(words: str, kind: Kind, **facts: float | bool | tuple[float, float]) -> None:
        for word in words.split():
            found[word] = Operator(word, kind, **facts)  # type: ignore[arg-type]

    _add_linear(add)
    _add_curved(add)
    _add_makers_and_losses(add)
    return found


def _add_linear(add: Callable[..., None]) -> None:
    """Operators that move, add or multiply numbers."""
    add(
        "reshape permute unsqueeze squeeze expand expandas broadcastto getitem contiguous clone "
        "detach identity stopgradient cat stack split chunk unbind narrow tile repeatinterleave flip "
        "roll rot90 indexselect gather takealongdim take diagonal diag diagembed tril triu pad "
        "constantpad unfold asstrided alias view movetensor to pixelshuffle pixelunshuffle "
        "channelshuffle zeropad2d maskedscatter scatter setitem copy flatten sequential modulelist "
        "hsplit vsplit tensorsplit sliceslicing slice broadcasttensors meshgrid real imag viewasreal "
        "viewascomplex conj resolveconj resolveneg liftfresh setdata index",
        "moves",
    )
    add("copy setitem set fill zero", "moves", overwrites=True)
    add("maskedfill where", "moves")
    add("maskedselect nonzero unique uniqueconsecutive argwhere", "moves", shapes_by_value=True, decides=True)
    add("embedding", "moves")
    add("add sub neg rsub addn accumulate lerp biasadd addscalar indexput indexadd scatteradd", "adds")
    add("sum cumsum trace segmentsum bincount histc embeddingbag nansum", "sums")
    add(
        "mean avgpool1d avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d",
        "sums",
        is_mean=True,
    )
    add("interpolate upsample upsamplebilinear2d gridsample scatterreduce nanmean", "sums", is_mean=True)
    add(
        "linear matmul addmm baddbmm addbmm addmv addr einsum tensordot mul bilinear kron cross "
        "conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d convolution addcmul "
        "cumprod prod convtbc ger scaleddotproduct dotproduct",
        "multiplies",
    )


def _add_curved(add: Callable[..., None]) -> None:
    """Functions of single numbers or rows, norms, and comparisons."""
    add("relu leakyrelu prelu abs", "smooth", decides=True, degrees=(1.0, 1.0))
    add("hardtanh relu6 threshold hardsigmoid clamp", "smooth", decides=True, degrees=(0.0, 1.0))
    add("atan asinh softsign elu selu celu", "smooth", degrees=(0.0, 1.0))
    add("logsigmoid softplus tanhshrink", "smooth")
    add("hardswish hardshrink softshrink rrelu", "smooth", slope=1.5, decides=True)
    add("gelu silu mish", "smooth", slope=1.2, degrees=(0.9, 2.0))
    add("sigmoid", "smooth", slope=0.25, bounded=1.0)
    add("softmax", "smooth", slope=0.5, bounded=1.0)
    add("logsoftmax logsumexp glu", "smooth", slope=2.0)
    add("tanh erf", "smooth", slope=1.2, bounded=1.0, degrees=(0.0, 1.0))
    add("sin cos", "smooth", bounded=1.0)
    add(
        "max min amax amin maximum minimum cummax cummin median kthvalue aminmax fmax fmin",
        "smooth",
        decides=True,
    )
    add(
        "maxpool1d maxpool2d maxpool3d adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d",
        "smooth",
        decides=True,
    )
    add("topk sort msort mode", "smooth", decides=True)
    add(
        "var std varmean stdmean norm normalize renorm dist cdist cosinesimilarity pairwisedistance", "powers"
    )
    add(
        "div pow sqrt rsqrt square reciprocal log log2 log10 log1p tan addcdiv hypot true sinh cosh", "powers"
    )
    add("exp exp2 expm1", "exponential")
    add("layernorm groupnorm rmsnorm localresponsenorm", "normalises", degrees=(0.0, 0.5))
    add("batchnorm instancenorm", "normalises", changes_state=True)
    add("attention", "attends")
    add("lstm gru rnn lstmcell grucell rnncell multiheadattention transformerencoderlayer", "unknown")
    add(
        "eq ne gt lt ge le logicaland logicalor logicalnot logicalxor isnan isinf isfinite isin and "
        "or xor invert not argmax argmin argsort searchsorted bucketize onehot floor ceil round trunc "
        "frac sign sgn heaviside floordivide remainder bitwiseand bitwiseor bitwisenot bitwisexor "
        "allclose isclose any all countnonzero lshift rshift signbit fakequantizepertensoraffine "
        "quantize dequantize",
        "compares",
        decides=True,
    )


def _add_makers_and_losses(add: Callable[..., None]) -> None:
    """Operators that make numbers of nothing, random ones, and losses."""
    add(
        "arange zeros ones full zeroslike oneslike fulllike eye linspace logspace tensor scalartensor "
        "newzeros newones newfull newtensor tensorcreate asarray astensor fromnumpy shape size numel "
        "dim trilindices triuindices zerosliker",
        "makes",
    )
    add("emptylike resize", "makes", is_undefined=True)
    add(
        "rand bernoulli multinomial normal uniform poisson exponential geometric lognormal cauchy "
        "random truncnormal",
        "makes",
        is_random=True,
    )
    add(
        "dropout dropout1d dropout2d dropout3d alphadropout featuredropout featurealphadropout",
        "smooth",
        is_random=True,
    )
    add("gumbelsoftmax rrelu", "smooth", is_random=True)
    add(
        "crossentropy nllloss bce bcewithlogits mseloss l1loss smoothl1loss huberloss kldiv "
        "gaussiannllloss poissonnllloss softmarginloss hingeembeddingloss marginrankingloss "
        "multimarginloss multilabelmarginloss multilabelsoftmarginloss tripletmarginloss "
        "cosineembeddingloss",
        "unknown",
        is_loss=True,
    )
    add("ctcloss", "unknown", is_loss=True)
    add("linearcrossentropy", "unknown")  # a matrix product and its loss in one


_TABLE = MappingProxyType(_rows())


@functools.lru_cache(maxsize=4096)
def _unknown(word: str) -> Operator:
    return Operator(word)
