"""Story 2: two runs go in; every pair of places is matched, measured and judged."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msprobe import store
from msprobe.analyse.judge import Finding, by_call, colour, judge
from msprobe.analyse.measure import (
    EQUAL,
    Measured,
    StatisticsErrors,
    TensorErrors,
    measure_checksums,
    measure_statistics,
    measure_tensors,
    no_errors,
    unlike,
)
from msprobe.errors import RecordingError
from msprobe.graph import Graph
from msprobe.log import logger
from msprobe.mapping_file import built_in_apis
from msprobe.pairing.across import across
from msprobe.pairing.align import align
from msprobe.pairing.keywords import with_keywords
from msprobe.pairing.mapping import NO_MAPPINGS, Mappings, renaming
from msprobe.pairing.match import NAMED_AS_BY_TORCH, Pair, Place, Rename, match
from msprobe.pairing.numbers import mistrust
from msprobe.pairing.other_tools import understood, without_changed_inputs
from msprobe.pairing.strays import Stray, sentences, strays
from msprobe.pairing.stretch import stretches
from msprobe.record import Leaf, Recording, content_key, slots
from msprobe.store import Source
from msprobe.store.tensor_file import StoredTensor, read
from msprobe.verdict.assess import assess
from msprobe.verdict.comparison import Comparison, Outcome
from msprobe.verdict.coverage import supported, unjudged_ends
from msprobe.verdict.locate import locate
from msprobe.verdict.optimizer import StepState, judge_changes
from msprobe.verdict.table_rows import TableRows

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

TENSOR, STATISTICS, CHECKSUM = "tensor", "statistics", "md5"

_AHEAD = 256  # pairs whose tensors may be read before the first of them is judged
_NO_FILE = "{} does not have data file."
_ALIGNED = "calls are paired by what they do, because {}"
_BY_NUMBER = "{}, so calls of one number may be different calls: --align pairs calls by what they do"
UNLIKE_FILES = "The files hold the "  # and what of them differs so that no number can be given

_File = tuple[int, int]  # its device, and its number there
_Files = tuple[_File, _File]  # of the target and of the golden run
Progress = Callable[[int, int], None]  # how many of how many places are measured


def compare(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    *,
    fuzzy: bool = False,
    mappings: Mappings = NO_MAPPINGS,
    as_specified: bool = False,
    progress: Progress | None = None,
) -> list[Comparison]:
    """Compare two runs, steps, ranks or files, step by step and rank by rank, all in memory."""
    found: list[Comparison] = []
    lost = []
    pairs = paired(store.find(target), store.find(golden))
    states: dict[int | None, StepState] = {}  # of each rank
    for ours, theirs in pairs:
        recordings = store.read_one(ours.path), store.read_one(theirs.path)
        found.append(
            compare_recordings(
                *recordings,
                fuzzy=fuzzy,
                mappings=mappings,
                as_specified=as_specified,
                progress=progress,
                before=states.get(ours.rank),
            )
        )
        if len(pairs) > 1:
            states[ours.rank] = found[-1].next_state()
        lost.append(strays(mappings, *recordings))
    tell_strays(lost)
    must_hold_something(found, target, golden)
    return found


def tell_strays(found: Sequence[Sequence[Stray]]) -> None:
    """Warn of the names in a mapping file that no recording has."""
    for sentence in sentences(found):
        logger().warning(sentence)


def must_hold_something(
    found: Sequence[Comparison | Outcome], target: str | os.PathLike[str], golden: str | os.PathLike[str]
) -> None:
    """Nothing compared is an error, never a pass."""
    counts = [c.places if isinstance(c, Outcome) else len(c.findings) for c in found]
    if not any(counts):
        raise RecordingError(f"Nothing was compared: {target} and {golden} hold no record.")


def paired(target: Sequence[Source], golden: Sequence[Source]) -> list[tuple[Source, Source]]:
    """The recordings of one step and rank of both runs; two single ones belong together in any case."""
    if len(target) == len(golden) == 1:
        return [(target[0], golden[0])]
    theirs = {(source.step, source.rank): source for source in golden}
    pairs = [
        (source, theirs[source.step, source.rank])
        for source in target
        if (source.step, source.rank) in theirs
    ]
    if not pairs:
        raise RecordingError(
            f"The two runs have no step and rank in common: the target has {_named(target)}, the golden run "
            f"has {_named(golden)}. Give two folders of one rank, or two dump.json files, to compare these."
        )
    return pairs


def _named(sources: Sequence[Source]) -> str:
    names = [f"step {s.step} rank {'-' if s.rank is None else s.rank}" for s in sources]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def compare_recordings(
    target: Recording,
    golden: Recording,
    *,
    fuzzy: bool = False,
    mappings: Mappings = NO_MAPPINGS,
    as_specified: bool = False,
    progress: Progress | None = None,
    before: StepState | None = None,
) -> Comparison:
    """Compare one rank at one step; `as_specified`: the table pairs calls by their numbers in any case.

    `before`: the state of the step before, by which changes of parameters are judged.
    """
    mode = mode_of(target, golden)
    pairing = _pairing(target, golden, mappings, fuzzy=fuzzy, as_specified=as_specified)
    verdict = with_keywords(understood(pairing.verdict, target, golden), target, golden)
    is_one = verdict is pairing.table or (pairing.verdict is pairing.table and not as_specified)
    graphs = Graph(target), Graph(golden)

    def matched(rename: Rename) -> list[Pair]:
        return without_changed_inputs(match(target, golden, fuzzy=fuzzy, rename=rename), graphs)

    table = matched(verdict if is_one else pairing.table)
    judged = table if is_one else matched(verdict)
    findings = _findings(mode, table, target, golden, progress)
    judged_findings = findings if is_one else _judged_findings(mode, judged, findings, target, golden)
    unpaired = stretches(judged, target, golden, graphs)
    verdicts, precision, unequal = assess(judged_findings, graphs, unpaired)
    optimized = judge_changes(before, graphs, judged_findings, verdicts)
    is_doubtful = mappings.align is False and bool(pairing.notes)
    verdicts = supported(judged_findings, optimized.verdicts, is_doubtful=is_doubtful)
    gap = unjudged_ends(graphs[0], judged_findings, verdicts)
    located = locate(
        target, golden, mode, judged_findings, verdicts, unequal=unequal, notes=pairing.notes, gap=gap
    )
    if not is_one:
        rows = TableRows(table, judged)
        verdicts, located = rows.verdicts(verdicts), rows.located(located)
    return Comparison(
        target,
        golden,
        mode,
        findings,
        verdicts,
        located,
        precision,
        None if is_one else judged,
        pairing.why,
        changes=optimized.changes,
        lost_changes=optimized.lost,
    )


def _findings(
    mode: str, pairs: Sequence[Pair], target: Recording, golden: Recording, progress: Progress | None
) -> list[Finding]:
    """What the specification makes of each pair."""
    findings = []
    measured = _measured(mode, pairs, target, golden)
    for done, (pair, errors) in enumerate(zip(pairs, measured, strict=True)):
        findings.append(judge(pair, errors))
        if progress is not None and done % 256 == 0:
            progress(done, len(pairs))
    if progress is not None:
        progress(len(pairs), len(pairs))
    return [finding for call in by_call(findings) for finding in colour(call)]


def _judged_findings(
    mode: str, pairs: Sequence[Pair], findings: Sequence[Finding], target: Recording, golden: Recording
) -> list[Finding]:
    """The same of the pairs that our verdict judges; those that the table has too are not measured again."""
    known = {_names(finding.pair): finding.measured for finding in findings}
    new = [pair for pair in pairs if _names(pair) not in known]
    known.update(zip(map(_names, new), _measured(mode, new, target, golden), strict=True))
    return [judge(pair, known[_names(pair)]) for pair in pairs]


def _names(pair: Pair) -> tuple[str | None, str | None]:
    return pair.target and pair.target.name, pair.golden and pair.golden.name


class _Pairing(NamedTuple):
    """What the golden run calls the target's calls: for the table, and for our verdict."""

    table: Rename
    verdict: Rename
    why: str = ""  # why calls were aligned although nobody asked for it
    notes: tuple[str, ...] = ()  # what this means for the evidence


