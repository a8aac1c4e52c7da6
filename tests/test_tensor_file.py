"""Tensor files against torch.save, numpy.save, real recordings, and files made to do harm."""

import contextlib
import io
import itertools
import math
import mmap
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msprobe import kernels
from msprobe.errors import RecordingError, UsageError
from msprobe.kernels import pack
from msprobe.kernels_deflate import inflate
from msprobe.store.dtypes import DTYPES
from msprobe.store.tensor_file import StoredTensor, TensorData, as_float, encode_npy, encode_pt, read

GOLDEN = Path(__file__).parent / "golden" / "pt"
# The whole collection of recordings made by existing tools is too large for the repository.
MORE_GOLDEN = os.environ.get("MSPROBE_GOLDEN", "")

KNOWN_TO_NUMPY = {"bool", *dir(np)}  # numpy 1 has it under another name
SHAPES = [
    (),
    (0,),
    (1,),
    (255,),
    (256,),
    (65536,),
    (2, 3),
    (3, 0),
    (2, 0, 4),
    (2, 3, 4),
    (1, 2, 3, 4),
    (1,) * 20,
    (7, 1, 1, 300),
]


def filled(dtype: str, shape: tuple[int, ...]) -> TensorData:
    """Every bit pattern may occur, NaN and denormal numbers among them."""
    size = math.prod(shape) * DTYPES[dtype].numpy.itemsize
    numbers = np.random.default_rng(size).integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    return TensorData(numbers.tobytes(), dtype, shape)


def as_torch(tensor: TensorData) -> torch.Tensor:
    kind = getattr(torch, tensor.dtype)
    if not tensor.data:
        return torch.empty(tensor.shape, dtype=kind)
    return torch.frombuffer(bytearray(tensor.data), dtype=kind).reshape(tensor.shape)


