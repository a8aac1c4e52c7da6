"""100 kills at random moments: 100 readable recordings that hold every call which had ended."""

from pathlib import Path

import pytest

from killed import check_kill, kills


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
