"""Two thousand damaged and hostile files, each given to `msprobe compare`: an answer or a sentence, no harm.

Each kind of file is changed in two ways: anywhere, byte by byte, and knowingly, so that checksums and syntax
still hold and the change gets past them. As a script this file runs cases by their numbers, which is all they
are made from: `python test_hostile.py FOLDER KIND FIRST COUNT` shows one again.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pickletools
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from msprobe.kernels import checksum, sketch_of
from test_bad_input import NAMES, dump, files, npy, pt, tensor, unfinished

PATIENCE = 120  # seconds until a case counts as hanging; the slowest takes one
MEMORY = 4 << 30  # of address space, for everything
AT_ONCE = 60

CALLS = ("Torch.add.0.forward", "Torch.add.1.forward", "Functional.linear.0.forward", "Torch.add.0.backward")
MODULE = "Module.net.Net.forward.0"


# --- two recordings to begin with --------------------------------------------------------------------------

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "float32": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4),
    "float64": np.linspace(0, 1e30, 5),
    "int64": np.arange(7),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j, 0], np.complex64),
    "nothing": np.zeros((0, 3), np.float32),
    "single": np.array(3.5, np.float32),
}


def leaf(name: str, shift: float, suffix: str | None) -> dict[str, Any]:
    array = ARRAYS[name]
    described = tensor(dtype=f"torch.{array.dtype}", shape=list(array.shape), Max=5.0 + shift)
    if suffix is not None:
        return {**described, "data_name": f"{name}{suffix}"}
    return {**described, "sketch": "cs64:" + _base64(sketch_of(array + array.dtype.type(shift)))}


def _base64(content: bytes) -> str:
    import base64

    return base64.b64encode(content).decode()


def data(shift: float, suffix: str | None) -> dict[str, Any]:
    leaves = [leaf(name, shift, suffix) for name in ARRAYS]
    plain = [{"type": type(value).__name__, "value": value} for value in (3, 0.5 + shift, "x")]
    found: dict[str, Any] = {}
    for name in (*CALLS, MODULE):
        key = "input" if "backward" in name else "input_args"
        found[name] = {key: [leaves[0], plain, None], "input_kwargs": {"a": plain[0]}, "output": leaves}
        found[name]["is_recompute"] = False
    found["Module.net.Net.parameters_grad"] = {"weight": [leaves[0]]}
    return found


def write(folder: Path, shift: float, suffix: str | None) -> None:
    folder.mkdir(parents=True)
    task = "statistics" if suffix is None else "tensor"
    (folder / "dump.json").write_text(dump(data(shift, suffix), task=task, level="mix"))
    stacks = {"0": [list(CALLS), ["File a.py, line 1, in f", "File b.py, line 2, in <module>"]]}
    (folder / "stack.json").write_text(json.dumps(stacks))
    (folder / "construct.json").write_text(json.dumps(dict.fromkeys(CALLS, MODULE) | {MODULE: None}))
    if suffix is not None:
        (folder / "dump_tensor_data").mkdir()
        encode = pt if suffix == ".pt" else npy
        for name, array in ARRAYS.items():
            path = folder / "dump_tensor_data" / f"{name}{suffix}"
            path.write_bytes(encode(array + array.dtype.type(shift) if array.dtype != bool else array))


def journal(records: dict[str, Any]) -> list[list[str]]:
    """The lines of a journal, as fields."""
    lines = [["H", "1", '{"task":"statistics","level":"mix","framework":"pytorch"}']]
    lines += [["S", "0", '["a.py, line 1"]']]
    lines += [["R", json.dumps(name), "0", "null", json.dumps(fields)] for name, fields in records.items()]
    return lines


def joined(lines: list[list[str]]) -> bytes:
    texts = ["\t".join(line).encode() for line in lines]
    return b"".join(text + b"\t" + checksum(text).encode() + b"\n" for text in texts)


# --- changes -----------------------------------------------------------------------------------------------

DEEP = "@deep@"
TEXTS = [*NAMES, "", "..", "../../../../etc/passwd", "/dev/zero", "a\0b", "y" * 100_000, DEEP, "cs64:AAAA"]
NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400), 1e308, 5e-324]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
VALUES: list[Any] = [None, True, False, [], {}, [[]], [None], {"": None}, *NUMBERS, *TEXTS]
VALUES += [[2**40] * 40, [0, 10**30], {"type": "t", "shape": [3]}, {"type": 1}, list(range(1000))]
BYTES = [b"\0", b"\xff", b"NaN", b"{", b"[" * 3000, b'"', b"\\ud800", b"1" + b"0" * 5000, b"\n", b"PK\3\4"]
WORDS = [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF]


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """A few changes anywhere."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        to = min(len(content), at + chance.choice((1, 4, 40)))
        kind = chance.randrange(7)
        if kind == 0:
            other = bytes(byte ^ chance.randrange(256) for byte in content[at:to])
            content = content[:at] + other + content[to:]
        elif kind == 1:
            content = content[:at]
        elif kind == 2:
            content = content[:at] + chance.choice(BYTES) + content[at:]
        elif kind == 3:
            content = content[:at] + content[to:]
        elif kind == 4:
            content = content[:to] + content[at:]
        elif kind == 5:
            content = content[:at] + bytes(to - at) + content[to:]
        else:
            content = content[:at] + struct.pack("<L", chance.choice(WORDS)) + content[at + 4 :]
    return content


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a JSON value, with each key or number in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (dict, list)):
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            found += [(item, key) for key in keys]
            waiting += [item[key] for key in keys]
    return found


