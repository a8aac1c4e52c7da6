"""The gradients of one call beside those of a second call whose inputs were changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msprobe.adapter import Replay
from msprobe.capture.answers import Answer, Second
from msprobe.name import CallName
from msprobe.replay import RAISED, SecondCall, noisy_tensor


class _Check(Protocol):
    closed: bool

    def safely(self, doing: str, name: CallName, work: Any, *args: Any) -> Any: ...

    def report(
        self,
        name: CallName,
        original: list[Answer],
        again: list[Answer],
        host: list[Answer] | None,
        second: Second,
    ) -> None: ...


class SecondGradients:
    """Collects a call's gradients while backward runs; then has the second call go back from the same ones.

    Autograd calls this, so no error may leave it.
    """

    def __init__(
        self,
        check: _Check,
        replay: Replay,
        name: CallName,
        second: SecondCall,
        host: SecondCall | None,
        inputs: Sequence[Any],
        about: Second,
    ) -> None:
        self._check = check
        self._replay = replay
        self._name = name
        self._second = second
        self._host = host
        self._about = about
        # The same tensor may come twice, as in x * x: then only the sum of its gradients is sure to be known.
        first: dict[int, int] = {}
        self._first_place = [first.setdefault(id(tensor), place) for place, tensor in enumerate(inputs)]
        self._of_outputs: dict[int, Any] = {}
        self._of_inputs: dict[int, list[Any]] = {}  # shares of a gradient may come one by one

    def of_output(self, index: int, gradient: Any) -> None:
        copy = self._check.safely("take the gradients of", self._name, self._copy, gradient)
        if copy is not None:
            self._of_outputs[index] = copy

    def of_input(self, index: int, gradient: Any) -> None:
        copy = self._check.safely("take the gradients of", self._name, self._copy, gradient)
        if copy is not None:
            self._of_inputs.setdefault(index, []).append(copy)

    def _copy(self, gradient: Any) -> Any:
        if callable(gradient):
            gradient = gradient()
        return None if gradient is None or self._check.closed else self._replay.copy(gradient)

    def finish(self) -> None:
        """All gradients of this backward pass have come."""
        if not self._check.closed:
            self._check.safely("go back again through", self._name, self._compare)
        self._of_outputs, self._of_inputs = {}, {}

    def _compare(self) -> None:
        known = {self._first_place[place] for place in self._of_inputs}
        groups = [
            [place for place, first in enumerate(self._first_place) if first == one] for one in sorted(known)
        ]
        if groups and self._of_outputs:
            again = self._back(self._second, groups)
            host = None if self._host is None else self._answers(groups, self._back(self._host, groups))
            original = self._answers(groups, self._of_inputs)

            def noisy(size: float) -> list[Answer]:
                given = {
                    index: noisy_tensor(self._replay, self._raised(gradient), size)
                    for index, gradient in self._of_outputs.items()
                }
                return self._answers(groups, self._back(self._second.with_noise(size), groups, given))

            about = self._about._replace(noisy=noisy)
            self._check.report(self._name, original, self._answers(groups, again), host, about)

    def _raised(self, gradient: Any) -> Any:
        """In float32, where half precision would lose the noise."""
        return self._replay.moved(gradient, RAISED.get(self._replay.dtype_of(gradient)))

    def _back(
        self,
        second: SecondCall,
        groups: Sequence[Sequence[int]],
        given: Mapping[int, Any] | None = None,
    ) -> dict[int, list[Any]]:
        places = [place for group in groups for place in group]
        found = zip(places, second.gradients(places, given or self._of_outputs), strict=True)
        return {place: [] if gradient is None else [gradient] for place, gradient in found}

    def _answers(self, groups: Sequence[Sequence[int]], shares: Mapping[int, list[Any]]) -> list[Answer]:
        return [
            Answer(
                group[0] if len(groups) > 1 else None,
                tuple(share for place in group for share in shares.get(place, ())),
            )
            for group in groups
        ]
