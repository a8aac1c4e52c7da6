"""One HTML page of a comparison: answer, data, style and script in a single file that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import PydanticSerializationError, to_json

from msprobe.kernels_deflate import compress
from msprobe.report.page_answer import answer_section
from msprobe.report.page_rows import page_rows
from msprobe.report.table import REPLACEMENT, SURROGATE
from msprobe.store.layout import write_whole
from msprobe.verdict.comparison import Comparison

_ASSETS = Path(__file__).with_name("page_assets")
# Joined into one script, in this order: the files share one scope, and a later one uses those before it.
_SCRIPTS = ("data.js", "dom.js", "table.js", "tree.js", "plot.js", "chart.js", "detail.js", "page.js")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write_page(
    path: Path, comparison: Comparison, *, others: Sequence[tuple[str, str]] = (), next_config: str = ""
) -> None:
    """Write the page, whole or not at all.

    `others` are the labels and file names of pages beside it, of other ranks and steps; `next_config` is the
    text of a narrower configuration for the next recording.
    """
    write_whole(path, _page(comparison, others, next_config))


def _page(comparison: Comparison, others: Sequence[tuple[str, str]], next_config: str) -> Iterator[bytes]:
    style = _asset("page.css")
    script = "\n".join(map(_asset, _SCRIPTS))
    outcome = comparison.outcome()
    label = outcome.label
    parts = {
        "policy": _policy(style, script),
        "title": escape(f"{label} · msprobe" if label else "msprobe comparison"),
        "label": escape(label),
        "others": _links(others),
        "answer": answer_section(comparison, outcome, next_config),
        "style": style,
        "script": script,
    }
    rows = page_rows(comparison)
    parts |= {"facts": _packed(_json(rows.facts)), "numbers": _packed(rows.numbers)}
    template = _asset("page.html")
    end = 0
    for found in _PLACEHOLDER.finditer(template):
        yield template[end : found.start()].encode()
        yield parts[found[1]].encode("utf-8", "replace")
        end = found.end()
    yield template[end:].encode()


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and only the script and the style that are known here take effect."""
    return (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _links(others: Sequence[tuple[str, str]]) -> str:
    if not others:
        return ""
    links = "".join(f'<li><a href="{escape(quote(name))}">{escape(label)}</a></li>' for label, name in others)
    return f'<nav aria-label="Other ranks and steps"><ul>{links}</ul></nav>'


def _packed(content: bytes) -> str:
    """Compressed, in characters that a page can hold."""
    return base64.b64encode(compress(content)).decode("ascii")


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return to_json(value, inf_nan_mode="strings", fallback=str)
    except PydanticSerializationError:  # half a character somewhere: a rare file may hold such a name
        return to_json(_writable(value), inf_nan_mode="strings", fallback=str)


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub(REPLACEMENT, value)
    if isinstance(value, Mapping):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(item) for item in value]
    return value
