"""Many ranks and steps in one go, several at a time; each leaves its files and a short outcome."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msprobe import store
from msprobe.analyse.judge import BAD
from msprobe.compare import Progress, compare_recordings, must_hold_something, paired, tell_strays
from msprobe.garbage import uncollected
from msprobe.pairing.mapping import NO_MAPPINGS, Mappings
from msprobe.pairing.strays import Stray, strays
from msprobe.plural import counted
from msprobe.record import Recording
from msprobe.report.answer import alignment, answer
from msprobe.report.files import Wanted, Written, name_of, write_files, write_next, write_overview
from msprobe.report.saved_mapping import Mapped, mapped_calls, mapped_places, write_data_mapping
from msprobe.store import Source
from msprobe.verdict.comparison import Comparison, Outcome, labelled
from msprobe.verdict.locate import overall
from msprobe.verdict.optimizer import StepState, state_of
from msprobe.verdict.plan import Plan, plan

_INTERRUPTED = 130

Pairs = Sequence[tuple[Source, Source]]
Replay = Callable[[Comparison], Comparison]


class Options(NamedTuple):
    """How to compare."""

    fuzzy: bool = False
    mappings: Mappings = NO_MAPPINGS
    with_cases: bool = False  # each call, for JUnit and a log
    stack: str | None = None  # the target's stack.json, if it does not lie beside the recording
    jobs: int = 1  # processes
    framework: str | None = None  # of the target, if the user named it
    save_mapping: str | None = None  # where to write which place was compared with which
    as_specified: bool = False  # the table pairs calls by their numbers, and the advice is shown in full
    replay: Replay | None = None  # calls the suspects again, and gives the comparison with what that showed


class Compared(NamedTuple):
    """What came of it, and where it lies."""

    outcomes: list[Outcome]
    written: list[Written]
    overview: Path | None = None  # over several ranks or steps
    next_config: Path | None = None
    next_plan: Plan | None = None
    mappings: tuple[Path, ...] = ()  # which place was compared with which
    as_specified: bool = False  # the screen shows the advice of the specification in full

    def told(self) -> Iterator[str]:
        """What the screen shows: the answer, the advice, and where to read more."""
        yield from answer(self.outcomes)
        yield from (f"  {line}" for line in alignment(self.outcomes))
        yield from self._advice() if self.as_specified else self._short_advice()
        yield ""
        for written in self.written:
            paths = (written.table, written.page, written.advice_file)
            yield f"wrote {', '.join(str(path) for path in paths if path is not None)}"
        if self.overview is not None:
            yield f"wrote {self.overview}: all steps and ranks"
        for path in self.mappings:
            yield f"wrote {path}: which place was compared with which, for -dm"
        if self.next_config is not None and self.next_plan is not None:
            size = self.next_plan.size / 1e6
            yield f"wrote {self.next_config}: records the suspect next, about {size:.1f} MB of tensors"

    def _advice(self) -> Iterator[str]:
        """The advice of the specification in full; its fixed rules may mark what our answer explains."""
        for outcome, written in zip(self.outcomes, self.written, strict=True):
            if written.advice is not None:
                which = f", {outcome.label}" if len(self.outcomes) > 1 else ""
                yield ""
                yield f"By the fixed rules of the specification{which}:"
                yield from str(written.advice).splitlines()

    def _short_advice(self) -> Iterator[str]:
        files = [written.advice_file for written in self.written if written.advice_file is not None]
        if files:
            marked = sum(outcome.results[result] for outcome in self.outcomes for result in BAD)
            rows = counted(marked, "row", "are")
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            yield ""
            yield f"The specification's fixed rules: {rows} marked, see {files[0]}{more}."

    def files(self) -> dict[str, Any]:
        """Where everything lies, for the summary."""
        written = [
            {"table": _text(each.table), "page": _text(each.page), "advice": _text(each.advice_file)}
            for each in self.written
        ]
        plan = self.next_plan
        return {
            "reports": written,
            "overview": _text(self.overview),
            "next_config": _text(self.next_config),
            "next_size": plan.size if plan is not None else None,
        }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class _Done(NamedTuple):
    outcome: Outcome
    written: Written
    plan: Plan | None
    strays: list[Stray]
    mapped: tuple[Mapped, ...] = ()
    mapping: Path | None = None


def compare_runs(
    target: str, golden: str, wanted: Wanted, options: Options, progress: Progress | None = None
) -> Compared:
    """Compare what both runs have in common, and write the reports."""
    pairs = paired(store.find(target), store.find(golden))
    done = _all(pairs, wanted, options, progress)
    outcomes = [each.outcome for each in done]
    must_hold_something(outcomes, target, golden)
    tell_strays([each.strays for each in done])
    overview = write_overview(wanted, outcomes) if len(done) > 1 else None
    culprit = overall([outcome.located for outcome in outcomes])
    chosen = next(
        (d.plan for d in done if culprit is not None and d.outcome.located.culprit == culprit), None
    )
    path = write_next(wanted, chosen) if chosen is not None and not wanted.only_table else None
    mappings = [each.mapping for each in done if each.mapping is not None]
    if options.save_mapping is not None:
        mappings.append(Path(options.save_mapping))
        write_data_mapping(mappings[-1], (line for each in done for line in each.mapped))
    return Compared(
        outcomes,
        [each.written for each in done],
        overview,
        path,
        chosen if path else None,
        tuple(mappings),
        options.as_specified,
    )


def _all(pairs: Pairs, wanted: Wanted, options: Options, progress: Progress | None) -> list[_Done]:
    """Compare all pairs; each process takes some steps of one rank after another."""
    marks = [_mark(source, pairs) for source, _ in pairs]
    labels = [labelled(source.step, source.rank) for source, _ in pairs]
    siblings = list(zip(labels, marks, strict=True)) if len(pairs) > 1 else []
    jobs = min(options.jobs, len(pairs))
    parts = _parts(pairs, marks, jobs)
    work = partial(_some, wanted, options, siblings)
    found: list[tuple[int, _Done]] = []
    if jobs <= 1:
        show = progress if len(pairs) == 1 else None
        for part in parts:
            for done in work(part, show):
                found.append(done)
                _tell(progress, len(found), len(pairs))
    else:
        import multiprocessing  # takes longer than a small comparison
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(jobs, context, initializer=_quiet) as pool:
            for several in pool.map(partial(_listed, work), parts):
                found += several
                _tell(progress, len(found), len(pairs))
    return [done for _, done in sorted(found, key=lambda each: each[0])]


class _Part(NamedTuple):
    """Some steps of one rank, one after another."""

    before: list[tuple[Source, Source]]  # up to two steps before the first of them
    steps: list[tuple[int, tuple[Source, Source], str]]  # the number among all pairs, the pair, its mark


def _parts(pairs: Pairs, marks: Sequence[str], jobs: int) -> list[_Part]:
    """Divide the pairs for so many processes; steps of one rank are judged one by the other."""
    ranks: dict[int | None, list[tuple[int, tuple[Source, Source], str]]] = {}
    for number, (pair, mark) in enumerate(zip(pairs, marks, strict=True)):
        ranks.setdefault(pair[0].rank, []).append((number, pair, mark))
    most = -(-len(pairs) // max(jobs, 1))
    found = []
    for steps in ranks.values():
        for start in range(0, len(steps), most):
            before = [pair for _, pair, _ in steps[max(start - 2, 0) : start]]
            found.append(_Part(before, steps[start : start + most]))
    return found


def _listed(work: Callable[[_Part], Iterator[tuple[int, _Done]]], part: _Part) -> list[tuple[int, _Done]]:
    return list(work(part))


def _some(
    wanted: Wanted,
    options: Options,
    siblings: Sequence[tuple[str, str]],
    part: _Part,
    progress: Progress | None = None,
) -> Iterator[tuple[int, _Done]]:
    """Compare steps of one rank, each with what the one before has left."""
    state = _left_by(part.before, options)
    for number, pair, mark in part.steps:
        keeps = len(siblings) > 1 and number != part.steps[-1][0]
        done, state = _one(wanted, options, siblings, pair, mark, state, keeps, progress)
        yield number, done


def _left_by(steps: Sequence[tuple[Source, Source]], options: Options) -> StepState | None:
    """Return what a step has left, given it and the step before it: another process reports on them.

    What its parameters changed by is known only from both.
    """
    state = None
    for number, (ours, theirs) in enumerate(steps):
        target, golden = store.read_one(ours.path), store.read_one(theirs.path)
        if number == 0:
            state = state_of(target, golden)
            continue
        state = _compared(target, golden, options, state).next_state()
    return state


def _compared(
    target: Recording,
    golden: Recording,
    options: Options,
    before: StepState | None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare one rank at one step as the options say."""
    return compare_recordings(
        target,
        golden,
        fuzzy=options.fuzzy,
        mappings=options.mappings,
        as_specified=options.as_specified,
        progress=progress,
        before=before,
    )