def edited(text: str, chance: random.Random) -> str:
    """JSON in which some values, keys or members are others."""
    value = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 4))):
        holder, key = chance.choice(places([value]))
        kind = chance.randrange(6)
        if kind == 0 and isinstance(holder, dict):
            holder[chance.choice(TEXTS)] = holder.pop(key)
        elif kind == 1 and isinstance(holder, dict):
            del holder[key]
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3:
            holder[key] = chance.choice(places([value]))[0]
            with contextlib.suppress(ValueError, RecursionError):  # it may hold itself now
                json.dumps(value)
                continue
            holder[key] = None
        else:
            holder[key] = chance.choice(VALUES)
    depth = chance.choice((50, 450, 20_000))
    return json.dumps(value).replace(f'"{DEEP}"', "[" * depth + "]" * depth)


def edited_zip(content: bytes, chance: random.Random) -> bytes:
    """A zip whose entries are right, of a pickle or numbers that are not."""
    stream = io.BytesIO()
    packing = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", packing) as new:
        chosen = chance.choice([*old.namelist(), *[name for name in old.namelist() if "pkl" in name] * 4])
        for name in old.namelist():
            part = old.read(name)
            if name == chosen:
                change = edited_pickle if "pkl" in name and chance.random() < 0.7 else scrambled
                part = change(part, chance)
            new.writestr(name, part)
    return stream.getvalue()


INTEGERS = (b"K\0", b"K\xff", b"J\xff\xff\xff\xff", b"J\0\0\0\x10", b"\x8a\x08" + b"\xff" * 7 + b"\x7f")


