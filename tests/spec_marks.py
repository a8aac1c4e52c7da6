"""The pytest plugin of `@pytest.mark.spec(row, environment, ...)`: which marked tests ran and how they ended.

With `--spec-report FILE` it writes what `tools/spec.py` reads. A run that did not come to its end leaves no
file, so that nothing counts as shown by half a run.
"""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from spec_rows import Row, SpecError, check_mark, read_rows

_FINISHED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
# The worst of a test's phases is its outcome: an error in teardown takes away what the call had shown.
_WORSE = ("passed", "xfailed", "skipped", "failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spec", "rows of the specification")
    group.addoption("--spec-report", type=Path, metavar="FILE", help="write what the marked tests showed")
    group.addoption("--spec-append", action="store_true", help="add to the report of an earlier run")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--spec-report")
    # A worker of pytest-xdist has its results sent to the process that started it, which writes the report.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(config, path.absolute()), "spec-report")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reads every mark, also of tests that are deselected later; a wrong one ends the run."""
    rows = read_rows()
    faults = []
    for item in items:
        try:
            shows = _shows(item, rows)
        except SpecError as error:
            faults.append(f"{item.nodeid}: {error}")
            continue
        if shows:
            item.user_properties.append(("spec", shows))
    if faults:
        raise pytest.UsageError(*faults)


def _shows(item: pytest.Item, rows: Mapping[str, Row]) -> list[tuple[str, tuple[str, ...]]]:
    marks = list(item.iter_markers("spec"))
    if any(mark.kwargs for mark in marks):
        raise SpecError("spec takes no keyword arguments.")
    return [check_mark(rows, mark.args) for mark in marks]


class _Report:
    """Collects the outcomes of one run and writes them when it has come to its end."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._path = path
        self._arguments = [str(argument) for argument in config.invocation_params.args]
        self._earlier: dict[str, Any] = {"runs": [], "tests": []}
        if config.getoption("--spec-append") and path.exists():
            self._earlier = json.loads(path.read_text(encoding="utf-8"))
        path.unlink(missing_ok=True)
        self._shows: dict[str, Any] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shows = dict(report.user_properties).get("spec")
        outcome = _outcome(report)
        if shows is None or outcome is None:
            return
        self._shows[report.nodeid] = shows
        before = self._outcomes.get(report.nodeid, outcome)
        self._outcomes[report.nodeid] = max(before, outcome, key=_WORSE.index)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in _FINISHED:
            return
        run = {
            "finished": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "arguments": self._arguments,
            "counts": dict(Counter(self._outcomes.values())),
        }
        tests = [
            {"test": test, "outcome": outcome, "shows": self._shows[test]}
            for test, outcome in self._outcomes.items()
        ]
        report = {"runs": [*self._earlier["runs"], run], "tests": [*self._earlier["tests"], *tests]}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _outcome(report: pytest.TestReport) -> str | None:
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else None
