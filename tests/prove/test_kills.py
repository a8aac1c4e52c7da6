"""100 kills at random moments, and thousands of damaged journals: what was finished is read back."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from killed import check_kill, kills
from test_recover import EDIT, a_journal, mutated, try_to_read

__all__ = ["a_journal"]


@pytest.mark.prove
@pytest.mark.spec("P18", "PT")
def test_a_hundred_kills_lose_no_finished_call(tmp_path: Path) -> None:
    checked = [check_kill(kill) for kill in kills(tmp_path, count=100, seed=20_261_115)]
    assert len(checked) == 100
    # The moments are spread over the life of a process: before the first call, within steps, at their ends.
    assert sum(kill.noted == 0 for kill in checked) < 50
    assert sum(kill.recovered > 0 for kill in checked) > 20
    assert sum(kill.missing_files > 0 for kill in checked) > 0
    assert sum(kill.noted for kill in checked) > 1000


@pytest.mark.prove
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDIT, min_size=1, max_size=8))
def test_thousands_of_damaged_journals(
    tmp_path: Path, a_journal: bytes, edits: list[tuple[str, int, bytes]]
) -> None:
    try_to_read(tmp_path, mutated(a_journal, edits))
