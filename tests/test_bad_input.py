"""Input that is missing, damaged or made to do harm: one sentence and status 2, or one place not judged."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openpyxl
import pytest

from msprobe.cli.main import main
from msprobe.store.tensor_file import TensorData, encode_npy, encode_pt

CALL = "Torch.add.0.forward"
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


# --- recordings made by hand -------------------------------------------------------------------------------


def tensor(**fields: Any) -> dict[str, Any]:
    """The leaf of NUMBERS."""
    described = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3]}
    return {**described, "Max": 5.0, "Min": 0.0, "Mean": 2.5, "Norm": 7.4, "requires_grad": False, **fields}


def call(*outputs: Any, **fields: Any) -> dict[str, Any]:
    return {"input_args": [], "input_kwargs": {}, "output": list(outputs), **fields}


def dump(data: Any, *, task: str = "statistics", **head: Any) -> str:
    return json.dumps({"task": task, "level": "L1", "framework": "pytorch", **head, "data": data})


def pt(array: np.ndarray[Any, Any] = NUMBERS) -> bytes:
    return b"".join(map(bytes, encode_pt(TensorData(array.tobytes(), array.dtype.name, array.shape))))


def npy(array: np.ndarray[Any, Any] = NUMBERS) -> bytes:
    return b"".join(map(bytes, encode_npy(TensorData(array.tobytes(), array.dtype.name, array.shape))))


def recording(folder: Path, text: str | bytes, files: Mapping[str, bytes] | None = None) -> Path:
    """The folder of a run with one recording."""
    place = folder / "step0" / "rank"
    place.mkdir(parents=True)
    (place / "dump.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, content in (files or {}).items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    return folder


class Case(NamedTuple):
    """A folder to work in, with a good golden run, and what was said."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def golden(self) -> Path:
        return self.folder / "golden"

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, *words: str | Path) -> tuple[int, str, str]:
        code = main(["compare", *map(str, words)])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def compared(self, *words: str) -> str:
        """The comparison succeeds; what it shows on screen."""
        code, shown, error = self.run(self.target, self.golden, "-o", self.out, *words)
        assert (code, error, unfinished(self.folder)) == (0, "", [])
        return shown

    def refused(self, *words: str | Path) -> str:
        """Status 2 and one sentence; no result, whole or not, is left behind."""
        given = words or (self.target, self.golden, "-o", self.out)
        code, shown, error = self.run(*given)
        assert (code, shown, error.count("\n"), files(self.out)) == (2, "", 1, [])
        assert error.startswith("msprobe: ")
        assert "unexpected" not in error
        assert error.rstrip("\n").isprintable()
        assert len(error) < 500 + sum(len(str(word)) for word in given)
        return error


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir()) if folder.is_dir() else []


def unfinished(folder: Path) -> list[str]:
    return [name for name in files(folder) if name.startswith(".") or name.endswith((".part", ".tmp"))]


@pytest.fixture
def case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Case:
    recording(tmp_path / "golden", dump({CALL: call(tensor())}))
    return Case(tmp_path, capsys)


# --- dump.json ---------------------------------------------------------------------------------------------


def with_leaf(**fields: Any) -> str:
    return dump({CALL: call(tensor(**fields))})


def with_text(value: str) -> str:
    """JSON that no Python value stands for, in the place of an output."""
    return dump({CALL: call("HERE")}).replace('"HERE"', value)


HAS = f"dump.json, {CALL} has the"

