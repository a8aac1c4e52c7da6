"""The JSON Schema and the documentation of config.json: up to date, and of one mind with the loader."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import msprobe
from config_case import EXAMPLES, PT, write
from msprobe.config import Scene, json_schema, load
from msprobe.config.models import SECTIONS as MODELS
from msprobe.config.models import ConfigFile
from msprobe.errors import ConfigError

PACKAGE = Path(msprobe.__file__).parent
DOCUMENT = (Path(__file__).parent.parent / "docs" / "config.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_shipped_schema_is_up_to_date() -> None:
    """Made by: python -m msprobe.config > src/msprobe/config.schema.json"""
    command = [sys.executable, "-m", "msprobe.config"]
    done = subprocess.run(command, cwd=PACKAGE.parent.parent, capture_output=True, check=True)
    assert (PACKAGE / "config.schema.json").read_bytes() == done.stdout


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    bare = [
        f"{place}.{name}"
        for place, node in {"": schema, **schema["$defs"]}.items()
        for name, field in node["properties"].items()
        if "description" not in field and "$ref" not in field
    ]
    assert bare == []


# C115 is no JSON, C120 is the file of CANN.
PRINTED = [path for path in sorted(EXAMPLES.glob("C1*.json")) if path.stem not in ("C115", "C120")]


@pytest.mark.parametrize("path", PRINTED, ids=lambda path: path.stem)
def test_schema_accepts_the_printed_examples(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "keys",
    [
        {"dump_path": None},
        {"stpe": []},
        {"task": "dump"},
        {"rank": [-1]},
        {"rank": ["3"]},
        {"seed": None},
        {"seed": "1"},
        {"statistics": {"data_mode": "fwd"}},
        {"statistics": {"list": [""]}},
        {"tensor": {"port": 0}},
        {"tensor": {"port": None}},
        {"overflow_check": {"overflow_nums": 0}},
        {"run_ut": {"rank_list": []}},
    ],
)
def test_schema_and_loader_refuse_the_same(keys: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    path = write(**keys)
    validator = jsonschema.Draft202012Validator(json_schema())
    assert not validator.is_valid(json.loads(Path(path).read_text(encoding="utf-8")))
    with pytest.raises(ConfigError):
        load(path, scene=PT)


def test_every_key_has_its_row_in_the_documentation() -> None:
    chapters: dict[str, type[BaseModel]] = {"Common keys": ConfigFile}
    chapters |= {f"Section `{name}`": model for name, model in MODELS.items()}
    for heading, model in chapters.items():
        chapter = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        documented = re.findall(r"^\| `([^`]+)` \|", chapter, re.MULTILINE)
        keys = {field.alias or name for name, field in model.model_fields.items()} - set(MODELS)
        assert (sorted(documented), heading) == (sorted(keys), heading)


DOCUMENTED = re.findall(r"<!-- scene: (\w+) -->\n```json\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize(("scene", "text"), DOCUMENTED)
def test_documented_example_loads_without_a_word(scene: str, text: str) -> None:
    assert load(write(text), scene=Scene[scene])[1] == ()


def test_no_documented_example_is_missed() -> None:
    assert len(DOCUMENTED) == DOCUMENT.count("```json") > 0