def _quiet() -> None:
    """A worker that is interrupted ends without a word; what it was writing is swept away."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, lambda *_: sys.exit(_INTERRUPTED))


def _tell(progress: Callable[[int, int], None] | None, done: int, count: int) -> None:
    if progress is not None and count > 1:
        progress(done, count)


@uncollected()  # until both recordings are dropped: collecting before would search them in vain
def _one(
    wanted: Wanted,
    options: Options,
    siblings: Sequence[tuple[str, str]],
    pair: tuple[Source, Source],
    mark: str,
    before: StepState | None,
    keeps_state: bool,
    progress: Progress | None = None,
) -> tuple[_Done, StepState | None]:
    target = store.read_one(pair[0].path, stack=options.stack)
    store.must_be_of(target, options.framework)
    golden = store.read_one(pair[1].path)
    comparison = _compared(target, golden, options, before, progress)
    if options.replay is not None:
        comparison = options.replay(comparison)
    culprit = comparison.located.culprit
    found = plan(target, culprit) if culprit is not None else None
    written = Written()
    if comparison.findings:
        written = write_files(comparison, wanted, found, mark, siblings)
    outcome = comparison.outcome(with_cases=options.with_cases)
    lost = strays(options.mappings, target, golden)
    pairs = [finding.pair for finding in comparison.findings]
    path = None
    if options.mappings.layer is not None:
        path = name_of(wanted, "data_mapping", mark, "yaml")
        write_data_mapping(path, mapped_places(pairs))
    lines = tuple(mapped_calls(comparison.judged or pairs)) if options.save_mapping is not None else ()
    state = comparison.next_state() if keeps_state else None
    return _Done(outcome, written, found, lost, lines, path), state


def _mark(source: Source, pairs: Pairs) -> str:
    """What tells its files from those of the others."""
    steps, ranks = ({getattr(ours, word) for ours, _ in pairs} for word in ("step", "rank"))
    step = f"_step{source.step}" if len(steps) > 1 else ""
    rank = f"_rank{'' if source.rank is None else source.rank}" if len(ranks) > 1 else ""
    return step + rank
