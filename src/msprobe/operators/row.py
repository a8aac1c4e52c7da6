"""The columns of the table of operators: what is known of one operator."""

from __future__ import annotations

from typing import Literal, NamedTuple

# How errors of the arguments reach the result.
Kind = Literal[
    "moves",  # the result holds numbers of the arguments, at other positions or in another dtype
    "adds",  # the sum of the arguments, number by number
    "sums",  # each number of the result is the sum of many of the argument
    "multiplies",  # sums of products: matrix products, convolutions, products number by number
    "smooth",  # a function of each number, or of each row, whose slope is at most `slope`
    "powers",  # a function of each number that keeps relative errors of about the same size
    "exponential",  # the relative error of the result is the absolute error of the argument
    "logarithm",  # the absolute error of the result is the relative error of the argument
    "normalises",  # divides by the spread of a row
    "attends",  # averages of rows of the third tensor, weighted by products of the first two
    "compares",  # the result is whole numbers or truth values, or jumps
    "makes",  # has no tensors among its arguments, or does not use their values
    "unknown",
]

# Of products: which numbers of the factors are multiplied and added for one number of the result.
Summed = Literal[
    "as many as the sizes say",
    "none",  # it multiplies number by number
    "last axis of first",
    "last axis of second",
    "all but first axis of second",
]


class Whole(NamedTuple):
    """What a call is the core of: one framework does in one call what another does in several."""

    concept: str
    order: tuple[int, int] = (0, 1)  # the positions of the input and the weight among the core's tensors
    needs_bias: bool = False  # without one the core is the whole itself


class Operator(NamedTuple):
    """One row of the table."""

    concept: str
    kind: Kind = "unknown"

    # ---- numbers: how far errors go ----
    slope: float = 1.0  # of "smooth": the largest change of the result by a change of an argument
    bounded: float = 0.0  # no number of the result is larger than this; 0: no such bound
    degrees: tuple[float, float] | None = None  # the result grows by this power of its first argument
    is_mean: bool = False  # of "sums": divided by the number of summands
    is_running: bool = False  # each number of the result is made of all that come before it along an axis
    has_steps: bool = False  # many kernels, each of which goes on with what the one before it gave
    may_repeat: bool = False  # of "moves": a number may be taken several times, so that its gradient is a sum
    summed: Summed = "as many as the sizes say"  # of "multiplies"
    is_added_first: bool = False  # of "multiplies": its first argument is added to the product of the others
    divides: bool = False  # of "powers": its last argument is the divisor
    has_exponent: bool = False  # of "powers": a plain number among the arguments is the exponent
    row_total: Literal["", "numbers", "exponentials"] = ""  # what of the result adds up to 1 in each row
    is_loss: bool = False  # a mean or sum over rows, each compared with its target
    is_pointwise: bool = False  # of a loss: numbers are compared one by one, not rows
    bounds_gradient: bool = False  # of a loss: the gradient of a row is at most that of its share, times 2
    gradient_slope: float = 0.0  # of a loss: how fast the gradient changes with the argument; 0: not known
    jumps: bool = (
        False  # of "smooth": not continuous where it decides, as a threshold below which all is zero
    )
    compares_equality: bool = False  # of "compares": whether numbers are equal, which any rounding changes
    decides: bool = False  # picks numbers by comparing them; a tie may fall the other way

    # ---- contents: where the numbers of the result come from ----
    is_undefined: bool = False  # the result is whatever the memory held
    is_random: bool = False
    ignores_order: bool = False  # gives one number of a whole tensor, wherever its numbers stand
    drops: Literal["", "numbers", "channels", "to a constant"] = ""  # what it replaces by chance, by zero
    fills: bool = False  # writes a plain number among its arguments into the result
    keeps_values: bool = False  # gives values of its one argument as they are, whatever their shape
    overwrites: bool = False  # replaces the content of an argument, whatever it was
    changes_state: bool = False  # updates buffers that it is given, beside its result
    is_optimizer: bool = False  # replaces the parameters and states that it is given by new ones
    communicates: bool = False  # its result depends on what other ranks gave

    # ---- dtypes and shapes ----
    casts: bool = False  # the result has the dtype that the call names, and not the one that it computes in
    is_lowered: bool = False  # automatic mixed precision computes it in the lower precision
    reads_bits: bool = False  # its result depends on how wide a number is
    is_shape: bool = False  # the result is a shape or a size, and says nothing of values
    shapes_by_value: bool = False  # the shape of the result depends on values
    gives_tuple: bool = False  # gives a tuple, also where that holds one tensor

    # ---- across frameworks: which calls and arguments belong together ----
    is_class: bool = False  # a framework brings a module of this name
    has_weights: bool = False  # what it takes beside its first tensor are parameters
    is_bias_apart: bool = False  # some frameworks add its bias in a call of its own
    core_of: Whole | None = None
    has_parts: bool = False  # some framework does it in several calls, one of which is its core
    has_inner_steps: bool = False  # the gradients of its last step are not those of its inputs
    is_weight_transposed: bool = False  # its last step gives the gradient of the second tensor transposed
    plain: tuple[str, ...] = ()  # what plain numbers at its positions are, where all frameworks agree
    tensors: tuple[str, ...] = ()  # what the tensors at its positions are, where their order must be known
    tensors_of_primitive: tuple[str, ...] = ()  # the same of MindSpore's primitive and of aten
