"""What two runs of one call gave, put beside each other and judged: the findings of free_benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from msprobe.adapter import Adapter, Replay, Want
from msprobe.analyse import stability
from msprobe.analyse.preheat import Preheat, Sample
from msprobe.analyse.stability import Difference
from msprobe.capture.second_verdict import (
    NOISES,
    REFERENCES,
    SWAPS,
    Numbers,
    Verdict,
    judge_noise,
    judge_reference,
    judge_swap,
    worst,
)
from msprobe.config import FreeBenchmark
from msprobe.metrics.rounding import ERROR, PASS, PRECISIONS
from msprobe.name import CallName
from msprobe.replay import tensors_of
from msprobe.store.dtypes import Array

_FORWARD_ONLY = Want()


class Answer(NamedTuple):
    """A tensor or number that a call gave, and its place where it gave several.

    A tuple stands for the sum of the tensors in it: the gradient of an input that was given twice.
    """

    place: int | None
    value: Any


class Finding(NamedTuple):
    """Two answers that are further apart than they may be."""

    place: int | None
    difference: Difference
    dtype: str
    shape: str


class Second(NamedTuple):
    """What is known of the second call beside its answers."""

    change: float = 0.0  # of the tensor that was perturbed, beside its size
    summands: int = 1  # numbers that may have been added up for one of an answer
    dtypes: frozenset[str] = frozenset()  # of the first call's tensors
    noisy: Callable[[float], list[Answer]] | None = None  # the answers if inputs change by that much


_UNKNOWN = Second()


class _Values(NamedTuple):
    """The numbers of a tensor in a row, what they are called, and the shape of the tensor."""

    array: Array
    dtype: str
    shape: tuple[int, ...]

    @property
    def shaped(self) -> Numbers:
        """In the shape of the tensor; complex numbers have one dimension more."""
        whole = self.array.size == math.prod(self.shape)
        return Numbers(self.array.reshape(self.shape if whole else (*self.shape, 2)), self.dtype)


def answers_of(output: Any, changed: Any, replay: Replay) -> list[Answer]:
    """What of an output is compared; `changed` is what a call changed that gives nothing."""
    output = changed if output is None else output
    if not isinstance(output, (tuple, list)):
        return list(_leaves(None, output, replay))
    return [answer for place, item in enumerate(output) for answer in _leaves(place, item, replay)]


def _leaves(place: int | None, item: Any, replay: Replay) -> Iterator[Answer]:
    if isinstance(item, (bool, int, float)):
        yield Answer(place, item)
    for tensor in tensors_of(item, replay.is_tensor):
        yield Answer(place, tensor)


class Judge:
    """The rules of one run, with the limits it has learnt."""

    def __init__(self, adapter: Adapter, replay: Replay, section: FreeBenchmark) -> None:
        self._adapter = adapter
        self._replay = replay
        self._section = section
        self._of_gradients = section.fuzz_stage == "backward"
        learns = section.if_preheat and section.pert_mode not in ("no_change", "to_cpu")
        self.preheat = Preheat(section.preheat_step, section.max_sample) if learns else None

    def judge(
        self,
        name: CallName,
        original: list[Answer],
        again: list[Answer],
        host: list[Answer] | None = None,
        second: Second = _UNKNOWN,
    ) -> tuple[list[Finding], Verdict]:
        """What is further apart than the specified rule allows, and the verdict on the call.

        `host`: the answers of a sampled call on the host.
        """
        found: list[Finding] = []
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        for index, (one, other) in enumerate(zip(original, again, strict=False)):
            values = self._values(one.value), self._values(other.value)
            difference = self._difference(name, *values)
            if difference is None or values[0] is None or values[1] is None:
                continue
            verdicts.append(self._verdict(name, values[0], values[1], difference, index, second))
            if host is not None and index < len(host):
                samples += self._sample(values[0], self._values(host[index].value), difference)
            if not difference.consistent:
                found.append(Finding(one.place, difference, *self._kind(one.value)))
        if host is not None and self.preheat is not None:
            self.preheat.note(name.owner, samples)
        return found, worst(verdicts)

    def _verdict(
        self, name: CallName, one: _Values, other: _Values, by_rule: Difference, index: int, second: Second
    ) -> Verdict:
        mode = self._section.pert_mode
        if by_rule.remark == stability.SHAPE and mode != SWAPS:
            return Verdict(ERROR, "The shape changes.")
        dtype, limit = self._computes_in(one.dtype, second), self._limit(name, one.dtype)
        if mode in NOISES:
            return judge_noise(one.shaped, other.shaped, limit, second.change, by_rule, dtype)
        if mode == SWAPS:
            return judge_swap(name, one.shaped, other.shaped, limit, by_rule)
        if mode not in REFERENCES or dtype not in PRECISIONS:
            return Verdict(PASS if by_rule.consistent else ERROR)

        def noisy() -> Numbers | None:
            if second.noisy is None:
                return None
            values = self._values(second.noisy(2 * PRECISIONS[dtype].unit)[index].value)
            return None if values is None else values.shaped

        return judge_reference(one.shaped, other.shaped, dtype, second.summands, noisy)

    def _computes_in(self, dtype: str, second: Second) -> str:
        """The coarsest dtype of a call's floating-point tensors and of its answer."""
        known = [name for name in {dtype, *second.dtypes} if name in PRECISIONS]
        coarsest = max(known, key=lambda name: PRECISIONS[name].unit, default=dtype)
        return coarsest if dtype in PRECISIONS else dtype

    def _difference(self, name: CallName, one: _Values | None, other: _Values | None) -> Difference | None:
        if one is None or other is None:
            return None
        if self._section.pert_mode == "to_cpu":
            return stability.by_error(one.array, other.array, one.dtype)
        floor = stability.floor_of(other.dtype, of_gradients=self._of_gradients)
        return stability.by_ratio(one.array, other.array, floor, self._limit(name, one.dtype))

    def _limit(self, name: CallName, dtype: str) -> float:
        if self._section.pert_mode == "no_change":
            return stability.EXACT
        least = stability.limit_of(dtype)
        return least if self.preheat is None else self.preheat.limit(name.owner, dtype, least)

    def _sample(self, one: _Values | None, host: _Values | None, difference: Difference) -> list[Sample]:
        if one is None or host is None:
            return []
        good = stability.by_error(one.array, host.array, one.dtype).consistent
        return [Sample(one.dtype, difference.ratio, good, stability.limit_of(one.dtype))]

    def _values(self, value: Any) -> _Values | None:
        if isinstance(value, tuple):
            parts = [part for part in map(self._read, value) if part is not None]
            if len(parts) < 2:
                return parts[0] if parts else None
            total = sum((part.array for part in parts[1:]), parts[0].array)
            return parts[0]._replace(array=total)
        if self._replay.is_tensor(value):
            return self._read(value)
        return _Values(np.array([value]), type(value).__name__, (1,))

    def _read(self, tensor: Any) -> _Values | None:
        data = self._replay.snapshot(tensor)
        return None if data is None else _Values(stability.values_of(data), data.dtype, data.shape)

    def _kind(self, value: Any) -> tuple[str, str]:
        """dtype and shape as recordings write them."""
        value = value[0] if isinstance(value, tuple) else value
        if not self._replay.is_tensor(value):
            return type(value).__name__, ""
        leaf = self._adapter.describe(value, _FORWARD_ONLY)
        return leaf.dtype or "", str(leaf.shape)


def shown(number: float | None) -> Any:
    """A number for the table: nothing where there is none."""
    return "" if number is None or math.isnan(number) else number