DAMAGED = {
    "empty": ("", "dump.json is not valid JSON: Expecting value: line 1 column 1"),
    "cut": (with_leaf()[:150], "dump.json is not valid JSON: "),
    "no text": (b"\xff\xfe\x00", "dump.json is not valid JSON: 'utf-8' codec can't decode byte 0xff"),
    "half a character as bytes": (b'{"data": {"\xed\xa0\x80": 1}}', "dump.json is not valid JSON: 'utf-8'"),
    "a NaN for a key": ('{"data": {NaN: 1}}', "dump.json is not valid JSON: Expecting property name"),
    "a list": ("[]", "dump.json is not a recording: it has no 'data' object."),
    "no data": ('{"task": "statistics"}', "dump.json is not a recording: it has no 'data' object."),
    "data is null": (dump(None), "dump.json is not a recording: it has no 'data' object."),
    "deep lists": ("[" * 100_000, "dump.json is not valid JSON: it is nested too deeply."),
    "deep output": (with_text("[" * 600 + "]" * 600), f"dump.json, {CALL} is nested too deeply"),
    "deep value": (
        with_text('{"type": "x", "value": ' + "[" * 600 + "]" * 600 + "}"),
        f"dump.json, {CALL} is nested too deeply",
    ),
    "long keys": (
        dump({CALL: call({"k" * 10_000: {"l" * 10_000: 1}})}),
        f"dump.json, {CALL} is nested too deeply, or its keys are too long",
    ),
    "a number of 5000 digits": (with_text("9" * 5000), "holds a number with thousands of digits"),
    "a record is a text": (dump({CALL: "x"}), f"dump.json, {CALL} is 'x' and no object"),
    "a record is a list": (dump({CALL: []}), f"dump.json, {CALL} is [] and no object"),
    "no record name": (dump({"x": call()}), "dump.json: 'x' is not a record name, such as Torch.matmul.0."),
    "a name with escapes": (dump({"\x1b[2J\n": call()}), r"dump.json: '\x1b[2J\n' is not a record name"),
    "a name of half a character": (dump({"\ud800": call()}), "dump.json: '\N{REPLACEMENT CHARACTER}' is not"),
    "an endless name": (dump({"x" * 10**6: call()}), "dump.json: the record name 'xxx"),
    "no variable's name": (
        dump({"x": None}, level="debug"),
        "dump.json: 'x' is not the name of a saved variable, such as loss.0.debug.",
    ),
    "a shape that is a text": (with_leaf(shape="2"), f"{HAS} shape '2', which cannot be"),
    "a shape of texts": (with_leaf(shape=["2"]), f"{HAS} shape ['2'], which cannot be"),
    "a shape of floats": (with_leaf(shape=[2.0]), f"{HAS} shape [2.0], which cannot be"),
    "a shape below 0": (with_leaf(shape=[-2, 3]), f"{HAS} shape [-2, 3], which cannot be"),
    "a huge shape": (with_leaf(shape=[10**400]), f"{HAS} shape [1000000"),
    "a huge product": (with_leaf(shape=[2**40] * 50), f"{HAS} shape [1099511627776, "),
    "a huge shape without elements": (with_leaf(shape=[0, 10**400]), f"{HAS} shape [0, 1000"),
    "statistics are texts": (with_leaf(Max="5"), f"{HAS} statistics ('5', 0.0, 2.5, 7.4, 0, 0)"),
    "statistics are lists": (with_leaf(Norm=[1]), f"{HAS} statistics (5.0, 0.0, 2.5, [1], 0"),
    "statistics of 10**400": (with_leaf(Max=10**400), f"{HAS} statistics (100000"),
    "a dtype is a number": (with_leaf(dtype=32), f"{HAS} dtype 32, which cannot be"),
    "a checksum is a list": (with_leaf(md5=[]), f"{HAS} md5 [], which cannot be"),
    "requires_grad is a list": (with_leaf(requires_grad=[1]), f"{HAS} requires_grad [1]"),
    "a sketch is no sketch": (with_leaf(sketch="cs64:AAAA"), f"{HAS} sketch 'cs64:AAAA'"),
    "a sketch is a number": (with_leaf(sketch=7), f"{HAS} sketch 7, which cannot be"),
    "a file elsewhere": (with_leaf(data_name="../x.pt"), f"{HAS} data_name '../x.pt'"),
    "a file at the root": (with_leaf(data_name="/etc/passwd"), f"{HAS} data_name '/etc/pass"),
    "a file by backslashes": (with_leaf(data_name="..\\x"), f"{HAS} data_name '..\\\\x'"),
    "the folder above": (with_leaf(data_name=".."), f"{HAS} data_name '..', which cannot be"),
    "a file with a zero": (with_leaf(data_name="a\0b"), f"{HAS} data_name 'a\\x00b'"),
}


