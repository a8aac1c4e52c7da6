"""Checking a value against a model, where every mistake becomes a sentence that says what is allowed."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from msprobe.config.models import SECTIONS, ConfigFile
from msprobe.errors import ConfigError
from msprobe.json_file import Json, KeyPath, Remark

Model = TypeVar("Model", bound=BaseModel)

_MUST_BE = MappingProxyType(
    {
        "string_type": "it must be a text in double quotes",
        "string_too_short": "it must not be empty",
        "int_type": "it must be an integer",
        "bool_type": "it must be true or false, without quotes",
        "tuple_type": "it must be a list: [ ... ]",
        "model_type": "it must be an object: { ... }",
        "too_long": "it must stay empty",
    }
)


def check(model: type[Model], given: Mapping[str, Json]) -> tuple[Model | None, list[Remark]]:
    """The model of these values, or what is wrong with them."""
    nulls = [Remark("is null; leave the key out to get its default", (key,)) for key in _nulls(given)]
    try:
        checked = model.model_validate(without(given, [remark.keys[0] for remark in nulls]))
    except ValidationError as error:
        return None, nulls + [_remark(model, one) for one in error.errors(include_url=False)]
    return (None if nulls else checked), nulls


def without(given: Mapping[str, Json], keys: Iterable[KeyPath]) -> dict[str, Json]:
    """The values without these keys; a key inside a list takes the whole list with it."""
    dropped = {
        key[:2] if len(key) > 1 and isinstance(given.get(str(key[0])), dict) else key[:1] for key in keys
    }
    kept: dict[str, Json] = {}
    for key, value in given.items():
        if isinstance(value, dict):
            value = {inner: item for inner, item in value.items() if (key, inner) not in dropped}
        if (key,) not in dropped:
            kept[key] = value
    return kept


def refuse(sentences: Sequence[str]) -> None:
    """Raises one error with all the sentences, if there are any."""
    if len(sentences) == 1:
        raise ConfigError(sentences[0])
    if sentences:
        raise ConfigError(f"The configuration has {len(sentences)} problems:\n  " + "\n  ".join(sentences))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one, or nothing."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else ""


def _nulls(given: Mapping[str, Json]) -> list[KeyPath]:
    found: list[KeyPath] = []
    for key, value in given.items():
        if value is None:
            found.append((key,))
        if isinstance(value, dict):
            found.extend((key, inner) for inner, item in value.items() if item is None)
    return found


def _remark(model: type[BaseModel], error: ErrorDetails) -> Remark:
    key: KeyPath = error["loc"]
    context = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return Remark(_unknown_key(model, key), (key,))
    if error["type"] == "missing":
        return Remark("is missing", (key,))
    value = error["input"]
    if error["type"] == "literal_error":
        return Remark(_closed_set(value, re.findall(r"'([^']*)'", context["expected"])), (key,))
    if error["type"] == "wrong":
        index = context["index"]
        key, value = (key, value) if index is None else ((*key, index), value[index])
        return Remark(f"is {_shown(value)}, but {context['message']}", (key,))
    return Remark(f"is {_shown(value)}, but {_rule(error['type'], context) or error['msg']}", (key,))


def _rule(kind: str, context: Mapping[str, Any]) -> str:
    if "ge" in context:
        return f"it must be at least {context['ge']}"
    if "le" in context:
        return f"it must be at most {context['le']}"
    return _MUST_BE.get("int_type" if kind.startswith("int_") else kind, "")


def _closed_set(value: object, allowed: list[str]) -> str:
    quoted = ", ".join(f'"{one}"' for one in allowed)
    rule = f"it must be one of {quoted}" if len(allowed) > 1 else f"it must be {quoted}"
    near = nearest(value, allowed) if isinstance(value, str) else ""
    return f"is {_shown(value)}, but {rule}" + (f'; did you mean "{near}"?' if near else "")


def _unknown_key(model: type[BaseModel], key: KeyPath) -> str:
    name = str(key[-1])
    own = _keys(SECTIONS[str(key[0])] if model is ConfigFile and len(key) > 1 else model)
    homes = [section for section, fields in SECTIONS.items() if name in _keys(fields)]
    if model is not ConfigFile:
        homes = []
    elif len(key) > 1 and name in _keys(ConfigFile):
        return "is not a key of this section; it belongs at the top level"
    if homes:
        places = " or ".join(f'"{home}"' for home in homes)
        return f"is not a key of this {'section' if len(key) > 1 else 'level'}; it belongs in {places}"
    near = nearest(name, own)
    return "is not a known key; " + (f'did you mean "{near}"?' if near else "remove it")


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