def edited_pickle(content: bytes, chance: random.Random) -> bytes:
    """Other numbers and names between the opcodes, or opcodes left out, doubled and exchanged."""
    starts = [place for *_, place in pickletools.genops(content)] + [len(content)]
    parts = [content[start:end] for start, end in itertools.pairwise(starts)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(1, len(parts))
        codes = (b"}", b")", b"(", b"R", b"t", b"\x85", b"b", b"\x81", b"i", b"N", b"\x88", b"")
        names = (chance.choice(parts), b"cos\nsystem\n", b"X\2\0\0\0ls")
        parts[at] = chance.choice((chance.choice(codes), chance.choice(names), chance.choice(INTEGERS)))
    return b"".join(parts)


def edited_directory(content: bytes, chance: random.Random) -> bytes:
    """A zip whose headers say something else."""
    marks = [at for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for at in _found(content, mark)]
    at = chance.choice(marks) + chance.randrange(4, 44)
    value = struct.pack("<L", chance.choice(WORDS))[: chance.choice((1, 2, 4))]
    return content[:at] + value + content[at + len(value) :]


def _found(content: bytes, mark: bytes) -> Iterator[int]:
    at = -1
    while (at := content.find(mark, at + 1)) >= 0:
        yield at


def edited_npy(content: bytes, chance: random.Random) -> bytes:
    """Another header; its length is right more often than not."""
    header, numbers = content[10:128], content[128:]
    found = (b"'<f4'", b"'<f8'", b"(2, 3, 4)", b"(5,)", b"False", b"'shape'", b"'descr'", b"{", b"}")
    kinds = (b"'>f4'", b"'<f2'", b"'|b1'", b"'<c16'", b"'|O'", b"'<U4'", b"'<i3'", b"True", b"")
    shapes = (b"()", b"(-1,)", b"(%d,)" % 10**30, b"(0, %d)" % 10**30, b"(2, 3, 4)" * 50, b"(1,)" * 70)
    long = (b"(" + b"1," * 65 + b")", b"(" + b"9" * 4000 + b",)", b"__import__('os').abort()")
    others = (*kinds, *shapes, *long)
    for _ in range(chance.choice((1, 1, 2))):
        header = header.replace(chance.choice(found), chance.choice(others))
    version = chance.choice((1, 1, 1, 2, 3, 9))
    length = len(header) if chance.random() < 0.8 else chance.choice(WORDS)
    size = struct.pack("<H", length & 0xFFFF) if version == 1 else struct.pack("<L", length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + numbers[: chance.choice((0, 8, 10**9))]


# --- kinds of cases ----------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What is changed, and how the recordings hold their tensors."""

    suffix: str | None
    change: Callable[[Path, random.Random], None]


def of_json(name: str) -> Callable[[Path, random.Random], None]:
    def change(target: Path, chance: random.Random) -> None:
        path = target / name
        if chance.random() < 0.6:
            path.write_text(edited(path.read_text(), chance))
        else:
            path.write_bytes(scrambled(path.read_bytes(), chance))

    return change


def of_tensors(*changes: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def change(target: Path, chance: random.Random) -> None:
        for path in chance.sample(sorted((target / "dump_tensor_data").iterdir()), 3):
            path.write_bytes(chance.choice(changes)(path.read_bytes(), chance))

    return change


def of_journal(target: Path, chance: random.Random) -> None:
    lines = journal(json.loads((target / "dump.json").read_text())["data"])
    if chance.random() < 0.3:
        content = scrambled(joined(lines), chance)
    else:
        for _ in range(chance.choice((1, 1, 3))):
            line = chance.choice(lines)
            at = chance.randrange(1, len(line))
            with contextlib.suppress(ValueError):
                line[at] = edited(f"[{line[at]}]", chance)[1:-1]
                continue
            line[at] = chance.choice(TEXTS).translate({9: " ", 10: " "})
        content = joined([[field.encode("ascii", "replace").decode() for field in line] for line in lines])
    (target / "journal.log").write_bytes(content)


def of_request(target: Path, chance: random.Random) -> None:
    """Beside the recording, not in it."""
    paths = {"npu_path": str(target / "dump.json"), "bench_path": str(target.parent / "golden/dump.json")}
    text = json.dumps({**paths, "stack_path": str(target / "stack.json"), "is_print_compare_log": True})
    content = edited(text, chance).encode() if chance.random() < 0.5 else scrambled(text.encode(), chance)
    (target.parent / "compare.json").write_bytes(content)


KINDS = {
    "dump": Kind(None, of_json("dump.json")),
    "dump of tensors": Kind(".pt", of_json("dump.json")),
    "stack": Kind(None, of_json("stack.json")),
    "construct": Kind(None, of_json("construct.json")),
    "request": Kind(None, of_request),
    "journal": Kind(None, of_journal),
    "pt": Kind(".pt", of_tensors(scrambled, edited_zip, edited_zip, edited_directory)),
    "npy": Kind(".npy", of_tensors(scrambled, edited_npy)),
}
COUNTS = {"dump": 360, "dump of tensors": 180, "stack": 120, "construct": 120, "request": 180, "journal": 240}
COUNTS |= {"pt": 480, "npy": 300}


# --- one case, in a process of its own with many others ----------------------------------------------------


def run_case(folder: Path, kind: Kind, chance: random.Random) -> dict[str, Any]:
    from msprobe.cli.main import main

    target, golden, out = folder / "target", folder / "golden", folder / "out"
    write(target, 0.25, kind.suffix)
    write(golden, 0.0, kind.suffix)
    kind.change(target, chance)
    before = _tree(target) + _tree(golden)
    words = [str(target), str(golden)]
    if kind.change is of_request:
        words = ["-i", str(folder / "compare.json")]
    elif chance.random() < 0.2:
        words.reverse()
    known = ("-s", "-f", "-c", "--csv", "--fail-on=divergence")
    options = [option for option in known if chance.random() < 0.3]
    shown, said = io.StringIO(), io.StringIO()
    signal.alarm(PATIENCE)
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        code = main(["compare", *words, "-o", str(out), *options])
    signal.alarm(0)
    wrong = _wrong(code, shown.getvalue(), said.getvalue(), folder, before)
    return {"code": code, "wrong": wrong, "said": said.getvalue()[:2000]}


def _wrong(code: int, shown: str, said: str, folder: Path, before: list[tuple[str, int]]) -> list[str]:
    wrong = []
    is_refused = code == 2 and not shown.startswith("Nothing could be judged: ")
    if code not in (0, 1, 2):
        wrong.append("the exit code")
    if "Traceback" in said or "unexpected" in said or "Warning" in said:
        wrong.append("an error that nobody expected")
    if is_refused and not (said.startswith("msprobe: ") and said.count("\n") == 1):
        wrong.append("not one sentence")
    if not is_refused and said:
        wrong.append("a sentence without an error")
    if is_refused and files(folder / "out"):
        wrong.append("results of what was refused")
    if unfinished(folder):
        wrong.append("unfinished files")
    if _tree(folder / "target") + _tree(folder / "golden") != before:
        wrong.append("the input changed")
    return wrong


def _tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def run_cases(folder: Path, name: str, first: int, count: int) -> None:
    """A line of JSON before each case and one after it: the last line tells which one did not return."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, first + count):
        print(json.dumps({"number": number}), flush=True)
        place = folder / f"{number}"
        found = run_case(place, KINDS[name], random.Random(f"{name} {number}"))
        print(json.dumps({"number": number, **found}), flush=True)
        shutil.rmtree(place)


# --- all of them -------------------------------------------------------------------------------------------


def cases_of(folder: Path, name: str, first: int, count: int) -> dict[int, dict[str, Any]]:
    """What came of the cases; where the process dies, the case it died of says so, and the rest goes on."""
    found: dict[int, dict[str, Any]] = {}
    last = first + count
    while first < last:
        words = [sys.executable, __file__, str(folder), name, str(first), str(last - first)]
        path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
        ran = subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
        )
        for line in ran.stdout.splitlines():
            told = json.loads(line)
            found[told["number"]] = told
        if ran.returncode == 0:
            break
        died = max(found, default=first)
        end = f"ended with {ran.returncode}: {ran.stderr[-1500:]}"
        found[died] = {"number": died, "code": None, "wrong": [end], "said": ""}
        first = died + 1
    return found


@pytest.mark.prove
@pytest.mark.parametrize("name", KINDS)
def test_whatever_a_file_holds_it_is_answered_or_refused(tmp_path: Path, name: str) -> None:
    found: dict[int, dict[str, Any]] = {}
    for first in range(0, COUNTS[name], AT_ONCE):
        found |= cases_of(tmp_path, name, first, min(AT_ONCE, COUNTS[name] - first))
    assert [told for told in found.values() if told["wrong"]] == []
    codes = Counter(told["code"] for told in found.values())
    assert codes.total() == COUNTS[name]
    # The changes reach what they are meant for: some are refused, and some are not even noticed.
    assert codes[0] + codes[1] > 0
    assert codes[2] > (COUNTS[name] // 4 if name not in ("pt", "npy", "journal") else -1)


def test_there_are_more_than_a_thousand_cases() -> None:
    assert COUNTS.keys() == KINDS.keys()
    assert sum(COUNTS.values()) >= 1000


def _heed_interrupts() -> None:
    """In the background of a shell they are ignored, also by what is started there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.prove
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interruption_at_any_moment_leaves_nothing_unfinished(tmp_path: Path, jobs: str) -> None:
    """Ctrl-C reaches every process of the group; some are over, or about to end, before it comes."""
    for whose, shift in (("target", 0.25), ("golden", 0.0)):
        for rank in range(2):
            write(tmp_path / whose / f"step0/rank{rank}", shift, ".pt")
    chance = random.Random(20_261_116)
    codes: Counter[int] = Counter()
    for number in range(25):
        out = tmp_path / f"out{number}"
        words = ["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(out), "-j", jobs]
        process = subprocess.Popen(
            [sys.executable, "-m", "msprobe", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        # Before the first file is whole, modules are still imported, and what that reports is not ours.
        while not any(not name.startswith(".") for name in files(out)) and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        codes[process.returncode] += 1
        assert (said, unfinished(out) if out.is_dir() else []) == ("", [])
    assert set(codes) <= {0, 130, -signal.SIGINT}
    assert codes[130] > 0


if __name__ == "__main__":
    run_cases(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
