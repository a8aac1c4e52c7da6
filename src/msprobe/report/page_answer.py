"""The top of a page, readable without any script: which call made the difference, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from msprobe.analyse.judge import UNMATCHED
from msprobe.record import Recording, nearest_frames, on_one_line
from msprobe.report.answer import (
    alignment,
    evidence,
    headline,
    in_brackets,
    order_of,
    precision_fact,
    replay_lines,
    score,
    weight,
)
from msprobe.report.page_rows import GRAVITY, frames_of
from msprobe.verdict.comparison import Comparison, Outcome
from msprobe.verdict.locate import Divergence

_MOST_SUSPECTS = 6
_KICKER = {
    "culprit": "Not rounding",
    "uncertain": "Cannot tell",
    "refuted": "Refuted by replay",
    "fine": "Within rounding",
    "unknown": "Not judged",
}
_MEANING = {
    "same": "equal on both sides",
    "not judged": "nothing to compare",
    "rounding": "rounding explains it",
    "passed on": "its inputs explain it",
    "cannot tell": "what was recorded does not say why",
    "entered": "different on input",
    "originated": "made different here",
}


def answer_section(comparison: Comparison, outcome: Outcome, next_config: str) -> str:
    """The answer as HTML; every text in it is escaped."""
    located = comparison.located
    divergence = located.culprit or located.first
    kind = "unknown" if not outcome.judged else "uncertain" if located.gap else "fine"
    if divergence is not None:
        kind = "culprit" if located.culprit is not None else "refuted" if located.origins else "uncertain"
    lines = [
        *_divergence(divergence, comparison.target),
        *_more(comparison),
        *_alignment(outcome),
        *_next(next_config),
    ]
    return (
        f'<section class="answer" data-kind="{kind}" aria-labelledby="headline"><div class="words">'
        f'<p class="kicker">{_KICKER[kind]}</p>{_headline(outcome)}{"".join(lines)}</div>'
        f'<div class="counts">{_levels(outcome)}{_results(comparison, outcome)}</div></section>'
    )


def _headline(outcome: Outcome) -> str:
    """The sentence; the name of the call in it leads to its row."""
    text = escape(headline([outcome]))
    culprit = outcome.located.culprit
    if culprit is not None:
        name = escape(str(culprit.place.record.name))
        text = text.replace(name, _jump(culprit.row, name), 1)
    return f'<h1 id="headline">{text}</h1>'


def _jump(row: int, markup: str) -> str:
    return f'<a href="#row={row}"><bdi>{markup}</bdi></a>'


def _divergence(found: Divergence | None, target: Recording) -> Iterator[str]:
    if found is None:
        return
    verdict = found.verdict
    slot = found.place.slot or "value"
    place = slot if found.verdict.is_origin else found.place.name
    yield f'<p class="lead">{_jump(found.row, escape(place))}: {escape(verdict.reason)}.</p>'
    for line in (*weight(found), *replay_lines(found)):
        yield f"<p>{escape(line[0].upper() + line[1:].removesuffix('.'))}.</p>"
    if found.hint:
        yield f'<p class="hint">{escape(found.hint)}</p>'
    yield "<dl>"
    if found.modules:
        path = "<span aria-hidden='true'> › </span>".join(map(escape, reversed(found.modules)))
        yield f'<dt>In</dt><dd class="code">{path}</dd>'
    yield from _stack(frames_of(found.place.record, target))
    grade = found.evidence.grade
    text = evidence(found.evidence).removeprefix(f"{grade}; ")
    yield f'<dt>Evidence</dt><dd><b class="grade" data-grade="{grade}">{grade}</b> {escape(text)}.</dd></dl>'


def _stack(frames: tuple[str, ...]) -> Iterator[str]:
    if not frames:
        return
    more = ""
    if len(frames) > 1:
        lines = "".join(f"<li>{escape(on_one_line(frame))}</li>" for frame in frames)
        more = f"<details><summary>the whole stack, {len(frames)} frames</summary><ol>{lines}</ol></details>"
    nearest = escape(on_one_line(nearest_frames(frames)[0]))
    yield f'<dt>Called at</dt><dd class="code">{nearest}{more}</dd>'


def _more(comparison: Comparison) -> Iterator[str]:
    """Other suspects, what is true of the run as a whole, and who made the first NaN."""
    located = comparison.located
    shown = located.culprit or located.first
    further = [origin for origin in located.origins if origin is not shown]
    if further:
        items = "".join(map(_suspect, further[:_MOST_SUSPECTS]))
        rest = len(further) - _MOST_SUSPECTS
        more = f"<li>and {rest:,} more</li>" if rest > 0 else ""
        title = escape(f"Other suspects{in_brackets(order_of(further))}")
        yield f'<h2 class="aside">{title}</h2><ol class="suspects">{items}{more}</ol>'
    if comparison.replay is not None and comparison.replay.missing:
        yield f'<p class="aside">Replay: {escape(comparison.replay.missing)}</p>'
    if comparison.precision is not None:
        fact = escape(precision_fact(comparison.precision))
        yield f'<p class="aside">{fact[0].upper()}{fact[1:]}.</p>'
    not_equal = located.not_equal
    if not_equal is not None:
        link = _jump(not_equal.row, escape(not_equal.place.name))
        yield f'<p class="aside">First value that is not bit-equal: {link}.</p>'
    producer = located.not_finite
    if producer is not None and not (located.culprit and producer.row == located.culprit.row):
        link = _jump(producer.row, escape(producer.place.name))
        yield f'<p class="aside">NaN first appears in {link}, whose inputs are finite.</p>'


def _suspect(found: Divergence) -> str:
    link = _jump(found.row, escape(found.place.name))
    replay = "".join(f"<br>{escape(line)}" for line in replay_lines(found))
    return f"<li>{link}: {escape(found.verdict.reason)}{escape(in_brackets(score(found)))}{replay}</li>"


def _alignment(outcome: Outcome) -> Iterator[str]:
    """How calls of two frameworks were paired; each row tells how sure that is."""
    lines = [escape(line.strip()) for line in alignment([outcome])]
    if lines:
        first = lines[0][0].upper() + lines[0][1:]
        yield f'<p class="aside">{"<br>".join([first, *lines[1:]])}.</p>'


def _next(config: str) -> Iterator[str]:
    if config:
        yield (
            "<details class='next'><summary>What to record next: a narrower configuration</summary>"
            f"<pre>{escape(config)}</pre></details>"
        )


# ---- counts ----


def _levels(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><th scope="row"><span class="level" data-level="{level}">{level}</span></th>'
        f"<td>{outcome.levels[level]:,}</td><td>{_MEANING[level]}</td></tr>"
        for level in reversed(GRAVITY)
        if outcome.levels[level]
    )
    return f"<table><caption>Values and their verdicts: {outcome.places:,} in all</caption>{rows}</table>"


def _results(comparison: Comparison, outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(result) or "(empty)"}</th><td>{count:,}</td>'
        f"<td>{_remark(comparison, result)}</td></tr>"
        for result, count in sorted(outcome.results.items())
    )
    return f"<table><caption>By the fixed rules of the specification</caption>{rows}</table>"


def _remark(comparison: Comparison, result: str) -> str:
    """What a result leaves open: an empty one, and which side has what the other lacks."""
    if result != UNMATCHED:
        return "" if result else "no warning"
    pairs = [finding.pair for finding in comparison.findings if finding.result == UNMATCHED]
    ours, theirs = sum(pair.golden is None for pair in pairs), sum(pair.target is None for pair in pairs)
    parts = (
        (ours, "only in the target"),
        (theirs, "only in the golden run"),
        (len(pairs) - ours - theirs, "of another form"),
    )
    return "; ".join(f"{count:,} {word}" for count, word in parts if count)
