"""Task free_benchmark: make each call a second time with other inputs, and report unstable results."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from msprobe.adapter import Adapter, Api, OptimizerState, Replay
from msprobe.capture.answers import Answer, Finding, Judge, Second, answers_of, shown
from msprobe.capture.calls import Again, Counts, Guard, Mark, Thread
from msprobe.capture.chosen import Chosen
from msprobe.capture.second_gradients import SecondGradients
from msprobe.config import FreeBenchmark
from msprobe.log import logger, set_rank
from msprobe.metrics.rounding import CANNOT_TELL, ERROR, PASS
from msprobe.metrics.summands import summands_of
from msprobe.name import BACKWARD, FORWARD, CallName, call_owner
from msprobe.perturb import PERTURBATIONS
from msprobe.plural import counted
from msprobe.replay import HOST, Calling, SecondCall, perturbed, raised, rebuilt, tensors_of
from msprobe.store.run import Run
from msprobe.store.shared_csv import SharedCsv
from msprobe.store.troubles import Told, Troubles

T = TypeVar("T")

TABLE = "free_benchmark.csv"
COLUMNS = (
    "rank",
    "pert_mode",
    "stage",
    "step",
    "api_name",
    "max_rel",
    "dtype",
    "shape",
    "output_index",
)

CHANGES_ITS_ARGUMENT = "in place, so that their output cannot be exchanged"
RUNS_AGAIN = "of checkpointed code that backward runs again"
ONLY_COUNTED = "counted in the first step of the preheating"
NO_GRADIENT = "outside every graph"
_MOST_REASONS = 3  # for which nothing can be told; of improve_precision each call may have its own


class Bench:
    """The check of a whole run: what holds over all its steps."""

    def __init__(self, adapter: Adapter, replay: Replay, section: FreeBenchmark, run: Run) -> None:
        self.adapter = adapter
        self.replay = replay
        self.section = section
        self.stage = section.fuzz_stage
        self.judge = Judge(adapter, replay, section)
        self.table = SharedCsv(run.path / TABLE, COLUMNS)
        self._run = run
        self._begun = False
        self._troubles = Troubles(Told())
        self._warned: set[str] = set()

    def begin(self, step: int) -> Check:
        """A step begins."""
        if self.judge.preheat is not None:
            self.judge.preheat.begin_step()
        if not self._begun:
            self._begun = True
            self._trying("begin", self._open)
        return Check(self, step)

    def _open(self) -> None:
        rank = self.adapter.rank()
        set_rank(rank)
        self._run.share(TABLE, rank)
        self.table.append()
        self._troubles.folder = self._run.path

    def write(self, step: int, name: CallName, findings: list[Finding]) -> None:
        """Write the rows of the specified rule."""
        rank = self.adapter.rank() or 0
        start = (rank, self.section.pert_mode, self.stage, step, str(name))
        rows = [
            (*start, shown(one.difference.max_rel), one.dtype, one.shape, shown(one.place))
            for one in findings
        ]
        self._trying("write", self.table.append, rows)

    def name(self, name: CallName, findings: list[Finding], reason: str) -> None:
        """Name a call in the log, once for each API."""
        if name.owner not in self._warned:
            self._warned.add(name.owner)
            mode = self.section.pert_mode
            about = _moved(findings[0]) if findings else ""
            why = reason if reason else about
            also = f" {about[0].upper()}{about[1:]}." if reason and about else ""
            logger().warning(
                "%s is not stable under %s: %s%s%s",
                *(name, mode, why, "" if why.endswith(".") else ".", also),
            )

    def tell(self, doing: str, name: CallName, error: BaseException) -> None:
        """Once for each API."""
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        self._troubles.tell(
            f"free_benchmark could not {doing} {name}: {reason}; training goes on.", error, kind=name.owner
        )

    def _trying(self, doing: str, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - checking must never stop training
            reason = str(getattr(error, "strerror", None) or error)
            self._troubles.tell(f"could not {doing} {self.table.path}: {reason}; training goes on.", error)

    def end_step(self) -> None:
        if self.judge.preheat is not None:
            self.judge.preheat.end_step()
        self._troubles.close()


def _moved(finding: Finding) -> str:
    """How far an answer moves, in the numbers of the specified rule."""
    difference = finding.difference
    what = difference.remark or f"its largest relative error is {difference.max_rel:.3g}"
    elements = counted(difference.size, "element")
    return (
        f"{what}; beyond the limit of the specified rule: {difference.beyond} of {elements} of a "
        f"{finding.dtype} of shape {finding.shape or '()'}"
    )


class _Call(NamedTuple):
    """A call under way that is checked."""

    api: Api
    name: CallName
    made: Calling

    def run(self) -> Any:
        return self.made.function(*self.made.args, **self.made.kwargs)


class Check:
    """Checks one step of one rank; gradients are compared until close(), calls only while listening."""

    def __init__(self, bench: Bench, step: int) -> None:
        self.listening = False
        self.closed = False
        self.scope = Chosen(bench.section.scope, bench.section.list, bench.replay)
        self._bench = bench
        self._step = step
        self._counts = Counts()
        self._thread = Thread()
        self._checked: Counter[str] = Counter()  # how many calls, by verdict
        self._unknown: Counter[str] = Counter()  # why nothing can be told
        self._with_rows = 0  # calls that the specified rule has rows of
        self._check = self._fix if bench.section.handler_type == "fix" else self._compare
        if bench.stage == BACKWARD:
            self._check = self._tap

    def around(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an intercepted function, and perhaps again; of nested calls only the outermost counts."""
        thread = self._thread
        if thread.inside or not (self.listening or (thread.counts is not None and not self.closed)):
            return function(*args, **kwargs)
        thread.inside = True
        try:
            name = self._counts.name(thread, call_owner(api.prefix, api.name))
            if not self._wants(api, name, (args, kwargs)):
                return function(*args, **kwargs)
            calling = Calling(function, args, kwargs, self._bench.replay.surroundings())
            return self._check(_Call(api, name, calling))
        finally:
            thread.inside = False

    def _wants(self, api: Api, name: CallName, arguments: Any) -> bool:
        if not self.scope.enter(name.facing(FORWARD if self._bench.stage == FORWARD else BACKWARD)):
            return False
        if self._check == self._compare and self._thread.counts is not None:
            return self.scope.refuse(RUNS_AGAIN)
        replay = self._bench.replay
        obstacle = replay.obstacle(api, tensors_of(arguments, replay.is_tensor))
        return obstacle is None or self.scope.refuse(obstacle)

    # --- what is done with a call ---

    def _compare(self, call: _Call) -> Any:
        second, host = self._prepared(call)
        output = call.run()
        if second is not None:
            self.safely("make again", call.name, self._judge, call, output, second, host)
        return output

    def _judge(self, call: _Call, output: Any, second: SecondCall, host: SecondCall | None) -> None:
        original = self._answers(call.api, output, call.made.args)
        again = self._answers(call.api, second.run(), second.call.args)
        there = None if host is None else self._answers(call.api, host.run(), host.call.args)

        def noisy(size: float) -> list[Answer]:
            third = second.with_noise(size)
            return self._answers(call.api, third.run(), third.call.args)

        about = self._about(call.made, second)._replace(noisy=noisy)
        self.report(call.name, original, again, there, about)

    def _about(self, made: Calling, second: SecondCall) -> Second:
        """What a verdict needs to know of the two calls; it holds none of their tensors."""
        replay = self._bench.replay
        tensors = tensors_of((made.args, made.kwargs), replay.is_tensor)
        summands = summands_of(map(replay.shape_of, tensors))
        return Second(second.change, summands, frozenset(map(replay.dtype_of, tensors)))

    def _answers(self, api: Api, output: Any, inputs: Any) -> list[Answer]:
        replay = self._bench.replay
        return answers_of(replay.comparable(api, output), inputs[0] if inputs else None, replay)

    def report(
        self,
        name: CallName,
        original: list[Answer],
        again: list[Answer],
        host: list[Answer] | None,
        second: Second,
    ) -> None:
        """Judge the answers: rows by the specified rule, names in the log by what rounding explains."""
        findings, verdict = self._bench.judge.judge(name, original, again, host, second)
        self._checked[verdict.word] += 1
        if verdict.word == CANNOT_TELL:
            self._unknown[verdict.reason] += 1
        if findings:
            self._with_rows += 1
            self._bench.write(self._step, name, findings)
        if verdict.word == ERROR:
            self._bench.name(name, findings, verdict.reason)

    def _fix(self, call: _Call) -> Any:
        in_place = call.api.in_place or call.made.kwargs.get("inplace") or "out" in call.made.kwargs
        if in_place:
            self.scope.refuse(CHANGES_ITS_ARGUMENT)
            return call.run()
        second = self.safely("prepare", call.name, self._changed, call, in_graph=True)
        output = call.run()
        if second is None:
            return output
        fixed = self.safely("make again", call.name, self._exchanged, output, second, in_graph=True)
        self._checked[ERROR if fixed is None else PASS] += 1
        return output if fixed is None else fixed

    def _exchanged(self, output: Any, second: SecondCall) -> Any:
        return _as(output, second.run(differentiable=True), self._bench.replay)

    def _tap(self, call: _Call) -> Any:
        adapter, replay = self._bench.adapter, self._bench.replay
        if not adapter.differentiates():
            self.scope.refuse(NO_GRADIENT)
            return call.run()
        second, host = self._prepared(call)
        if second is None:
            return call.run()
        inputs = tensors_of((call.made.args, call.made.kwargs), replay.is_tensor)
        begun: Any = None
        with self.guarded("follow", call.name):
            begun = adapter.begin_backward(inputs)
        about = self.safely("prepare", call.name, self._about, call.made, second) or Second()
        output = call.run()
        with self.guarded("follow", call.name):
            outputs = tensors_of(output, replay.is_tensor) or inputs[:1]
            sink = SecondGradients(self, replay, call.name.facing(BACKWARD), second, host, inputs, about)
            adapter.on_backward(begun, outputs, sink)
        return output

    # --- the second call, prepared before the first ---

    def _prepared(self, call: _Call) -> tuple[SecondCall | None, SecondCall | None]:
        """The second call, and the one on the host where this call is a sample of the preheating."""
        preheat = self._bench.judge.preheat
        sampled = preheat is not None and preheat.is_sample(call.name.owner)
        if preheat is not None and not preheat.compares:
            self.scope.refuse(ONLY_COUNTED)
            return None, None
        second = self.safely("prepare", call.name, self._changed, call)
        host = self.safely("prepare", call.name, self._on_host, call) if sampled and second else None
        return second, host

    def _changed(self, call: _Call) -> SecondCall | None:
        section, replay = self._bench.section, self._bench.replay
        in_graph = section.handler_type == "fix"
        if section.pert_mode == "improve_precision":
            second = raised(replay, call.made, in_graph=in_graph)
        elif section.pert_mode == "to_cpu":
            second = raised(replay, call.made, device=HOST, in_graph=in_graph)
        else:
            second = perturbed(replay, call.made, PERTURBATIONS.get(section.pert_mode))
        if isinstance(second, str):
            self.scope.refuse(second)
            return None
        return second

    def _on_host(self, call: _Call) -> SecondCall | None:
        host = raised(self._bench.replay, call.made, device=HOST)
        return None if isinstance(host, str) else host

    # --- what the debugger asks of it ---

    def mark(self) -> Mark:
        return self._counts.mark(self._thread)

    def again(self, mark: Mark) -> AbstractContextManager[None]:
        return Again(self._thread, mark)

    def copied(self, source: Any, copy: Any, *, is_whole: bool) -> None:
        """Do nothing: this task does not ask who made a tensor."""

    def optimizes(self, states: Iterable[OptimizerState]) -> None:
        """Do nothing: this task does not ask who made a tensor."""

    def pause(self) -> None:
        """stop(): no more calls; gradients of the calls so far may still come."""
        self.listening = False
        self._thread = Thread()
        with self.guarded("describe", ""):
            self._bench.adapter.settle()

    def close(self) -> None:
        """step(): whatever has not come by now is not coming."""
        self.pause()
        self.closed = True
        self._bench.end_step()

    def tell_result(self, step: int) -> None:
        """Say how many calls were made again, and why the others were not."""
        stable, moved, unknown = (self._checked[word] for word in (PASS, ERROR, CANNOT_TELL))
        mode, others = self._bench.section.pert_mode, self.scope.left_out.items()
        done = "exchanged" if self._bench.section.handler_type == "fix" else "stable"
        made = counted(stable + moved + unknown, "call")
        told = [
            f"step {step}: free_benchmark made {made} again ({mode}): {stable} {done}, {moved} not"
            f"{f', {unknown} cannot be told' if unknown else ''}."
        ]
        for reason, count in self._unknown.most_common(_MOST_REASONS):
            told.append(f"{mode} cannot judge {counted(count, 'call')}: {reason.rstrip('.')}.")
        if others:
            reasons = "; ".join(f"{counted(count, 'call', 'are')} {reason}" for reason, count in others)
            told.append(f"Not made again: {reasons}.")
        if self._with_rows:
            rows = counted(self._with_rows, "call")
            told.append(f"The specified rule has rows of {rows}: see {self._bench.table.path}.")
        level = logging.INFO if stable + moved else logging.WARNING  # a check of nothing is no good news
        logger().log(level, "%s", " ".join(told))

    def safely(
        self, doing: str, name: CallName, work: Callable[..., T], *args: Any, in_graph: bool = False
    ) -> T | None:
        """Return `work(*args)`, outside of every graph unless `in_graph`; log an error of it."""
        result: list[T] = []
        with self._guard(nullcontext() if in_graph else self._bench.replay.outside(), doing, name):
            result.append(work(*args))
        return result[0] if result else None

    def guarded(self, doing: str, name: object = "") -> Guard:
        return self._guard(self._bench.adapter.untracked(), doing, name)

    def _guard(self, context: AbstractContextManager[Any], doing: str, name: object) -> Guard:
        call = name if isinstance(name, CallName) else CallName(str(name), FORWARD, None)
        tell = functools.partial(self._told, doing, call)
        return Guard(self._thread, context, tell, doing, name)

    def _told(self, doing: str, name: CallName, _sentence: str, error: BaseException) -> None:
        self._bench.tell(doing, name, error)


def _as(original: Any, second: Any, replay: Replay) -> Any:
    """The second answer in the shape, the dtypes and on the devices of the original."""
    if replay.is_tensor(original):
        return replay.moved(second, replay.dtype_of(original), replay.device_of(original))
    if isinstance(original, (tuple, list)):
        items = [_as(one, other, replay) for one, other in zip(original, second, strict=True)]
        return rebuilt(type(original), items)
    if isinstance(original, dict):
        return {key: _as(value, second[key], replay) for key, value in original.items()}
    return original