@pytest.mark.parametrize(("text", "sentence"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("whose", ["target", "golden"])
def test_a_damaged_dump_is_one_sentence(case: Case, text: str | bytes, sentence: str, whose: str) -> None:
    if whose == "golden":
        shutil.rmtree(case.golden)
        recording(case.target, dump({CALL: call(tensor())}))
    recording(case.folder / whose, text)
    said = case.refused()
    assert sentence in said
    assert str(case.folder / whose / "step0/rank/dump.json") in said


@pytest.mark.parametrize("name", ["stack.json", "construct.json"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not valid JSON"),
        ("[]", "does not hold an object"),
        ("{" * 100_000, "is not valid JSON"),
        ('{"a": ' * 50_000, "is not valid JSON: it is nested too deeply"),
    ],
)
def test_damaged_files_beside_are_one_sentence(case: Case, name: str, text: str, sentence: str) -> None:
    recording(case.target, dump({CALL: call(tensor())}), {name: text.encode()})
    said = case.refused()
    assert f"{case.target}/step0/rank/{name} {sentence}" in said


@pytest.mark.parametrize("text", ['{"0": 5}', '{"0": [[1], ["x"]]}', '{"0": [["x"], 5]}', '{"0": [{}, []]}'])
def test_stacks_that_are_none_are_one_sentence(case: Case, text: str) -> None:
    recording(case.target, dump({CALL: call(tensor())}), {"stack.json": text.encode()})
    assert "stack.json, '0': names and frames were expected" in case.refused()


@pytest.mark.parametrize(
    "parent",
    [[1, 2], {}, CALL, [[]], [CALL], 3],
)
def test_parents_that_are_none_are_left_out(case: Case, parent: Any) -> None:
    """A call that is its own parent among them."""
    beside = {"construct.json": json.dumps({CALL: parent}).encode()}
    recording(case.target, dump({CALL: call(tensor(Max=9.0))}), beside)
    assert CALL in case.compared()


def test_a_journal_that_says_nonsense_is_one_sentence(case: Case) -> None:
    from msprobe.kernels import checksum

    recording(case.target, dump({}))
    lines = [b'H\t1\t{"level":"L1"}', b'R\t"%b"\t-\t-\t{"output":[{' % CALL.encode()]
    text = b"".join(line + b"\t" + checksum(line).encode() + b"\n" for line in lines)
    (case.target / "step0/rank/journal.log").write_bytes(text)
    assert f"journal.log, '{CALL}' is not valid JSON: Expecting property name" in case.refused()


def test_nothing_to_compare_is_an_error(case: Case) -> None:
    shutil.rmtree(case.golden)
    recording(case.target, dump({}))
    recording(case.golden, dump({}))
    assert f"Nothing was compared: {case.target} and {case.golden} hold no record" in case.refused()


def test_one_damaged_rank_of_several_is_one_sentence(case: Case) -> None:
    for whose in ("targets", "goldens"):
        for rank in range(3):
            shutil.copytree(case.golden / "step0/rank", case.folder / whose / f"step0/rank{rank}")
    (case.folder / "targets/step0/rank1/dump.json").write_text("{")
    code, _, error = case.run(case.folder / "targets", case.folder / "goldens", "-o", case.out, "-j", "2")
    assert (code, error.count("\n"), unfinished(case.out)) == (2, 1, [])
    assert f"{case.folder}/targets/step0/rank1/dump.json is not valid JSON" in error


# --- what is odd, and no reason to refuse ------------------------------------------------------------------


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"type": "int", "value": 10**400}, {"type": "int", "value": 1}),
        ({"type": "int", "value": 10**400}, {"type": "int", "value": 10**401}),
        ({"type": "int", "value": 2**999}, {"type": "float", "value": -1e308}),
        ({"type": "float", "value": float("nan")}, {"type": "float", "value": float("inf")}),
        ({"type": "int", "value": {"a": [1, None]}}, {"type": "int", "value": [[], {}]}),
        ({"type": "str", "value": "\ud83d"}, {"type": "str", "value": "\U0001f600"}),
        ({"type": ""}, {"type": "x", "shape": None}),
        ("a text", True),
        (None, 3),
        ([], {}),
        (tensor(Max=float("nan"), Min=None), tensor(Max=float("-inf"))),
        (tensor(Max=2**999), tensor(Max=-(2**999))),
        (tensor(Max=True, Min=False, Mean=None, Norm=None), tensor()),
        (tensor(shape=[]), tensor(shape=[2**62, 0])),
        (tensor(shape=[-1, 3]), tensor(shape=[-1, 3], Max=None, Min=None, Mean=None, Norm=None)),
        (tensor(shape=[2**31, 2**31]), tensor(shape=[2**31, 2**31], Max=1e-320, Norm=1e308)),
        (tensor(dtype="=1+1"), tensor(dtype=None)),
        (tensor(md5="\ud800"), tensor(md5="")),
        (tensor(data_name="x" * 5000), tensor(data_name="gone.pt")),
        (tensor(Nan_count=-1, Inf_count=1.5), tensor(Nan_count=None)),
    ],
)
def test_odd_values_are_compared(case: Case, task: str, ours: Any, theirs: Any) -> None:
    shutil.rmtree(case.golden)
    for folder, value in ((case.target, ours), (case.golden, theirs)):
        data = {CALL: call(value, tensor()), "Torch.end.0.forward": call(tensor())}
        recording(folder, dump(data, task=task))
    case.compared("-s", "-f")


