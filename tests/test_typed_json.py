"""Records are the same, read as typed values or through dicts, and damaged ones are refused alike."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from msprobe import store
from msprobe.errors import RecordingError
from msprobe.record import Leaf
from msprobe.store import typed_json

GOLDEN = sorted((Path(__file__).parent / "golden").rglob("dump.json"))
TENSOR = (
    '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2,3],"Max":1.5,"Min":-0.0,"Mean":1e-7,"Norm":2'
)


def read_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The records of a file, read in either way; an error is its sentence."""
    found = []
    for parts_of in (typed_json.parts_of, lambda _: None):
        monkeypatch.setattr(typed_json, "parts_of", parts_of)
        try:
            records = store.read_one(path).records.values()
            found.append([record._replace(fields=dict(sorted(record.fields.items()))) for record in records])
        except RecordingError as error:
            found.append(str(error))
    return found[0], found[1]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: str(path.parent.relative_to(GOLDEN[0].parents[3])))
def test_golden_files_read_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed, plain = read_both(path, monkeypatch)
    assert repr(typed) == repr(plain)  # also the types of numbers, and the sign of zero


FORMS = {
    "a tensor": f'{{"input_args":[{TENSOR},"requires_grad":true,"hash":"0f"}}],"output":[{TENSOR}}}]}}',
    "nested lists": f'{{"input_args":[[[{TENSOR}}}],null],null]}}',
    "deeper lists": f'{{"input_args":[[[[{TENSOR}}}]]]]}}',
    "a dict of results": f'{{"output":[{{"logits":{TENSOR}}}}}]}}',
    "keywords": f'{{"input_kwargs":{{"mask":{TENSOR}}},"p":{{"type":"float","value":0.5}}}}}}',
    "a slice": '{"input_args":[{"type":"slice","value":[null,3,null]}]}',
    "a keyword named as a field": f'{{"input_kwargs":{{"output":{TENSOR}}}}}}}',
    "an extra key": f'{{"output":[{TENSOR},"placements":"Shard(0)"}}]}}',
    "keys without a shape": '{"output":[{"type":"a","value":1,"dtype":"b"}]}',
    "recomputed": f'{{"is_recompute":true,"output":[{TENSOR}}}],"recompute":{{"output":[{TENSOR}}}]}}}}',
    "a whole number": f'{{"output":[{{"type":"int","value":{2**70 + 1}}}]}}',
    "a whole number that is no float": f'{{"output":[{{"type":"int","value":{2**1200}}}]}}',
    "a whole number as maximum": TENSOR.replace("1.5", str(2**63)).join(('{"output":[', "}]}")),
    "NaN": TENSOR.replace("1.5", "NaN").join(('{"output":[', ',"Nan_count":3}]}')),
    "half a character": '{"output":[{"type":"str","value":"\\ud800"}]}',
    "an older text": '{"input_args":[{"type":"str","value":"a"},3,"b"]}',
    "a text for a maximum": TENSOR.replace("1.5", '"1"').join(('{"output":[', "}]}")),
    "a path for a file": f'{{"output":[{TENSOR},"data_name":"../a.pt"}}]}}',
    "a negative shape": TENSOR.replace("[2,3]", "[-3]").join(('{"output":[', "}]}")),
    "a broken sketch": f'{{"output":[{TENSOR},"sketch":"cs64:!"}}]}}',
    "a long key": f'{{"input_kwargs":{{"{"k" * 20_000}":[null]}}}}',
    "too deep a value": f'{{"output":[{{"type":"list","value":{"[" * 900}{"]" * 900}}}]}}',
    "a list for a record": "[]",
    "broken JSON": '{"output":[}',
}


@pytest.mark.parametrize("record", FORMS.values(), ids=FORMS)
def test_every_form_reads_alike(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = '{"task":"statistics","level":"L1","framework":"pytorch","left_out":{"a reason":2},"data":'
    path = tmp_path / "dump.json"
    path.write_text(f'{head}{{"Torch.f.0.forward":{record},"Torch.f.1.forward":{{"output":[{TENSOR}}}]}}}}}}')
    typed, plain = read_both(path, monkeypatch)
    assert repr(typed) == repr(plain)


def test_usual_records_are_read_as_typed_values() -> None:
    """A form that our recorder writes for most calls must not fall back to dicts unnoticed."""
    usual = ("a tensor", "nested lists", "keywords", "a slice", "a keyword named as a field")
    found = {name: typed_json.fields_of(msgspec.Raw(FORMS[name].encode())) for name in usual}
    assert [name for name, fields in found.items() if fields is None] == []
    tensor = found["a tensor"]
    assert tensor is not None
    assert isinstance(tensor["output"][0], Leaf)


def test_a_file_of_ours_is_taken_apart(tmp_path: Path) -> None:
    parts = typed_json.parts_of(b'{"task":"tensor","data":{"Torch.f.0.forward":{"output":[]}}}')
    assert parts is not None
    assert parts.head == {"task": "tensor"}
    assert bytes(parts.data["Torch.f.0.forward"]) == b'{"output":[]}'
