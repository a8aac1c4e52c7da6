"""The existing tool's compare reads our MindSpore recordings, within the framework and across.

The recordings are those of tests/golden/across.tar.xz, which tests/ms/make_across.py makes with our recorder.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from across_case import Runs, packed
from across_record import MODES, Wanted
from incumbent import NEW, OLD, WITH_MINDSPORE, Verdicts, compare, python_of
from msprobe.compare import compare_recordings
from msprobe.pairing.match import places
from msprobe.report.saved_mapping import mapped_places, write_data_mapping

__all__ = ["packed"]

pytestmark = pytest.mark.prove

RELEASES = (OLD, NEW)
SAME = [Wanted("transformer", *each) for each in MODES]
# Its own table of APIs, its own rule for cells, and our alignment, written as a file that it takes.
ACROSS = [
    ("-am", Wanted("transformer", "L1")),
    ("-am", Wanted("resnet", "L1")),
    ("-cm", Wanted("resnet", "L0")),
    ("-dm", Wanted("transformer", "mix", "tensor")),
    ("-dm", Wanted("resnet", "mix")),
]
Tables = Mapping[tuple[str, str, Wanted], Verdicts]


@pytest.fixture(scope="module")
def tables(packed: Runs, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """What each release says: of ours with one weight changed against ours; and of ours against PyTorch's."""
    found = {}
    for release in RELEASES:
        maker = release + WITH_MINDSPORE
        python_of(maker)
        pairs = {
            each.name: (
                dump(packed, "mindspore", each._replace(variant="perturbed")),
                dump(packed, "mindspore", each),
            )
            for each in SAME
        }
        for name, table in compare(tmp_path_factory.mktemp("same"), maker, pairs).items():
            found[release, "", Wanted(*name.split("_"))] = table
        for option, wanted in ACROSS:
            folder = tmp_path_factory.mktemp("across")
            words = [option]
            if option == "-dm":
                words.append(str(folder / "pairs.yaml"))
                findings = compare_recordings(*packed.pair(wanted)).findings
                write_data_mapping(folder / "pairs.yaml", mapped_places(finding.pair for finding in findings))
            both = dump(packed, "mindspore", wanted), dump(packed, "pytorch", wanted)
            found[release, option, wanted] = compare(folder, maker, {wanted.name: both}, *words)[wanted.name]
    return MappingProxyType(found)


def dump(packed: Runs, framework: str, wanted: Wanted) -> Path:
    (path,) = packed.path(framework, wanted).glob("step0/*/dump.json")
    return path


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("wanted", SAME, ids=lambda wanted: wanted.name)
def test_it_reads_two_of_our_recordings(tables: Tables, packed: Runs, release: str, wanted: Wanted) -> None:
    """Each place of our recording is a row, each row has its counterpart, and verdicts are not all alike."""
    table = tables[release, "", wanted]
    recording = packed.read("mindspore", wanted)
    names = {place.name for record in recording.records.values() for place in places(record)}
    assert {name for name, *_ in table.rows} == names
    assert table.matched == 1
    assert len(table.judged) > 1


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("option", "wanted"), ACROSS)
def test_it_compares_ours_across_frameworks(
    tables: Tables, packed: Runs, release: str, option: str, wanted: Wanted
) -> None:
    """What it pairs by its tables we pair too, without any, but for what it pairs wrongly.

    The transformers split queries, keys and values in another order, and it goes by the counts of calls.
    Release 26.2.0 counts backward calls in the order in which they ran, so it pairs the first with the last.
    """
    table = tables[release, option, wanted]
    theirs = {target: golden for target, golden, _ in table.rows if golden not in ("N/A", "")}
    findings = compare_recordings(*packed.pair(wanted)).findings
    ours = {f.pair.target.name: f.pair.golden.name for f in findings if f.pair.target and f.pair.golden}
    assert theirs.keys() <= ours.keys()
    if option == "-dm":
        assert len(theirs) >= len(ours) - 1
    different = {name for name in theirs if ours[name] != theirs[name]}
    if release == NEW:
        different = {name for name in different if ".backward." not in name}
    if option == "-am" and wanted.net == "transformer":
        different = {
            name for name in different if not name.startswith(("Tensor.reshape.", "Tensor.transpose."))
        }
    assert different == set()