def test_outputs_that_are_no_list_are_compared(case: Case) -> None:
    """Each field of a record may hold anything."""
    shutil.rmtree(case.golden)
    odd: list[Any] = ["text", True, 3, None, {}, {"a": {"type": 3}}, {"type": "t", "shape": []}]
    for folder in (case.target, case.golden):
        records = {
            f"Torch.f.{number}.{direction}": {"input_args": value, "input": value, "output": value}
            for number, value in enumerate(odd)
            for direction in ("forward", "backward")
        }
        records["Module.a.A.parameters_grad"] = {"w": "text", "b": [True], "c": None}
        recording(folder, dump(records))
    case.compared()


def test_of_two_keys_of_one_name_the_last_counts(case: Case) -> None:
    first, second = (json.dumps({CALL: call(tensor(Max=value))})[1:-1] for value in (9.0, 5.0))
    recording(case.target, dump({}).replace('"data": {}', f'"data": {{{first}, {second}}}'))
    assert "No divergence" in case.compared()


HEADS: list[dict[str, Any]] = [
    {"task": 5, "level": None, "framework": []},
    {"missing_files": [1, None, {}], "left_out": {"a": "b", "c": 10**400}, "lost_records": 10**400},
    {"missing_files": "x", "left_out": [], "lost_records": "many", "recovered": 0},
    {"dump_data_dir": "/etc", "data": 3},
]


@pytest.mark.parametrize("head", HEADS)
def test_odd_heads_are_compared(case: Case, head: dict[str, Any]) -> None:
    text = json.dumps({"task": "statistics", "framework": "pytorch", **head, "data": {CALL: call(tensor())}})
    shutil.rmtree(case.golden)
    recording(case.target, text)
    recording(case.golden, text)
    case.compared()


# --- names -------------------------------------------------------------------------------------------------

NAMES = [
    "=1+1",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "-1+1",
    "+1",
    "\t=1",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "]]>&lt;\"'`{{data}}",
    "\x00\x01\x1b[2J\x7f",
    "a\nb\r\nc",
    "\u202e\u2028\ufeff",
    "\ud800",
    "\U0001f600",
    "x" * 4000,
]


@pytest.mark.parametrize("text", NAMES, ids=ascii)
def test_a_name_is_a_name_and_nothing_else(case: Case, text: str) -> None:
    """No formula and no markup; the files can be read by others."""
    shutil.rmtree(case.golden)
    name = f"{text}.f.0.forward"
    fields = {text: tensor(), "plain": {"type": text, "value": text}, "dtype": tensor(dtype=text)}
    for folder, most in ((case.target, 9.0), (case.golden, 5.0)):
        data = {CALL: call({"type": "str", "value": text}), name: call(tensor(Max=most), input_kwargs=fields)}
        recording(folder, dump(data), {"stack.json": json.dumps({"0": [list(data), [text]]}).encode()})
    made = case.folder / "for programs"
    made.mkdir()
    shown = case.compared("-s", "--json", str(made / "x.json"), "--junit", str(made / "x.xml"))
    assert shown.startswith("Culprit: ")
    assert json.loads((made / "x.json").read_text())["counts"]["places"] > 0
    xml.etree.ElementTree.parse(made / "x.xml")
    (sheet,) = (openpyxl.load_workbook(path).active for path in case.out.glob("*.xlsx"))
    assert sheet is not None
    assert {cell.data_type for row in sheet.iter_rows() for cell in row} <= {"s", "n", "b"}
    for page in case.out.glob("*.html"):
        written = page.read_text(encoding="utf-8")
        assert [tag for tag in ("<script>alert", "<img") if tag in written] == []