def _pairing(
    target: Recording, golden: Recording, mappings: Mappings, *, fuzzy: bool, as_specified: bool
) -> _Pairing:
    frameworks = {target.header.framework, golden.header.framework}
    share_names = len(frameworks) == 1 or frameworks <= NAMED_AS_BY_TORCH
    if not share_names and mappings.by_names and mappings.align is not False:
        aligned = align(target, golden)
        return _Pairing(aligned, aligned)
    named = _renaming(target, golden, mappings)
    if mappings.align:
        aligned = align(target, golden)
        return _Pairing(named if as_specified else aligned, aligned)
    if not share_names and mappings.names_nothing and mappings.align is not False:
        return _Pairing(named, align(target, golden))
    why = mistrust(target, golden) if share_names and mappings.by_names else ""
    if not why:
        return _Pairing(named, named)
    if mappings.align is False:
        return _Pairing(named, named, notes=() if fuzzy else (_BY_NUMBER.format(why),))
    aligned = align(target, golden)
    return _Pairing(named if as_specified or fuzzy else aligned, aligned, why, (_ALIGNED.format(why),))


def _renaming(target: Recording, golden: Recording, mappings: Mappings) -> Rename:
    """What the mappings say."""
    if target.header.framework == golden.header.framework:
        return renaming(mappings, target.header.framework)
    return across(mappings, target, golden, built_in_apis() if mappings.api is not None else {})


def mode_of(target: Recording, golden: Recording) -> str:
    """The most that both recordings offer."""
    if target.header.task == golden.header.task == TENSOR:
        return TENSOR
    return CHECKSUM if all(map(_has_checksums, (target, golden))) else STATISTICS


