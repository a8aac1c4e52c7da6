"""The limits of free_benchmark, learnt in the first steps from samples that are also computed on the host."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

_FIRST_LIMIT = 2.05  # wide: what is normal for an API is not known yet


class Sample(NamedTuple):
    """A call that was made again and on the host too."""

    dtype: str
    ratio: float  # between the two answers of the device
    good: bool  # the host agrees with the first
    least: float  # what the limit of this dtype never falls below


class _Api:
    """What is known of one API."""

    def __init__(self) -> None:
        self.calls = 0  # in the step in which they were only counted
        self.limits: dict[str, float] = {}
        self.settled = False
        self.wanted: set[int] = set()  # the calls of this step that are sampled, counted from 1
        self.left = 0  # of them
        self.samples: list[Sample] = []


class Preheat:
    """Follows the steps of a run: in the first one calls are counted, in the next ones some are sampled."""

    def __init__(self, steps: int, most_samples: int) -> None:
        self._steps = steps
        self._most = most_samples
        self._step = -1
        self._apis: dict[str, _Api] = {}
        self._met: Counter[str] = Counter()

    def begin_step(self) -> None:
        self._step += 1
        self._met.clear()
        for api in self._apis.values():
            api.samples = []
            api.wanted = self._sampled(api) if self._samples() and not api.settled else set()
            api.left = len(api.wanted)

    @property
    def compares(self) -> bool:
        """False in the first step, which only counts."""
        return self._step > 0

    def is_sample(self, owner: str) -> bool:
        """A call of this API is made: shall it be computed on the host too?"""
        self._met[owner] += 1
        return self._met[owner] in self._apis.setdefault(owner, _Api()).wanted

    def limit(self, owner: str, dtype: str, least: float) -> float:
        api = self._apis.get(owner)
        return max(api.limits.get(dtype, _FIRST_LIMIT) if api else _FIRST_LIMIT, least)

    def note(self, owner: str, samples: list[Sample]) -> None:
        """The outputs of one sampled call."""
        api = self._apis[owner]
        api.samples += samples
        api.left -= 1
        if not api.left:
            self._learn(api)

    def end_step(self) -> None:
        if self._step == 0:
            for owner, count in self._met.items():
                self._apis[owner].calls = count
        for api in self._apis.values():
            if api.left > 0 and api.samples:  # the step made fewer calls than the first one
                self._learn(api)

    def _samples(self) -> bool:
        return 0 < self._step < self._steps

    def _sampled(self, api: _Api) -> set[int]:
        """Which calls: so chosen that all have had their turn when the steps are over."""
        if not api.calls:
            return set()
        count = min(math.ceil(api.calls / self._steps), self._most)
        return {(self._steps * i + self._step) % api.calls or api.calls for i in range(count)}

    def _learn(self, api: _Api) -> None:
        for dtype in {sample.dtype for sample in api.samples}:
            samples = [sample for sample in api.samples if sample.dtype == dtype]
            old = api.limits.get(dtype, _FIRST_LIMIT)
            good = [sample.ratio for sample in samples if sample.good]
            bad = [sample.ratio for sample in samples if not sample.good]
            if bad and (not good or min(bad) > max(good)):
                new = min(min(bad), old)
                api.settled = True
            elif not bad:
                new = 1 + (old - 1) * 2 if max(good) > old else 1 + (old - 1) / 2
            else:
                new = old
            api.limits[dtype] = max(new, samples[0].least)
        api.samples = []