@pytest.mark.parametrize("text", ["\x1b[2J", "a\rb", "a\nb", "\u202e", "\x9b2J"], ids=ascii)
def test_a_name_gives_the_screen_no_orders(case: Case, text: str) -> None:
    recording(case.target, dump({f"{text}.f.0.forward": call(tensor(), {"type": "str", "value": text})}))
    code, shown, _ = case.run(case.target, case.target, "-o", case.out)
    assert (code, [letter for letter in shown if not letter.isprintable() and letter != "\n"]) == (0, [])
    recording(case.folder / "other", dump({f"{text}.f.0.forward": call(tensor(Max=9.0))}))
    code, shown, _ = case.run(case.folder / "other", case.target, "-o", case.out)
    assert (code, [letter for letter in shown if not letter.isprintable() and letter != "\n"]) == (0, [])
    assert [line for line in shown.splitlines() if line.startswith("b.f.0")] == []


@pytest.mark.parametrize("text", ["=1+1", "=cmd|' /C calc'!A0", "@SUM(1)", "-1+1", "+x", "\t=1"], ids=ascii)
def test_a_csv_has_no_formulas(case: Case, text: str) -> None:
    shutil.rmtree(case.golden)
    for folder in (case.target, case.golden):
        recording(folder, dump({f"{text}.f.0.forward": call({"type": "str", "value": text})}))
    case.compared("--csv", "-c")
    (path,) = case.out.glob("*.csv")
    with path.open(newline="") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert any(text in cell for cell in cells)
    assert [cell for cell in cells if cell.startswith(("=", "@", "\t", "+", "-1+"))] == []


# --- tensor files ------------------------------------------------------------------------------------------

FIRST, SECOND = f"{CALL}.output.0.pt", f"{CALL}.output.1.pt"


class Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def repacked(content: bytes, packing: int = zipfile.ZIP_STORED, **replaced: bytes) -> bytes:
    """The zip with some of its entries, named without folders, replaced."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", packing) as new:
        for entry in old.namelist():
            new.writestr(entry, replaced.get(entry.partition("/")[2].replace(".", "_"), old.read(entry)))
    return stream.getvalue()


def far_offsets(content: bytes) -> bytes:
    """Every entry begins beyond the end of the file."""
    found = -1
    while (found := content.find(b"PK\1\2", found + 1)) >= 0:
        content = content[: found + 42] + struct.pack("<L", 0xFFFFFFF0) + content[found + 46 :]
    return content


def npy_header(text: str, length: int | None = None, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<L", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + bytes(24)


def object_npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], object), allow_pickle=True)
    return stream.getvalue()


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
ZEROS = np.zeros((1 << 12, 1 << 12), np.float32)  # 64 MB in 64 kB

CONTENTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "was written neither by torch.save nor by numpy.save."),
    "text": (lambda: b"{}", "was written neither by torch.save nor by numpy.save."),
    "cut": (lambda: pt()[:-30], "is cut short: the directory at its end is missing."),
    "cut in the middle": (lambda: pt()[:300], "is cut short: the directory at its end is missing."),
    "cut npy": (lambda: npy()[:-1], "is cut short: it holds fewer numbers than its header says."),
    "a plain pickle": (lambda: pickle.dumps([1]), "was written neither by torch.save nor by numpy.save."),
    "far offsets": (lambda: far_offsets(pt()), "is damaged"),
    "a bomb": (lambda: pt(ZEROS), "The files hold the shapes (4096, 4096) and (2, 3)."),
    "a bomb within": (
        lambda: repacked(pt(), zipfile.ZIP_DEFLATED, **{"data/0": ZEROS.tobytes()}),
        "is damaged: it does not hold as many numbers as it says.",
    ),
    "a bomb for a pickle": (
        lambda: repacked(pt(), zipfile.ZIP_DEFLATED, data_pkl=bytes(1 << 24)),
        "holds more than one tensor.",
    ),
    "a long header": (lambda: npy_header("{}", 0x7FFFFFFF, 2), "is damaged: its header is far too long."),
    "a header beyond the end": (lambda: npy_header("{}", 4000), "has a header that is not that of an array"),
    "a huge shape": (
        lambda: npy_header(HEADER.replace("(2, 3)", f"({10**30},)")),
        "is cut short: it holds fewer numbers than its header says.",
    ),
    "a huge shape without elements": (
        lambda: npy_header(HEADER.replace("(2, 3)", f"(0, {10**30})")),
        "is damaged and cannot be understood",
    ),
    "code for a shape": (
        lambda: npy_header(HEADER.replace("(2, 3)", "__import__('os').abort()")),
        "has a header that is not that of an array of numbers.",
    ),
    "objects": (object_npy, "has a header that is not that of an array of numbers."),
    "another shape": (lambda: pt(NUMBERS.reshape(3, 2)), "The files hold the shapes (3, 2) and (2, 3)."),
    "two numbers for one": (
        lambda: pt(NUMBERS.astype(np.complex64)),
        "The files hold the dtypes complex64 and float32.",
    ),
}


def with_files(folder: Path, first: bytes | None) -> Path:
    """A call with two outputs; the file of the second is good."""
    leaves = tensor(data_name=FIRST), tensor(data_name=SECOND)
    contents = {FIRST: first, SECOND: pt(NUMBERS + 1)}
    good = {f"dump_tensor_data/{name}": data for name, data in contents.items() if data is not None}
    return recording(folder, dump({CALL: call(*leaves)}, task="tensor"), good)


def rows(case: Case) -> list[tuple[str, str, str]]:
    """Of the table: the result, the largest error, and the message of each place."""
    case.compared("--csv", "-c")
    (path,) = case.out.glob("*.csv")
    with path.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    return [(row["Accuracy Reached or Not"], row["MaxAbsErr"], row["Err_message"]) for row in found]


@pytest.fixture
def tensors(case: Case) -> Case:
    shutil.rmtree(case.golden)
    with_files(case.golden, pt())
    return case


@pytest.mark.parametrize(("content", "message"), CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_tensor_file_costs_one_place(
    tensors: Case, content: Callable[[], bytes], message: str
) -> None:
    with_files(tensors.target, content())
    (first, second) = rows(tensors)
    assert (first[:2], second) == (("None", "unsupported"), ("Yes", "0.0", ""))
    assert message in first[2]


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_wants_to_run_code_is_not_obeyed(tensors: Case, protocol: int) -> None:
    trace = tensors.folder / "trace"
    with_files(tensors.target, repacked(pt(), data_pkl=pickle.dumps(Evil(trace), protocol)))
    (first, second) = rows(tensors)
    assert (trace.exists(), first[:2], second) == (False, ("None", "unsupported"), ("Yes", "0.0", ""))


ODD = ["gone", "folder", "pipe", "device", "link", "link to nothing", "link to itself"]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_tensor_file_costs_one_place(tensors: Case, odd: str) -> None:
    with_files(tensors.target, None)
    path = tensors.target / "step0/rank/dump_tensor_data" / FIRST
    if odd == "folder":
        path.mkdir()
    elif odd == "pipe":
        os.mkfifo(path)
    elif odd != "gone":
        good = tensors.golden / "step0/rank/dump_tensor_data" / FIRST
        elsewhere = {"device": "/dev/zero", "link": str(good)}
        path.symlink_to(elsewhere.get(odd, path.name if "itself" in odd else "nothing"))
    (first, second) = rows(tensors)
    linked = f"The tensor file '{path}' cannot be opened: it is a link, and links are not followed."
    assert first == ("None", "unsupported", linked if odd == "link" else "NPU does not have data file.")
    assert second == ("Yes", "0.0", "")


def test_every_damaged_file_leaves_the_others(tensors: Case) -> None:
    """Whichever byte falls over, the second place is judged as before."""
    whole = pt()
    for place in range(0, len(whole), len(whole) // 20):
        case = Case(tensors.folder / str(place), tensors.capsys)
        with_files(case.golden, whole)
        with_files(case.target, whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        (first, second) = rows(case)
        assert first[0] in ("Yes", "No", "None")
        assert second == ("Yes", "0.0", "")


# --- paths -------------------------------------------------------------------------------------------------


def test_a_path_without_a_recording_is_one_sentence(case: Case) -> None:
    (case.folder / "empty").mkdir()
    os.mkfifo(case.folder / "pipe")
    (case.folder / "in the way/dump.json").mkdir(parents=True)
    for path, reason in {
        "gone": "holds no recording: there is nothing of this name.",
        "empty": "holds no recording: a run's folder has step{N}/rank{M}/dump.json below it.",
        "pipe": "holds no recording: it is neither a folder nor a regular file.",
        "/dev/null": "holds no recording: it is neither a folder nor a regular file.",
        "in the way": "holds no recording: a run's folder has step{N}/rank{M}/dump.json below it.",
        "in the way/dump.json": "holds no recording: a run's folder has step{N}/rank{M}/dump.json below it.",
        "x" * 5000: "cannot be read: File name too long.",
        "golden/step0/rank/dump.json/x": "holds no recording: there is nothing of this name.",
    }.items():
        for pair in ((case.folder / path, case.golden), (case.golden, case.folder / path)):
            said = case.refused(*pair, "-o", case.out)
            assert reason in said
            assert path in said


def test_no_rank_in_common_is_one_sentence(case: Case) -> None:
    for whose, ranks in (("targets", (0, 1)), ("goldens", (2, 3))):
        for rank in ranks:
            shutil.copytree(case.golden / "step0/rank", case.folder / whose / "step0" / f"rank{rank}")
    said = case.refused(case.folder / "targets", case.folder / "goldens", "-o", case.out)
    assert "no step and rank in common: the target has step 0 rank 0, step 0 rank 1, the golden run" in said


@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json", "journal.log"])
def test_links_out_of_a_recording_are_not_followed(case: Case, name: str) -> None:
    recording(case.target, dump({CALL: call(tensor())}))
    secret = case.folder / "secret"
    secret.write_text("{}")
    path = case.target / "step0/rank" / name
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    assert f"{path} cannot be read: it is a link, and links are not followed." in case.refused()


def test_a_linked_tensor_folder_is_not_followed(tensors: Case) -> None:
    with_files(tensors.target, None)
    path = tensors.target / "step0/rank/dump_tensor_data"
    shutil.rmtree(path)
    path.symlink_to(tensors.golden / "step0/rank/dump_tensor_data")
    assert f"{path} is a link, and links are not followed." in tensors.refused()


def test_pipes_in_a_recording_are_not_waited_for(case: Case) -> None:
    recording(case.target, dump({CALL: call(tensor())}))
    for name in ("stack.json", "construct.json"):
        os.mkfifo(case.target / "step0/rank" / name)
    case.compared()
    shutil.rmtree(case.out)
    os.mkfifo(case.target / "step0/rank/journal.log")
    assert "journal.log cannot be read: it is not a regular file." in case.refused()


def test_an_enormous_file_is_refused_at_once(case: Case) -> None:
    recording(case.target, "{}")
    path = case.target / "step0/rank/dump.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    assert f"{path} is larger than {1 << 32} bytes" in case.refused()


def test_folders_within_folders_end_somewhere(case: Case) -> None:
    folder = case.folder / "target"
    for _ in range(500):
        folder = folder / "rank"
    os.makedirs(folder)
    assert "target holds no recording" in case.refused()


# --- compare.json ------------------------------------------------------------------------------------------

REQUESTS = {
    "empty": ("", "line 1, column 1: the file is empty"),
    "cut": ('{"npu_path": ', "line 1, column 14: a value is missing here."),
    "a list": ("[]", "holds a list, but it must hold one object"),
    "two keys": ('{"npu_path": "x", "npu_path": "y"}', "line 1, column 19: the key"),
    "NaN": ('{"npu_path": NaN}', "line 1, column 14: NaN is not a JSON number."),
    "a NaN for a key": ('{NaN: "x"}', "line 1, column 2: the key NaN needs double quotes."),
    "a huge number": ('{"npu_path": 1e999999}', "'npu_path' is inf; it must be a text."),
    "10**400": ('{"npu_path": 1' + "0" * 400 + "}", "'npu_path' is 1000"),
    "10**4000": ('{"npu_path": 1' + "0" * 4000 + "}", "is not a JSON number"),
    "deep": ('{"npu_path": ' + "[" * 100_000, "nested deeper than 100 levels"),
    "no text": (b"\xff", "line 1: the byte 0xff is not UTF-8 text"),
    "a zero in a path": ('{"npu_path": "a\\u0000b", "bench_path": "x"}', "holds no recording"),
    "half a character in a path": ('{"npu_path": "\\ud800", "bench_path": "x"}', "holds no recording"),
    "a long path": ('{"npu_path": "' + "x/" * 5000 + '", "bench_path": "x"}', "File name too long"),
}


@pytest.mark.parametrize(("text", "sentence"), REQUESTS.values(), ids=REQUESTS)
def test_a_damaged_request_is_one_sentence(case: Case, text: str | bytes, sentence: str) -> None:
    file = case.folder / "compare.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, shown, error = case.run("-i", file, "-o", case.out)
    assert (code, shown, error.count("\n"), files(case.out)) == (2, "", 1, [])
    assert "unexpected" not in error
    assert sentence in error


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist; check the path."),
        (lambda path: path.mkdir(), "cannot be read: Is a directory."),
        (lambda path: os.mkfifo(path), "cannot be read: it is not a regular file."),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: it is not a regular file."),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links."),
    ],
)
def test_a_request_that_is_no_file_is_one_sentence(
    case: Case, make: Callable[[Path], None], sentence: str
) -> None:
    file = case.folder / "compare.json"
    make(file)
    assert sentence in case.refused("-i", file, "-o", case.out)


def test_a_long_request_is_read_in_one_go(case: Case) -> None:
    """To count the lines before each of its keys anew would take hours."""
    file = case.folder / "compare.json"
    keys = ",\n".join(f'"{number}": 0' for number in range(200_000))
    file.write_text(f"{{{keys}}}")
    assert "'0' is not a key" in case.refused("-i", file, "-o", case.out)


# --- where results go --------------------------------------------------------------------------------------


@pytest.fixture
def good(case: Case) -> Case:
    recording(case.target, dump({CALL: call(tensor(Max=9.0))}))
    return case


def test_a_place_for_results_that_is_none_is_one_sentence(good: Case) -> None:
    (good.folder / "file").write_text("keep")
    (good.folder / "link").symlink_to("nothing")
    for path in ("file", "file/below", "link", "/proc/msprobe/out", "x" * 300):
        out = good.folder / path
        code, shown, error = good.run(good.target, good.golden, "-o", out)
        assert (code, shown, error.count("\n"), "unexpected" in error) == (2, "", 1, False)
        assert str(out) in error
    assert (good.folder / "file").read_text() == "keep"
    assert sorted(path.name for path in good.folder.iterdir()) == ["file", "golden", "link", "target"]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond 64 bytes: the kernel cuts a write short and refuses the next, as full disks do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGXFSZ, old)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("words", [[], ["--csv"], ["-c"]])
def test_a_full_disk_leaves_nothing_behind(good: Case, words: list[str]) -> None:
    with full_disk():
        code, _, error = good.run(good.target, good.golden, "-o", good.out, *words)
    assert (code, error.count("\n"), files(good.out)) == (2, 1, [])
    assert str(good.out / "compare_result") in error
    assert "File too large" in error


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests were started in the background of a script, whose jobs ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("words", [[], ["--csv"], ["-c"]])
def test_an_interruption_leaves_nothing_behind(
    good: Case, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """At the worst moment: everything is written, and not yet under its name."""

    def interrupted(source: str, target: str) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    code, _, error = good.run(good.target, good.golden, "-o", good.out, *words)
    assert (code, error, files(good.out)) == (130, "", [])


@pytest.mark.parametrize("word", ["--json", "--junit"])
def test_a_summary_that_cannot_be_written_is_one_sentence(good: Case, word: str) -> None:
    path = good.folder / "gone" / "file"
    code, _, error = good.run(good.target, good.golden, "-o", good.out, word, path)
    assert (code, error.count("\n"), unfinished(good.folder)) == (2, 1, [])
    assert str(path) in error
