"""The rows of the table of operators.

The first part gives each concept its kind, from which follows how far rounding may go (verdict/tolerance.py).
The second part gives single columns: each lists the concepts that have the property. The names that
frameworks have for a concept are in names.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from msprobe.operators.row import Kind, Operator, Whole

# ---- the kinds ----


def _add_moves(add: Callable[..., None]) -> None:
    """Operators whose results hold numbers of their arguments."""
    add(
        "reshape permute adjoint unsqueeze squeeze expand expandas broadcastto getitem contiguous clone "
        "detach identity stopgradient cat stack hstack vstack dstack columnstack split chunk unbind narrow "
        "tile repeatinterleave repeatelements flip fliplr flipud reversesequence roll rot90 indexselect "
        "gather gathernd takealongdim take diagonal diagonalscatter diag diagflat diagembed blockdiag tril "
        "triu matrixbandpart matrixdiag matrixdiagpart matrixsetdiag pad unfold asstrided asstridedscatter "
        "alias to pixelshuffle pixelunshuffle channelshuffle spacetobatchnd batchtospacend depthtospace "
        "spacetodepth maskedscatter scatter scatterupdate scatterndupdate selectscatter slicescatter "
        "indexcopy inplaceupdate tensorsplit hsplit vsplit dsplit slice stridedslice broadcasttensors "
        "meshgrid cartesianprod combinations real imag complex viewasreal viewascomplex conj resolveconj "
        "resolveneg liftfresh index embedding maskedfill where choose indexfill filldiagonal nantonum "
        "upsamplenearest maxunpool1d maxunpool2d maxunpool3d atleast1d atleast2d atleast3d alignas alignto "
        "aligntensors positive item numpy pinmemory listtotensor formatcast confusiontranspose fftshift "
        "ifftshift moetokenpermute tensormove stridedslicegrad",
        "moves",
    )
    add("setitem set fill zero one assign", "moves", overwrites=True)
    add("maskedselect nonzero unique uniqueconsecutive argwhere", "moves", shapes_by_value=True, decides=True)
    add("nonzerostatic uniquewithpad", "moves", decides=True)
    add("shuffle randomshuffle", "moves", is_random=True)
    add("relugrad", "moves", decides=True)  # of the gradient, where the result was positive


def _add_linear(add: Callable[..., None]) -> None:
    """Operators that add or multiply numbers."""
    add(
        "add sub neg addn accumulate lerp biasadd addscalar strideadd assignadd assignsub inplaceadd "
        "inplacesub inplaceindexadd indexput put indexadd scatteradd scattersub scatternd scatterndadd "
        "scatterndsub diff",
        "adds",
    )
    add("addrelu", "adds", decides=True)
    add(
        "sum cumsum trace segmentsum unsortedsegmentsum bincount embeddingbag nansum fold biasaddgrad", "sums"
    )
    add(
        "mean nanmean avgpool1d avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d "
        "interpolate upsample upsamplelinear scatterreduce",
        "sums",
        is_mean=True,
    )
    add("mul prod cumprod kron cross outer deg2rad rad2deg", "multiplies", summed="none")
    add("addcmul", "multiplies", summed="none", is_added_first=True)
    add("matmul", "multiplies", summed="last axis of first", is_lowered=True)
    add("addmm baddbmm", "multiplies", summed="last axis of first", is_added_first=True, is_lowered=True)
    add("linear", "multiplies", summed="last axis of second", is_lowered=True)
    add(
        "conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d convolution convtbc",
        "multiplies",
        summed="all but first axis of second",
        is_lowered=True,
    )
    add("addbmm addmv addr", "multiplies", is_added_first=True, is_lowered=True)
    add(
        "rmatmul mv dot vdot multidot chainmatmul einsum bilinear hspmm smm sspaddmm conv2dbackpropinput "
        "conv2dbackpropfilter conv3dbackpropinput conv3dbackpropfilter",
        "multiplies",
        is_lowered=True,
    )
    add("inner vecdot batchdot tensordot spmm dsmm hsmm", "multiplies")


def _add_curved(add: Callable[..., None]) -> None:
    """Functions of single numbers or of rows."""
    add("relu leakyrelu prelu abs", "smooth", decides=True, degrees=(1.0, 1.0))
    add(
        "hardtanh relu6 threshold hardsigmoid clamp clampmin clampmax",
        "smooth",
        decides=True,
        degrees=(0.0, 1.0),
    )
    add("atan asinh softsign elu celu", "smooth", degrees=(0.0, 1.0))
    add("selu", "smooth", slope=1.76, degrees=(0.0, 1.0))
    add("logsigmoid softplus tanhshrink logaddexp logaddexp2", "smooth")
    add("hardswish hardshrink softshrink", "smooth", slope=1.5, decides=True)
    add("gelu quickgelu silu mish", "smooth", slope=1.2, degrees=(0.9, 2.0))
    add("sigmoid", "smooth", slope=0.25, bounded=1.0)
    add("ndtr", "smooth", slope=0.4, bounded=1.0)
    add("softmax softmin", "smooth", slope=0.5, bounded=1.0, row_total="numbers")
    add("logsoftmax", "smooth", slope=2.0, row_total="exponentials")
    add("logsumexp glu", "smooth", slope=2.0)
    add("tanh erf", "smooth", slope=1.2, bounded=1.0, degrees=(0.0, 1.0))
    add("erfc", "smooth", slope=1.2, bounded=2.0)
    # The absolute error of an angle is what reaches these, so that a large angle needs no rule of its own.
    add("sin cos", "smooth", bounded=1.0)
    add("sinc", "smooth", slope=1.4, bounded=1.0)
    add(
        "max min amax amin maximum minimum cummax cummin median nanmedian quantile nanquantile kthvalue "
        "aminmax argmaxwithvalue argminwithvalue fmax fmin topk sort msort mode maxpool1d maxpool2d "
        "maxpool3d adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d scattermax scattermin "
        "unsortedsegmentmax unsortedsegmentmin",
        "smooth",
        decides=True,
    )
    add("ptp", "smooth", slope=2.0, decides=True)


def _add_powers(add: Callable[..., None]) -> None:
    """Operators that keep relative errors of about the same size; those that normalise among them."""
    add(
        "varmean stdmean renorm clipbynorm clipbyglobalnorm dist cdist cosinesimilarity pairwisedistance "
        "log1p hypot ldexp",
        "powers",
    )
    add("normalize", "powers", degrees=(0.0, 0.0))
    add("rsqrt", "powers", degrees=(-0.5, -0.5))
    add("reciprocal", "powers", degrees=(-1.0, -1.0))
    add("sqrt", "powers", degrees=(0.5, 0.5))
    add("var square", "powers", degrees=(2.0, 2.0))
    add(
        "std norm vectornorm matrixnorm frobeniusnorm normexceptdim pdist lppool1d lppool2d lppool3d",
        "powers",
        degrees=(1.0, 1.0),
    )
    # These keep the norm of what they are given up to a factor, and so its relative error.
    add(
        "fft fft2 fftn ifft ifft2 ifftn rfft rfft2 rfftn irfft irfft2 irfftn hfft hfft2 hfftn ihfft ihfft2 "
        "ihfftn",
        "powers",
        degrees=(1.0, 1.0),
    )
    add("div addcdiv xdivy", "powers", divides=True)
    add("pow floatpower", "powers", has_exponent=True)
    add("exp exp2", "exponential")
    add("log log2 log10", "logarithm")
    add("layernorm groupnorm rmsnorm localresponsenorm", "normalises", degrees=(0.0, 0.5))
    add("batchnorm instancenorm", "normalises", changes_state=True)


def _add_decisions(add: Callable[..., None]) -> None:
    """Operators that give whole numbers or truth values, or jump."""
    add(
        "eq ne gt lt ge le logicaland logicalor logicalnot logicalxor isnan isinf isneginf isposinf "
        "isfinite isreal isin and or xor invert not argmax argmin argsort searchsorted bucketize onehot "
        "floor ceil round trunc frac sign sgn heaviside floordivide truncatediv remainder fmod truncatemod "
        "bitwiseand bitwiseor bitwisenot bitwisexor allclose isclose approximateequal any all countnonzero "
        "lshift rshift signbit gcd lcm histc histogram histogramdd intopk sequencemask populationcount "
        "checkvalid fakequantizepertensoraffine quantize dequantize",
        "compares",
        decides=True,
    )


def _add_makers(add: Callable[..., None]) -> None:
    """Operators that make numbers of nothing, and random ones."""
    add(
        "arange zeros ones full zeroslike oneslike fulllike fills eye linspace logspace tensor "
        "scalartensor newzeros newones newfull newtensor asarray astensor fromnumpy shape size rank ndim "
        "numel dim dynshape trilindices triuindices bartlettwindow blackmanwindow hammingwindow hannwindow "
        "kaiserwindow fftfreq rfftfreq eps stride ispinned issamesize",
        "makes",
    )
    add(
        "empty emptylike newempty emptystrided newemptystrided emptypermuted emptywithformat "
        "emptywithswappedmemory resize resizeas resizeoutput",
        "makes",
        is_undefined=True,
    )
    add(
        "rand randn randint randperm randlike randnlike randintlike standardnormal standardlaplace "
        "bernoulli multinomial multinomialwithreplacement normal uniform uniformint uniformreal poisson "
        "exponential simexponential geometric lognormal cauchy laplace gamma binomial random randomgamma "
        "randompoisson randomcategorical choicewithmask randomchoicewithmask uniformcandidatesampler "
        "loguniformcandidatesampler truncnormal truncatednormal dropoutgenmask",
        "makes",
        is_random=True,
    )
    add("dropout", "smooth", is_random=True, drops="numbers")
    add("dropout1d dropout2d dropout3d featuredropout", "smooth", is_random=True, drops="channels")
    add("alphadropout featurealphadropout", "smooth", is_random=True, drops="to a constant")
    add("gumbelsoftmax rrelu", "smooth", is_random=True)
    add("fractionalmaxpool2d fractionalmaxpool3d", "smooth", is_random=True, decides=True)


def _add_unknown(add: Callable[..., None]) -> None:
    """Operators of several steps, for which no single kind holds; losses among them."""
    add("attention", "attends")
    add("lstm gru rnn", "unknown", has_steps=True)
    add("multiheadattention transformerencoderlayer gridsample linearcrossentropy", "unknown")
    add("lstmcell grucell rnncell rnntanhcell rnnrelucell", "unknown", is_lowered=True)
    add("nextafter frexp", "unknown", reads_bits=True)
    add("expm1 sinh cosh tan", "unknown")  # as their argument, and as its exponential, or with poles
    add(
        "sgd momentum adam adamw adamweightdecay adagrad rmsprop ftrl lamb fusedsgd fusedadam fusedadamw",
        "unknown",
        is_optimizer=True,
    )
    add(
        "bce l1loss kldiv gaussiannllloss poissonnllloss softmarginloss hingeembeddingloss marginrankingloss "
        "multimarginloss multilabelmarginloss multilabelsoftmarginloss tripletmarginloss "
        "tripletmarginwithdistanceloss cosineembeddingloss ctcloss",
        "unknown",
        is_loss=True,
    )
    # A probability less its target, and twice the difference to a target.
    add("crossentropy nllloss", "unknown", is_loss=True, bounds_gradient=True, gradient_slope=0.5)
    add(
        "bcewithlogits",
        "unknown",
        is_loss=True,
        is_pointwise=True,
        bounds_gradient=True,
        gradient_slope=0.25,
    )
    add("mseloss smoothl1loss huberloss", "unknown", is_loss=True, is_pointwise=True, gradient_slope=2.0)


# ---- single columns ----

_COLUMNS = MappingProxyType(
    {
        "fills": "fill fills filldiagonal full fulllike indexfill maskedfill newfull nantonum pad "
        "scalartensor scatter setitem tensor where",
        "casts": "to reshape clone set numpy",  # `view`, `copy_` and the like may be given a dtype
        "is_lowered": "attention prelu",
        "shapes_by_value": "where",  # of a condition alone
        "is_running": "cumsum cumprod",
        "ignores_order": "sum nansum mean nanmean prod var std logsumexp max min amax amin median all any "
        "countnonzero norm vectornorm frobeniusnorm",
        "jumps": "threshold hardshrink",
        "compares_equality": "eq ne isin allclose isclose approximateequal intopk",
        "may_repeat": "getitem index indexselect gather gathernd takealongdim take embedding asstrided pad "
        "repeatinterleave unfold choose upsamplenearest",
        "is_shape": "shape size rank ndim numel dim dynshape",
        "keeps_values": "reshape permute unsqueeze squeeze expand broadcastto getitem contiguous to clone "
        "detach stopgradient identity dropout",
        "gives_tuple": "split tensorsplit hsplit vsplit dsplit chunk unbind broadcasttensors meshgrid",
        "is_class": "linear bilinear conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d "
        "batchnorm layernorm groupnorm instancenorm rmsnorm localresponsenorm embedding embeddingbag relu "
        "relu6 rrelu prelu leakyrelu elu selu celu gelu silu mish glu sigmoid logsigmoid hardsigmoid "
        "hardswish hardshrink softshrink hardtanh threshold tanh tanhshrink softsign softplus softmax "
        "softmin logsoftmax maxpool1d maxpool2d maxpool3d maxunpool1d maxunpool2d maxunpool3d "
        "fractionalmaxpool2d fractionalmaxpool3d avgpool1d avgpool2d avgpool3d lppool1d lppool2d lppool3d "
        "adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d adaptivemaxpool1d adaptivemaxpool2d "
        "adaptivemaxpool3d dropout dropout1d dropout2d dropout3d alphadropout featurealphadropout identity "
        "reshape pad pixelshuffle pixelunshuffle channelshuffle fold unfold upsample upsamplenearest "
        "upsamplelinear lstm gru rnn lstmcell grucell rnncell multiheadattention transformerencoderlayer "
        "cosinesimilarity pairwisedistance crossentropy linearcrossentropy nllloss bce bcewithlogits "
        "mseloss l1loss smoothl1loss huberloss kldiv gaussiannllloss poissonnllloss softmarginloss "
        "hingeembeddingloss marginrankingloss multimarginloss multilabelmarginloss "
        "multilabelsoftmarginloss tripletmarginloss tripletmarginwithdistanceloss cosineembeddingloss "
        "ctcloss",
        "has_weights": "linear bilinear conv1d conv2d conv3d convtranspose1d convtranspose2d "
        "convtranspose3d layernorm batchnorm groupnorm instancenorm rmsnorm embedding embeddingbag prelu",
        "is_bias_apart": "linear conv1d conv2d conv3d",
        "has_inner_steps": "crossentropy rmsnorm instancenorm normalize",
        "is_weight_transposed": "linear",
    }
)
_TWO = ("input", "other")
_VALUES: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        # Only plain numbers that enter the result as they are. Axes are none: -1 beside 3 may be the same.
        "plain": {
            **dict.fromkeys(
                ("add", "sub", "mul", "div", "pow", "floordivide", "remainder", "maximum", "minimum"), _TWO
            ),
            **dict.fromkeys(("eq", "ne", "gt", "lt", "ge", "le"), _TWO),
            "clamp": ("input", "min", "max"),
            "maskedfill": ("input", "mask", "value"),
            "leakyrelu": ("input", "negative_slope"),
        },
        "tensors": {"batchnorm": ("input", "running_mean", "running_var", "weight", "bias")},
        "tensors_of_primitive": {"batchnorm": ("input", "weight", "bias", "running_mean", "running_var")},
        "core_of": {
            "matmul": Whole("linear"),
            "conv1d": Whole("conv1d", needs_bias=True),
            "conv2d": Whole("conv2d", needs_bias=True),
            "conv3d": Whole("conv3d", needs_bias=True),
            "indexselect": Whole("embedding", (1, 0)),
        },
    }
)


def _rows() -> dict[str, Operator]:
    found: dict[str, Operator] = {}

    def add(words: str, kind: Kind, **facts: Any) -> None:
        for word in words.split():
            if word in found:
                raise ValueError(f"{word} has two rows in the table of operators")
            found[word] = Operator(word, kind, **facts)

    for part in (
        _add_moves,
        _add_linear,
        _add_curved,
        _add_powers,
        _add_decisions,
        _add_makers,
        _add_unknown,
    ):
        part(add)
    columns = {column: dict.fromkeys(words.split(), True) for column, words in _COLUMNS.items()}
    for column, values in (*columns.items(), *_VALUES.items()):
        for word, value in values.items():
            found[word] = found[word]._replace(**{column: value})
    for whole in [row.core_of for row in found.values() if row.core_of is not None]:
        found[whole.concept] = found[whole.concept]._replace(has_parts=True)
    return found


TABLE = MappingProxyType(_rows())