def from_torch(tensor: torch.Tensor) -> TensorData:
    """What a tensor holds, taken from its storage and not through the code under test."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    return TensorData(
        bytes(whole.untyped_storage()), str(whole.dtype).removeprefix("torch."), tuple(whole.shape)
    )


def from_stored(stored: StoredTensor) -> TensorData:
    assert stored.array.dtype == DTYPES[stored.dtype].numpy
    assert not stored.array.flags.writeable
    return TensorData(stored.array.tobytes(), stored.dtype, stored.array.shape)


def saved(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def on_disk(folder: Path, content: bytes, name: str = "x.pt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# ---- writing ----


@pytest.mark.skipif(
    torch.__version__.split(".")[:2] != ["2", "13"], reason="the bytes are those of torch 2.13"
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_those_of_torch_save(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, shape)
    assert b"".join(encode_pt(tensor)) == saved(as_torch(tensor))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 5, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_loads_our_files(tmp_path: Path, dtype: str, shape: tuple[int, ...], mapped: bool) -> None:
    tensor = filled(dtype, shape)
    path = on_disk(tmp_path, b"".join(encode_pt(tensor)))
    loaded = torch.load(path, mmap=mapped, weights_only=True)
    assert (type(loaded), loaded.requires_grad, loaded.is_contiguous()) == (torch.Tensor, False, True)
    assert from_torch(loaded) == tensor


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_lie_where_they_can_be_mapped(dtype: str) -> None:
    head, _, _ = encode_pt(filled(dtype, (3, 5)))
    assert memoryview(head).nbytes % 64 == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_zip_readers_find_every_checksum_right(tmp_path: Path, dtype: str) -> None:
    with zipfile.ZipFile(on_disk(tmp_path, b"".join(encode_pt(filled(dtype, (3, 5)))))) as archive:
        assert archive.testzip() is None
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def half_empty(dtype: str) -> TensorData:
    """What a causal mask leaves: rows of numbers, ever longer, and zeros."""
    size = DTYPES[dtype].numpy.itemsize
    numbers = np.tril(np.random.default_rng(1).integers(1, 255, (120, 128 * size), "u1"))
    return TensorData(numbers.tobytes(), dtype, (120, 128))


packs = pytest.mark.skipif(vars(kernels)["_native"] is None, reason="the kernels are not compiled")


@packs
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_numbers_that_deflate_well_are_deflated(tmp_path: Path, dtype: str) -> None:
    tensor = half_empty(dtype)
    path = on_disk(tmp_path, b"".join(encode_pt(tensor)))
    size = len(bytes(tensor.data))
    assert path.stat().st_size < 0.8 * size + 2000
    assert from_torch(torch.load(path, weights_only=True)) == tensor
    for verify in (False, True):
        assert from_stored(read(path, verify=verify)) == tensor
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        packed = [entry for entry in archive.infolist() if entry.compress_type == zipfile.ZIP_DEFLATED]
    assert [(entry.filename, entry.file_size) for entry in packed] == [("archive/data/0", size)]


@pytest.mark.parametrize("count", [1500, 100_000])
def test_numbers_that_hardly_deflate_are_stored_as_they_are(count: int) -> None:
    numbers = np.random.default_rng(1).standard_normal(count).astype("f4")
    tensor = TensorData(numbers.data, "float32", (count,))
    assert any(chunk is tensor.data for chunk in encode_pt(tensor))


@packs
@pytest.mark.parametrize("position", [0.2, 0.5, 0.9])
def test_damage_in_what_is_deflated_is_told(tmp_path: Path, position: float) -> None:
    content = bytearray(b"".join(encode_pt(half_empty("float32"))))
    content[int(len(content) * position)] ^= 0x55
    with pytest.raises(RecordingError, match="is damaged"):
        read(on_disk(tmp_path, bytes(content)))


@packs
@pytest.mark.parametrize("declared", [8, 1 << 31])
def test_what_is_deflated_may_not_be_of_another_size(tmp_path: Path, declared: int) -> None:
    head, packed, tail = (bytes(chunk) for chunk in encode_pt(half_empty("float32")))
    size = (120 * 128 * 4).to_bytes(4, "little")
    assert tail.count(size) == 2  # after the numbers, and in the directory
    tail = tail.replace(size, declared.to_bytes(4, "little"))
    with pytest.raises(RecordingError, match="as many numbers"):
        read(on_disk(tmp_path, head + packed + tail))


def test_inflating_makes_no_more_than_is_declared() -> None:
    packed = memoryview(zlib.compress(bytes(1 << 20), wbits=-15))
    assert inflate(packed, 1 << 20) == bytes(1 << 20)
    assert inflate(packed, 100) == bytes(100)
    for size in (1 << 21, 1 << 40):
        with pytest.raises(ValueError, match="declared"):
            inflate(packed, size)


@packs
@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 3000)) | st.binary(max_size=300),
        min_size=1,
        max_size=12,
    )
)
def test_any_inflater_gives_back_what_was_deflated(parts: list[tuple[bytes, int] | bytes]) -> None:
    data = b"".join(part if isinstance(part, bytes) else part[0] * part[1] for part in parts)
    packed = pack(memoryview(data), len(data) + 100)
    if packed is not None:
        assert zlib.decompress(packed, -15) == inflate(memoryview(packed), len(data)) == data


@packs
@pytest.mark.parametrize("length", [*range(8 * 32, 8 * 100, 8), 65528, 65536, 1 << 20])
def test_runs_of_every_length_are_packed(length: int) -> None:
    dense = np.random.default_rng(length).bytes(70_000)
    data = b"12345678" * (length // 8) + dense[: max(100, length // 2)] + bytes(length)
    packed = pack(memoryview(data), len(data))
    assert packed is not None
    assert zlib.decompress(packed, -15) == data
    assert len(packed) < max(100, length // 2) + 100 + length // 20


@packs
def test_too_little_room_is_no_overrun() -> None:
    data = np.random.default_rng(0).bytes(100_000) + bytes(100_000)
    needed = len(pack(memoryview(data), len(data)) or b"")
    assert len(pack(memoryview(data), needed) or b"") == needed
    for room in [*range(0, needed, 9973), *range(needed - 40, needed)]:
        assert pack(memoryview(data), room) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name in KNOWN_TO_NUMPY])
def test_bytes_are_those_of_numpy_save(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, shape)
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(bytes(tensor.data), DTYPES[dtype].numpy).reshape(shape))
    assert b"".join(encode_npy(tensor)) == stream.getvalue()


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - KNOWN_TO_NUMPY))
def test_npy_holds_the_values_of_what_numpy_lacks(tmp_path: Path, dtype: str) -> None:
    tensor = filled(dtype, (3, 50))
    stored = np.load(on_disk(tmp_path, b"".join(map(bytes, encode_npy(tensor))), "x.npy"), allow_pickle=False)
    wide = as_torch(tensor).to(torch.complex64 if dtype == "complex32" else torch.float32)
    np.testing.assert_array_equal(stored, wide.numpy(), strict=True)


@pytest.mark.parametrize("encode", [encode_pt, encode_npy])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorData(b"123", "float32", (1,)), "has 4 bytes, but 3 were given"),
        (TensorData(b"1234", "float32", ()), None),
        (TensorData(b"1", "qint8", (1,)), "A tensor of dtype 'qint8' cannot be written"),
    ],
)
def test_a_wrong_size_or_dtype_is_refused(
    encode: Callable[[TensorData], list[Any]], tensor: TensorData, message: str | None
) -> None:
    if message is None:
        assert encode(tensor)
    else:
        with pytest.raises(UsageError, match=message):
            encode(tensor)


# ---- both ways ----


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(list(DTYPES)),
    shape=hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=9),
    encode=st.sampled_from([encode_pt, encode_npy]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    shape: tuple[int, ...],
    encode: Callable[[TensorData], list[Any]],
) -> None:
    tensor = filled(dtype, shape)
    stored = read(on_disk(tmp_path_factory.getbasetemp(), b"".join(map(bytes, encode(tensor)))))
    if encode is encode_pt or hasattr(np, dtype):
        assert from_stored(stored) == tensor
    else:
        wide = as_torch(tensor).to(getattr(torch, stored.dtype))
        np.testing.assert_array_equal(stored.array, wide.numpy(), strict=True)


@pytest.mark.parametrize("encode", [encode_pt, encode_npy])
@pytest.mark.parametrize("shape", [(300, 300), (16384,)])
def test_large_files_are_mapped(
    tmp_path: Path, encode: Callable[[TensorData], list[Any]], shape: tuple[int, ...]
) -> None:
    tensor = filled("int32", shape)
    stored = read(on_disk(tmp_path, b"".join(encode(tensor))))
    assert isinstance(stored.array.base, mmap.mmap)
    assert from_stored(stored) == tensor


@pytest.mark.prove
def test_more_than_four_gigabytes(tmp_path: Path) -> None:
    size = (4 << 30) + 100
    zeros = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    zeros[-3:] = b"\1\2\3"
    head, _, tail = encode_pt(TensorData(zeros, "uint8", (size,)))
    path = tmp_path / "x.pt"
    with path.open("wb") as stream:  # a hole in the middle instead of zeros
        stream.write(head)
        stream.seek(size - 3, os.SEEK_CUR)
        stream.write(b"\1\2\3" + bytes(tail))
    stored = read(path)
    assert (stored.array.shape, stored.array[-5:].tolist()) == ((size,), [0, 0, 1, 2, 3])
    loaded = torch.load(path, mmap=True, weights_only=True)
    assert (loaded.shape, loaded[-5:].tolist()) == ((size,), [0, 0, 1, 2, 3])


# ---- reading what torch writes ----

RAMP = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
COMPLEX = torch.complex(RAMP, RAMP + 1)


@pytest.mark.parametrize(
    "value",
    [
        RAMP.permute(2, 0, 1),
        RAMP[1:, ::2, 3],
        RAMP[2, 3, 4],
        RAMP[:, :0],
        torch.tensor(2.5).expand(3, 4),
        torch.nn.Parameter(RAMP.to(torch.bfloat16)[1].t()),
        COMPLEX.conj(),
        COMPLEX.conj().imag,
        COMPLEX[0, 0, 1].conj(),
        RAMP.to(torch.float8_e5m2)[1],
        RAMP.to(torch.uint16)[1:].transpose(0, 2),
        torch.arange(40000, dtype=torch.int16)[20000:].reshape(100, 200).t(),
    ],
    ids=lambda value: f"{str(value.dtype)[6:]}-{list(value.shape)}",
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_reads_whatever_single_tensor_torch_saves(tmp_path: Path, value: torch.Tensor, protocol: int) -> None:
    stored = read(on_disk(tmp_path, saved(value, pickle_protocol=protocol)))
    assert from_stored(stored) == from_torch(value)


def test_reads_files_without_checksums(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = on_disk(tmp_path, saved(RAMP))
    finally:
        torch.serialization.set_crc32_options(True)
    assert from_stored(read(path)) == from_torch(RAMP)


def rebuilt(
    folder: Path,
    tensor: TensorData | bytes,
    *,
    replace: dict[str, bytes] | None = None,
    edit: Callable[[bytes], bytes] | None = None,
    extra: tuple[tuple[str, bytes], ...] = (),
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """A file of ours, taken apart and zipped again with other entries; checksums are right."""
    content = tensor if isinstance(tensor, bytes) else b"".join(encode_pt(tensor))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    path = folder / "x.pt"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, text in [*entries, *extra]:
            text = (replace or {}).get(name.removeprefix("archive/"), text)
            archive.writestr(name, edit(text) if edit and name.endswith("data.pkl") else text)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex128", "float8_e4m3fn"])
def test_reads_big_endian_numbers(tmp_path: Path, dtype: str) -> None:
    tensor = filled(dtype, (3, 4))
    swapped = np.frombuffer(bytes(tensor.data), DTYPES[dtype].numpy).byteswap().tobytes()
    path = rebuilt(tmp_path, tensor, replace={"byteorder": b"big", "data/0": swapped})
    assert from_stored(read(path)) == tensor


@pytest.mark.parametrize("format_opcodes", [b"K\2", b"ctorch_npu.npu._format\nFormat\nK\2\x85R"])
def test_reads_tensors_saved_from_an_npu(tmp_path: Path, format_opcodes: bytes) -> None:
    tensor = filled("float32", (2, 3))

    def from_npu(text: bytes) -> bytes:
        text = text.replace(
            b"torch._utils\n_rebuild_tensor_v2", b"torch_npu.utils.storage\n_rebuild_npu_tensor"
        )
        return text.replace(b"tq\nRq\x0b.", format_opcodes + b"tq\nRq\x0b.")

    assert from_stored(read(rebuilt(tmp_path, tensor, edit=from_npu))) == tensor


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", *(name for name in DTYPES if name.startswith("float8"))]
)
def test_every_bit_pattern_widens_to_its_value(dtype: str) -> None:
    bits = np.arange(256 ** DTYPES[dtype].numpy.itemsize, dtype=f"u{DTYPES[dtype].numpy.itemsize}")
    values = torch.from_numpy(bits.copy()).view(getattr(torch, dtype)).to(torch.float32).numpy()
    np.testing.assert_array_equal(as_float(bits.view(DTYPES[dtype].numpy), dtype), values, strict=True)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_widening_keeps_the_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, shape)
    wide = as_float(*read(on_disk(tmp_path, b"".join(encode_pt(tensor))))[:2])
    expected = {"complex32": "c8", "float16": "f4", "bfloat16": "f4"}.get(dtype, DTYPES[dtype].numpy)
    assert (type(wide), wide.shape) == (np.ndarray, shape)
    assert wide.dtype == ("f4" if dtype.startswith("float8") else expected)


# ---- reading what numpy writes ----


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype="i8").reshape(3, 4)),
        np.arange(3, dtype=">c16"),
        np.array(True),
        np.zeros((2, 0, 3), "u2"),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_reads_whatever_numbers_numpy_saves(
    tmp_path: Path, array: np.ndarray[Any, Any], version: tuple[int, int]
) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, array, version=version)
    stored = read(path)
    assert stored.dtype == array.dtype.name
    np.testing.assert_array_equal(stored.array, array.astype(array.dtype.newbyteorder("=")), strict=True)


# ---- recordings of existing tools ----


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("Torch.mul.0.forward.input.0.pt", "bfloat16", (2, 4, 4)),
        ("Torch.triu.0.forward.input.0.pt", "bool", (4, 4)),
        ("Torch.cat.0.backward.output.1.pt", "float32", (2, 4, 0)),
        ("myloss.0.debug.pt", "float32", ()),
        ("torch_1_11_strided_parameter.pt", "float32", (3, 3)),
    ],
)
def test_reads_recorded_files(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    stored = read(GOLDEN / name)
    assert (stored.dtype, stored.array.shape) == (dtype, shape)
    assert from_stored(stored) == from_torch(torch.load(GOLDEN / name, weights_only=True))


def test_reads_a_recorded_npy_file() -> None:
    stored = read(GOLDEN / "Mint.abs.0.forward.input.0.npy")
    assert (stored.dtype, stored.array.tolist()) == ("complex64", [1 + 2j, 3 - 4j])


@pytest.mark.skipif(
    not Path(MORE_GOLDEN or "?").is_dir(), reason="MSPROBE_GOLDEN names no folder of recordings"
)
@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_reads_every_recorded_file(suffix: str) -> None:
    paths = sorted(Path(MORE_GOLDEN).rglob(f"*{suffix}"))
    assert paths
    for path in paths:
        stored = read(path)
        if suffix == ".pt":
            assert from_stored(stored) == from_torch(torch.load(path, weights_only=True)), path
        else:
            np.testing.assert_array_equal(stored.array, np.load(path), err_msg=str(path), strict=True)


# ---- files that are not what they claim ----


def refusal(path: Path) -> str:
    with pytest.raises(RecordingError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"The tensor file '{path}' ")
    assert message.endswith(".")
    return message


SMALL = TensorData(bytes(range(24)), "float32", (2, 3))


@pytest.mark.parametrize("encode", [encode_pt, encode_npy])
def test_every_cut_is_noticed(tmp_path: Path, encode: Callable[[TensorData], list[Any]]) -> None:
    path = on_disk(tmp_path, b"".join(encode(SMALL)))
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        refusal(path)


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    """Whichever bit falls over, the answer is the tensor or a refusal: no other numbers, no other error."""
    whole = b"".join(encode_pt(SMALL))
    path = on_disk(tmp_path, whole)
    with path.open("r+b", buffering=0) as stream:
        for position, bit in itertools.product(range(len(whole)), (0, 3, 7)):
            os.pwrite(stream.fileno(), bytes([whole[position] ^ 1 << bit]), position)
            with contextlib.suppress(RecordingError):
                assert from_stored(read(path)) == SMALL
            os.pwrite(stream.fileno(), whole[position : position + 1], position)


@settings(max_examples=300, deadline=None)
@given(text=st.binary(max_size=200))
def test_any_pickle_is_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    refusal(rebuilt(tmp_path_factory.getbasetemp(), SMALL, replace={"data.pkl": text}))


class Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    path = rebuilt(tmp_path, SMALL, replace={"data.pkl": pickle.dumps(Evil(trace), protocol)})
    message = refusal(path)
    assert not trace.exists()
    if protocol in (2, 4):  # what torch.save is ever asked for
        assert "wants 'posix.mkdir' to be called" in message
    pickle.loads(pickle.dumps(Evil(trace), protocol))
    assert trace.exists()  # the same pickle does harm where pickle is trusted


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace(b"K\2K\3\x86", b"K\2K\4\x86"), "reach beyond its numbers"),
        (lambda text: text.replace(b"K\3K\1\x86", b"K\3K\7\x86"), "reach beyond its numbers"),
        (lambda text: text.replace(b"QK\0", b"QK\1"), "reach beyond its numbers"),
        (lambda text: text.replace(b"K\2K\3\x86", b"K\2K\3K\1\x87"), "does not fit its strides"),
        (lambda text: text.replace(b"K\3K\1\x86", b"K\3J\xff\xff\xff\xff\x86"), "not made of whole numbers"),
        (lambda text: text.replace(b"K\2K\3\x86", b"K\2\x88\x86"), "not made of whole numbers"),
        (lambda text: text.replace(b"K\2K\3\x86", b"K\2\x8a\x07" + b"\xff" * 6 + b"\0\x86"), "far larger"),
        (
            lambda text: text.replace(b"K\2K\3\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86").replace(
                b"K\3K\1\x86", b"K\0K\0\x86"
            ),
            "far larger",
        ),
        (lambda text: text.replace(b"K\2K\3\x86", b"(" + b"K\1" * 65 + b"t"), "does not fit its strides"),
        (lambda text: text.replace(b"cpuq\4K\6", b"cpuq\4K\5"), "as many numbers as it says"),
        (lambda text: text.replace(b"FloatStorage", b"QInt8Storage"), "not supported: torch.QInt8Storage"),
        (lambda text: text.replace(b"torch\nFloatStorage", b"os\nsystem"), "not supported: os.system"),
        (lambda text: text.replace(b"X\1\0\0\x000", b"X\1\0\0\x009"), "has no entry 'archive/data/9'"),
        (
            lambda text: text.replace(b"_rebuild_tensor_v2", b"_rebuild_sparse_tensor"),
            "_rebuild_sparse_tensor",
        ),
        (lambda text: text.replace(b"QK\0", b"QK\0" + b"2\x86" * 60 + b"0K\0"), "needs DUP"),
        (lambda text: text[:-1] + b"K\1.", "something else than one tensor"),
        (lambda text: text + b"." * 5000, "more than one tensor"),
        (lambda text: b"\x80\2}q\0X\1\0\0\0aq\1" + text[2:-1] + b"s.", "something else than one tensor"),
        (lambda text: b"\x80\2K\1.", "something else than one tensor"),
        (lambda text: b"\x80\2K\1\x86.", "ends in nothing"),
        (lambda text: b"", "damaged"),
    ],
)
def test_a_false_description_is_refused(tmp_path: Path, edit: Callable[[bytes], bytes], message: str) -> None:
    original = zipfile.ZipFile(io.BytesIO(b"".join(encode_pt(SMALL)))).read("archive/data.pkl")
    assert edit(original) != original
    with pytest.raises(RecordingError, match=message):
        read(rebuilt(tmp_path, SMALL, edit=edit))


# Each pair holds the one before twice: in 2 ** 160 places, were it ever walked.
NESTED_PAIRS = b")q\x20" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(0x20, 0xC0))


def nested_keys(text: bytes) -> bytes:
    """A dict in which they are a key: hashing it would never end."""
    return text.replace(b"QK\0", b"Q}" + NESTED_PAIRS + b"K\1sK\0")


def nested_shape(text: bytes) -> bytes:
    return text.replace(b"K\2K\3\x86", NESTED_PAIRS)


def nested_storage(text: bytes) -> bytes:
    return text.replace(b"tq\5Q", b"t" + NESTED_PAIRS + b"Q")


def nested_name(text: bytes) -> bytes:
    return text.replace(b"X\1\0\0\x000", NESTED_PAIRS)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (nested_keys, "in the place of a name"),
        (nested_shape, "not made of whole numbers"),
        (nested_storage, "does not say where its numbers are"),
        (nested_name, "in the place of a name"),
    ],
)
def test_a_small_pickle_of_endless_size_is_refused_at_once(
    tmp_path: Path, edit: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        read(rebuilt(tmp_path, SMALL, edit=edit))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: rebuilt(folder, SMALL, compression=zipfile.ZIP_LZMA), "compressed or encrypted"),
        (lambda folder: rebuilt(folder, SMALL, extra=(("archive/data/0", b"x" * 24),)), "two of its entries"),
        (
            lambda folder: rebuilt(
                folder, SMALL, extra=tuple((f"archive/data/{i + 1}", b"") for i in range(300))
            ),
            "more than one tensor",
        ),
        (lambda folder: on_disk(folder, saved({"weight": RAMP})), "something else than one tensor"),
        (lambda folder: on_disk(folder, saved(RAMP.to_sparse())), "_get_layout' to be called"),
        (lambda folder: on_disk(folder, saved(torch.nn.Linear(2, 2))), "something else than|to be called"),
        (lambda folder: on_disk(folder, saved(torch.zeros(2).view(torch.float4_e2m1fn_x2))), "not supported"),
        (
            lambda folder: on_disk(folder, saved(RAMP, _use_new_zipfile_serialization=False)),
            "torch before 1.6",
        ),
        (lambda folder: on_disk(folder, b""), "neither by torch.save nor by numpy.save"),
        (lambda folder: on_disk(folder, b"{}"), "neither by torch.save nor by numpy.save"),
        (lambda folder: folder / "absent.pt", "cannot be opened: No such file"),
        (lambda folder: folder, "not a regular file"),
        (lambda folder: linked(folder), "is a link, and links are not followed"),
        (lambda folder: pipe(folder), "not a regular file"),
        (lambda folder: npy(folder, np.array([{}], object)), "not that of an array of numbers"),
        (lambda folder: npy(folder, np.array(["a"])), "not that of an array of numbers"),
        (lambda folder: npy(folder, np.zeros(2, [("a", "f4")])), "not that of an array of numbers"),
        (lambda folder: npy(folder, np.zeros(2, np.longdouble)), "not that of an array of numbers"),
        (lambda folder: on_disk(folder, npy_text("'shape': (99999999999999999999,)")), "fewer numbers"),
        (lambda folder: on_disk(folder, npy_text("'shape': (" + "9" * 3900 + ",)")), "damaged|fewer numbers"),
        (lambda folder: on_disk(folder, npy_text("'shape': (-1,)")), "not that of an array of numbers"),
        (lambda folder: on_disk(folder, npy_text("'shape': (" + "1," * 65 + ")")), "not that of an array"),
        (lambda folder: on_disk(folder, b"\x93NUMPY\2\0\xff\xff\xff\x7f{}"), "header is far too long"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    path = make(tmp_path)
    assert path.name in refusal(path)
    with pytest.raises(RecordingError, match=message):
        read(path)


def linked(folder: Path) -> Path:
    (folder / "link.pt").symlink_to(on_disk(folder, b"".join(encode_pt(SMALL))))
    return folder / "link.pt"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.pt")
    return folder / "pipe.pt"


def npy(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    np.save(folder / "x.npy", array, allow_pickle=True)
    return folder / "x.npy"


def npy_text(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, {shape}}}\n".encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def test_wrong_numbers_are_noticed_only_when_asked(tmp_path: Path) -> None:
    whole = b"".join(encode_pt(filled("float32", (300, 300))))
    path = on_disk(tmp_path, whole[:5000] + b"\x55\xaa" + whole[5002:])
    assert "the checksum of its numbers is wrong" in refusal(path)
    assert read(path, verify=False).array.shape == (300, 300)


def test_a_map_outlives_its_name(tmp_path: Path) -> None:
    tensor = filled("float64", (100, 200))
    path = on_disk(tmp_path, b"".join(encode_pt(tensor)))
    stored = read(path)
    path.unlink()
    assert from_stored(stored) == tensor
