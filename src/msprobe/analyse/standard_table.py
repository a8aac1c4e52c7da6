"""Which standard an API is judged by, and the limits of each dtype: facts in tables, each with its source.

Sources: [8.3.3] the lists that mindstudio-probe 8.3.3 ships, and the tables that it writes; [2024] the
accuracy checker of 2024. Where they differ the newer one holds. APIs are named without prefix and count.
These lists are specified by name; what operators do is in operators/.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class Limits(NamedTuple):
    """What is asked of one dtype."""

    small: float  # a reference value up to this is small: its absolute error counts, else the relative one
    small_error: float  # the largest absolute error of a small value
    relative: float  # the largest relative error of any other
    floor: float  # an error of the trusted device below this counts as this, where errors are divided
    ulp: float  # an error of more units in the last place than this is a large one
    mantissa: int  # bits
    least_exponent: int


# small, small_error, relative: [8.3.3]; [2024] had 1e-3, 1e-5, 1e-3 (bfloat16 4e-3) and 1e-6, 1e-9, 1e-6.
# floor: [8.3.3]. ulp, mantissa, least_exponent: [2024], the same in [8.3.3].
# bfloat16: [8.3.3] has a small_error of 1e-16, below the spacing of all but the tiniest of these numbers, so
# that correct rounding fails; taken for a slip of 2**-16, which float16 has.
# float64 is in no source: it has the limits of float32, and its own layout.
LIMITS = MappingProxyType(
    {
        "float16": Limits(2.0**-10, 2.0**-16, 2.0**-10, 2.0**-11, 1, 10, -14),
        "bfloat16": Limits(2.0**-10, 2.0**-16, 2.0**-8, 2.0**-8, 1, 7, -126),
        "float32": Limits(2.0**-20, 2.0**-30, 2.0**-20, 2.0**-14, 32, 23, -126),
        "float64": Limits(2.0**-20, 2.0**-30, 2.0**-20, 2.0**-14, 32, 52, -1022),
    }
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


COARSE = frozenset({"float16", "bfloat16"})  # [8.3.3] judged with wider shares than other floats

# [8.3.3], as many as the 30 of [2024]: one operation for each element, so every error can be bounded.
ABSOLUTE = _names(
    "add add_ __add__ __iadd__ __radd__ sub sub_ rsub __sub__ __isub__ mul mul_ __mul__ __imul__ __rmul__ "
    "div div_ __div__ __idiv__ divide divide_ leaky_relu leaky_relu_ prelu reciprocal reciprocal_ "
    "rsqrt rsqrt_ square square_"
)
# [8.3.3], as many as the 62 of [2024]: values are moved, chosen or compared, and none is computed.
BINARY = _names(
    "abs abs_ absolute absolute_ argmin bitwise_and bitwise_and_ broadcast_to ceil ceil_ equal fill_ flatten "
    "floor floor_ gather greater greater_ greater_equal greater_equal_ histc isfinite isnan less less_ "
    "less_equal less_equal_ logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ "
    "masked_fill masked_fill_ max_pool3d maximum minimum neg neg_ nonzero not_equal not_equal_ one_hot pad "
    "relu reshape round round_ select sign sign_ sort tile topk transpose transpose_ tril tril_ triu triu_ "
    "type_as"
)
# [8.3.3], as many as the 17 of [2024]: matrix products.
ULP = _names(
    "__matmul__ addbmm addbmm_ addmm addmm_ baddbmm baddbmm_ bilinear bmm chain_matmul hspmm linear matmul "
    "mm mv smm sspaddmm"
)
# [2024] and [8.3.3].
THOUSANDTH = frozenset({"conv1d", "conv2d"})

# Ours: whose eps is by default that of the dtype they compute in, and its place among the arguments: of the
# function of torch, not of what it computes.
EPS_BY_DTYPE = MappingProxyType({"rms_norm": 3})


def limits_of(dtype: str) -> Limits:
    """Those of the dtype, or of float32 for what no source speaks of."""
    return LIMITS.get(dtype, LIMITS["float32"])
