"""What overflow_check leaves behind is a recording like any other: the existing compare reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from incumbent import NEW, OLD, compare  # noqa: E402
from torch_fixtures import Probe, probe  # noqa: E402

__all__ = ["probe"]

pytestmark = pytest.mark.prove


@pytest.mark.parametrize("release", [OLD, NEW])
def test_the_existing_compare_reads_the_folder(probe: Probe, tmp_path: Path, release: str) -> None:
    """Called by the name of another task: of this one it compares nothing, not even its own."""
    debugger = probe.debugger("L1", "overflow_check", section={"overflow_nums": -1})
    debugger.start()
    x = torch.tensor([3e38, 1.0], requires_grad=True)
    torch.relu(x * 10).sum().backward()
    debugger.stop()
    debugger.step()
    dump = probe.rank() / "dump.json"
    dump.write_text(dump.read_text().replace('"task": "overflow_check"', '"task": "tensor"'))
    assert (probe.rank() / "overflow.csv").exists()
    table = compare(tmp_path, release, {"overflow": (dump, dump)})["overflow"]
    assert {name.rpartition(".forward")[0] for name, _, _ in table.rows if "forward" in name} == {
        "Tensor.__mul__.0",
        "Torch.relu.0",
        "Tensor.sum.0",
    }
    assert table.matched == 1.0
