"""MindSpore tensors have the hash of their own bits, whatever numpy makes of their dtype."""

import subprocess
import sys

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from ms_case import Probe, probe

from msprobe.adapter import Want
from msprobe.mindspore.describe import describe
from test_hash import by_definition

__all__ = ["probe"]

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


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16, mindspore.bool_])
@pytest.mark.parametrize(
    "shapes", [((1, 300), (9000, 300)), ((300, 1, 2), (300, 5000, 2)), ((1,), (4_000_000,))]
)
def test_a_large_expanded_view_is_described_as_its_values(
    dtype: mindspore.Type, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    small, large = shapes
    values = Tensor(np.random.default_rng(0).standard_normal(small).astype(np.float32))
    view = values.astype(dtype).broadcast_to(large)
    made = values.tile(tuple(many // few for few, many in zip(small, large, strict=True))).astype(dtype)
    ours, theirs = (describe(each, Want(checksum=True, sketch=True)) for each in (view, made))
    assert (ours.shape, ours.hash, ours.checksum, ours.sketch) == (
        theirs.shape,
        theirs.hash,
        theirs.checksum,
        theirs.sketch,
    )
    assert ours.hash is not None and ours.statistics is not None and theirs.statistics is not None
    assert [float(n) for n in ours.statistics if n is not None] == pytest.approx(
        [float(n) for n in theirs.statistics if n is not None], rel=1e-9
    )


_PEAK = """
import mindspore, numpy as np
from mindspore import Tensor
from msprobe.adapter import Want
from msprobe.mindspore.describe import describe

def peak():
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("VmHWM")) // 1024

base = Tensor(np.ones((1, 1024, 1024), np.float32)).astype(mindspore.{dtype})
describe(base, Want(checksum=True, sketch=True))
before = peak()
view = base.broadcast_to((64, 1024, 1024))
print(describe(view, Want()).shape == (64, 1024, 1024), peak() - before)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_describing_an_expanded_view_does_not_make_its_elements(dtype: str) -> None:
    """256 MB; what is stored takes 4 MB."""
    command = [sys.executable, "-c", _PEAK.format(dtype=dtype)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, megabytes = done.stdout.split()[-2:]
    assert shown == "True" and int(megabytes) < 32


def test_reading_what_a_view_stores_is_no_call_of_the_program(probe: Probe) -> None:
    """Tensor.narrow is listed, and so would be recorded and differentiated."""

    def work(x: Tensor) -> Tensor:
        return mindspore.ops.tanh(x.broadcast_to((600, 1000))).sum()

    x = Tensor(np.ones((1, 1000), np.float32))
    debugger = probe.debugger("L1")
    debugger.start()
    gradient = mindspore.grad(work)(x)
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    assert not any("narrow" in name for name in probe.data())
    assert any("tanh.0.backward" in name for name in probe.data())
    assert np.array_equal(gradient.asnumpy(), mindspore.grad(work)(x).asnumpy())
