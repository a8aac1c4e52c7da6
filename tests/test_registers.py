"""Nothing that recording calls leaves the upper halves of the vector registers in use.

Where they are, later SSE code is several times as slow on some processors. The processor itself tells:
XGETBV with ECX = 1 gives a bit for each part of its state that is in use.
"""

import ctypes
import json
import mmap
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydantic_core
import pytest
import xxhash

from kernel_case import DTYPES, compiled
from msprobe import kernels, kernels_deflate

_UPPER = 1 << 2 | 1 << 6  # of YMM and of ZMM registers 0 to 15
# mov ecx, 1; xgetbv; shl rdx, 32; or rax, rdx; ret
_CODE = bytes.fromhex("b901000000 0f01d0 48c1e220 4809d0 c3")
_DATA = np.random.default_rng(0).bytes(1 << 20)
_FLOATS = np.frombuffer(_DATA, np.uint8).astype(np.float32)


def _is_readable() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and cpuinfo.exists() and " xgetbv1 " in cpuinfo.read_text()


@pytest.fixture(scope="module")
def in_use() -> Callable[[], int]:
    """What is in use of the upper halves."""
    if not _is_readable():
        pytest.skip("this processor does not tell which registers are in use")
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except PermissionError:
        pytest.skip("this system does not let tests run code of their own")
    page.write(_CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    read = ctypes.PYFUNCTYPE(ctypes.c_uint64)(address)

    def upper(_page: mmap.mmap = page) -> int:
        return read() & _UPPER

    return upper


def _statistics(kind: str) -> None:
    array = np.zeros(100_003, DTYPES[kind])
    kernels.statistics(kernels.address_of(array), array.size, kind)
    kernels.sketch(kernels.address_of(array), array.size, kind)


_PACKED = kernels_deflate.packer()
_STREAM = memoryview(_PACKED.compress(_DATA) + _PACKED.flush())
CALLS: dict[str, Callable[[], object]] = {
    "crc32 of 10 bytes": lambda: kernels_deflate.crc32(_DATA[:10]),
    "crc32 of 4 KB": lambda: kernels_deflate.crc32(_DATA[:4096]),
    "crc32 of 1 MB": lambda: kernels_deflate.crc32(_DATA),
    "compress": lambda: kernels_deflate.compress(_DATA),
    "packer": lambda: kernels_deflate.packer().compress(_DATA),
    "flush": lambda: kernels_deflate.packer().flush(),
    "inflate": lambda: kernels_deflate.inflate(_STREAM, len(_DATA)),
    "pack": lambda: kernels.pack(memoryview(bytes(1 << 20)), 1 << 20),
    "glance": lambda: kernels.glance(kernels.address_of(_FLOATS), _FLOATS.nbytes),
    "xxh3 of 10 bytes": lambda: xxhash.xxh3_64_hexdigest(_DATA[:10]),
    "xxh3 of 1 MB": lambda: xxhash.xxh3_128(_DATA).hexdigest(),
    "to_json": lambda: pydantic_core.to_json({"text": "x" * 100_000, "numbers": [1.5] * 1000}),
    "numpy abs": lambda: np.abs(_FLOATS.view(np.complex64)),
    "numpy cast": lambda: _FLOATS.astype(np.float64),
    "numpy dot": lambda: np.dot(_FLOATS, _FLOATS),
    **{f"kernels of {kind}": lambda kind=kind: _statistics(kind) for kind in DTYPES},  # type: ignore[misc]
}


@compiled
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_registers_are_clean_after(in_use: Callable[[], int], call: Callable[[], object]) -> None:
    kernels_deflate.clear_upper()
    assert not in_use()
    call()
    assert not in_use()


@compiled
def test_the_processor_tells_what_isal_leaves(in_use: Callable[[], int]) -> None:
    """So the test above can fail."""
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("isal has no code for wide registers here")
    kernels_deflate.clear_upper()
    kernels_deflate.isal_zlib.crc32(_DATA)
    found = in_use()
    kernels_deflate.clear_upper()
    if not found:
        pytest.skip("this isal cleans up itself")
    assert not in_use()


_RECORD = """
import json, sys
import torch
sys.path.insert(0, sys.argv[2])
from msprobe.kernels_deflate import clear_upper
from msprobe.pytorch import PrecisionDebugger
from test_registers import in_use

task = json.loads(sys.argv[3])
with open(sys.argv[1] + "/config.json", "w") as stream:
    json.dump({"dump_path": sys.argv[1] + "/out", "level": "mix", **task}, stream)
debugger = PrecisionDebugger(config_path=sys.argv[1] + "/config.json")
read = in_use.__wrapped__()
model = torch.nn.Linear(64, 64)
found = {}


def see(what):
    found[what] = read()
    clear_upper()


for step in range(2):
    clear_upper()
    debugger.start(model)
    see(f"start {step}")
    y = model(torch.ones(64, 64))
    see(f"call {step}")
    y.sum().backward()
    see(f"backward {step}")
    debugger.stop()
    see(f"stop {step}")
    debugger.step()
    see(f"step {step}")
print(json.dumps(found))
"""


@compiled
@pytest.mark.parametrize(
    "task",
    [
        {"task": "statistics"},
        {"task": "statistics", "statistics": {"summary_mode": "md5"}},
        {"task": "statistics", "statistics": {"summary_mode": "sketch"}},
        {"task": "tensor"},
    ],
    ids=["statistics", "md5", "sketch", "tensor"],
)
def test_registers_are_clean_while_recording(
    in_use: Callable[[], int], tmp_path: Path, task: dict[str, object]
) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", _RECORD, str(tmp_path), str(Path(__file__).parent), json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 10
    assert {what: state for what, state in found.items() if state} == {}


def test_only_one_module_imports_isal() -> None:
    source = Path(kernels.__file__).parent
    users = [path.name for path in source.rglob("*.py") if "from isal" in path.read_text(encoding="utf-8")]
    assert users == ["kernels_deflate.py"]
