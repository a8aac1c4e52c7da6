"""MindSpore tensors have the hash of their own bits, whatever numpy makes of their dtype."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from msprobe.adapter import Want
from msprobe.mindspore.describe import describe
from test_hash import by_definition

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "bool_"]


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
@pytest.mark.parametrize("shape", [(3, 50), (), (2000,), (0, 4)], ids=str)
def test_hash_is_that_of_the_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(0).standard_normal(shape) * 9).astype(getattr(np, dtype))
    values = np.asarray(values, getattr(np, dtype))
    if 0 in shape and dtype == "complex64":
        pytest.skip("MindSpore makes no such tensor")
    assert describe(Tensor(values), Want()).hash == by_definition(values.tobytes())


def test_bfloat16_has_the_hash_of_its_two_bytes() -> None:
    values = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    bits = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    leaf = describe(Tensor(bits).astype(mindspore.bfloat16), Want())
    assert leaf.dtype == "BFloat16"
    assert leaf.hash == by_definition((bits.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def test_a_view_has_the_hash_of_its_values() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = Tensor(values).swapaxes(0, 1)
    assert describe(view, Want()).hash == by_definition(values.T.tobytes())
    wide = Tensor(values[:1]).broadcast_to((5, 4))
    assert describe(wide, Want()).hash == by_definition(np.broadcast_to(values[:1], (5, 4)).tobytes())