def _has_checksums(recording: Recording) -> bool:
    return any(
        leaf is not None and leaf.checksum is not None
        for record in recording.records.values()
        for _, _, leaf in slots(record)
    )


def _measured(mode: str, pairs: Sequence[Pair], target: Recording, golden: Recording) -> Iterator[Measured]:
    """The errors of each pair, in order; None for what cannot be measured."""
    if mode == TENSOR:
        yield from measured_tensors(pairs, target, golden)
        return
    if mode == CHECKSUM:
        for pair in pairs:
            yield measure_checksums(_leaf(pair.target), _leaf(pair.golden)) if not pair.reason else None
        return
    known: dict[tuple[Hashable, Hashable], StatisticsErrors] = {}  # many values go into several calls
    for pair in pairs:
        yield _statistics(_leaf(pair.target), _leaf(pair.golden), known) if not pair.reason else None


def _statistics(
    ours: Leaf | None, theirs: Leaf | None, known: dict[tuple[Hashable, Hashable], StatisticsErrors]
) -> StatisticsErrors:
    """Measure two values by their statistics; `known`: what was found of other pairs, by their contents."""
    contents = ours and content_key(ours), theirs and content_key(theirs)
    if None in contents:
        return measure_statistics(ours, theirs)
    found = known.get(contents)
    if found is None:
        found = known[contents] = measure_statistics(ours, theirs)
    return found


def measured_tensors(
    pairs: Sequence[Pair], target: Recording, golden: Recording
) -> Iterator[TensorErrors | None]:
    """The same by contents; tensors are read by several threads, a bounded number ahead."""
    from concurrent.futures import ThreadPoolExecutor  # only contents need it

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        contents = _Contents(pool, target, golden)
        for start in range(0, len(pairs), _AHEAD):
            waiting = [contents.begin(pair) for pair in pairs[start : start + _AHEAD]]
            yield from (result() for result in waiting)


class _Contents:
    """Measures the tensor files of pairs, and two files only once, whatever they are called.

    Most tensors are the result of one call and an argument of others. A recording holds such a tensor in one
    file that has several names.
    """

    def __init__(self, pool: ThreadPoolExecutor, target: Recording, golden: Recording) -> None:
        self._pool = pool
        self._target, self._golden = target, golden
        self._known: dict[_Files, Future[TensorErrors | None]] = {}

    def begin(self, pair: Pair) -> Callable[[], TensorErrors | None]:
        """Have a pair measured; return what waits for its errors."""
        files = self._files(pair)
        first = self._known.get(files) if files is not None else None
        if first is not None:
            return functools.partial(self._same_as, first, pair)
        future = self._pool.submit(_tensors, pair, self._target, self._golden)
        if files is not None:
            self._known[files] = future
        return future.result

    def _files(self, pair: Pair) -> _Files | None:
        """Return which two files hold a pair; None if one of them has no other name."""
        ours = None if pair.reason else _shared_file(file_of(self._target, pair.target))
        theirs = None if ours is None else _shared_file(file_of(self._golden, pair.golden))
        return None if ours is None or theirs is None else (ours, theirs)

    def _same_as(self, first: Future[TensorErrors | None], pair: Pair) -> TensorErrors | None:
        errors = first.result()
        if errors is not None and (errors.sums is not None or errors is EQUAL):
            return errors
        return _tensors(pair, self._target, self._golden)  # its message names its own files


def _shared_file(path: Path | None) -> _File | None:
    """Return which file it is if it has several names."""
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status is not None and status.st_nlink > 1 else None


def _leaf(place: Place | None) -> Leaf | None:
    return None if place is None else place.leaf


def _tensors(pair: Pair, target: Recording, golden: Recording) -> TensorErrors | None:
    if pair.reason:
        return None
    paths = file_of(target, pair.target), file_of(golden, pair.golden)
    for path, whose in zip(paths, ("NPU", "Bench"), strict=True):
        if path is None or not os.path.isfile(path):
            return no_errors(_NO_FILE.format(whose))
    try:
        ours, theirs = (read(path, verify=False) for path in paths if path is not None)
        return _contents(ours, theirs)
    except RecordingError as problem:  # a damaged file costs its own place, not the comparison
        return no_errors(str(problem))
    except MemoryError:
        return no_errors(f"{paths[0]} and {paths[1]} need more memory than there is.")


def _contents(ours: StoredTensor, theirs: StoredTensor) -> TensorErrors:
    if differing := unlike(ours, theirs):
        return no_errors(f"{UNLIKE_FILES}{differing}.")
    if _same(ours, theirs) and ours.array.size > 1:
        return EQUAL
    return measure_tensors(ours, theirs)


def _same(ours: StoredTensor, theirs: StoredTensor) -> bool:
    """Whether the files say that they hold the same numbers, which then need not be read."""
    return ours.crc != 0 and (ours.crc, ours.dtype) == (theirs.crc, theirs.dtype)


def file_of(recording: Recording, place: Place | None) -> Path | None:
    """The file with the content of a place."""
    leaf = _leaf(place)
    return None if leaf is None else store.tensor_path(recording, leaf)
