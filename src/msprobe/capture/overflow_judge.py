"""Judges the calls of one step, each in the light of those before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msprobe.adapter import Adapter
from msprobe.capture.excuses import Excuses
from msprobe.capture.overflow_verdict import (
    ENTERED,
    MASKED,
    NONE,
    PASSED_ON,
    PRODUCER,
    Kinds,
    Opinion,
    Seen,
    excuse_of_number,
    judge,
    kinds_of,
)
from msprobe.name import FORWARD, PARAMETERS_GRAD, CallName
from msprobe.record import Leaf, Record, leaves

_GIVEN = ("input_args", "input_kwargs", "input", "parameters")  # the fields of a record that hold its inputs
_OVERWRITTEN = "out"


class Held(Leaf):
    """A leaf with its tensor, which goes when the record goes; most records do, as soon as they are made."""

    tensor: Any  # None: it is not held
    slot: str
    excused: Kinds | None  # None: no recorded call gave this tensor
    copy: Any  # its content from before the call, where the call changes it


class Judge:
    """What is known of the step so far."""

    def __init__(self, adapter: Adapter) -> None:
        self.excuses = Excuses(adapter.version_of)
        self._flag = adapter.overflow_flag
        self._met = False  # a number that is not finite, and not meant to be
        self._outer: set[str] = set()  # the modules in which it was made
        self._suspect: set[CallName] = set()  # forward calls that had or gave one
        self._owners: set[str] = set()  # modules whose backward had or gave one
        self._across: set[str] = set()  # communications: what they give, another rank may have made

    def hold(self, leaf: Leaf, tensor: Any, slot: str) -> Held:
        held = Held._make(leaf)
        held.tensor, held.slot, held.copy = tensor, slot, None
        held.excused = self.excuses.of(tensor)
        return held

    def note_communication(self, record: str) -> None:
        self._across.add(record)

    def verdict(self, record: Record) -> str | None:
        """Of a call or its gradients; None where there is nothing to say."""
        name = record.name
        given, made = list(given_to(record)), list(made_by(record))
        found = NONE.union(*map(kinds_of, made))
        flagged = bool(self._flag())
        opinion = (
            self._of_forward(record, given, made, found)
            if name.direction == FORWARD
            else self._of_gradients(name, given)
        )
        if not found and not flagged:
            return None
        verdict = opinion.verdict or (PRODUCER if flagged else None)
        for leaf in made if name.direction == FORWARD else ():
            if isinstance(leaf, Held) and kinds_of(leaf):
                self.excuses.note(leaf.tensor, NONE if verdict else opinion.excused)
        return verdict and self._among_others(record, verdict)

    def of_parameters(self, name: CallName) -> str:
        """Of gradients of parameters that are not finite, when backward is over."""
        return PASSED_ON if name.owner in self._owners else PRODUCER

    def _of_forward(self, record: Record, given: list[Leaf], made: list[Leaf], found: Kinds) -> Opinion:
        name = record.name
        inputs = [
            Seen(kinds, self._excuse(record, leaf, kinds)) for leaf in given if (kinds := kinds_of(leaf))
        ]
        opinion = judge(name, inputs, found)
        if name.is_module and opinion.verdict == PRODUCER and all(map(_is_excused, made)):
            opinion = Opinion(excused=found)  # a call inside gave them
        if opinion.verdict == PASSED_ON or (opinion.verdict and found):
            self._suspect.add(name)
            self._owners.add(name.owner)
        return opinion

    def _excuse(self, record: Record, leaf: Leaf, kinds: Kinds) -> Kinds:
        if not leaf.is_tensor:
            return excuse_of_number(record.name, kinds, record.parent)
        excused = leaf.excused if isinstance(leaf, Held) else None
        return MASKED if excused is None else excused

    def _of_gradients(self, name: CallName, given: list[Leaf]) -> Opinion:
        """Nobody means a gradient to be infinite; where forward was not sound, backward has it from there."""
        if any(map(kinds_of, given)):
            self._owners.add(name.owner)
            return Opinion(PASSED_ON)
        return Opinion(PASSED_ON if name.facing(FORWARD) in self._suspect else PRODUCER)

    def _among_others(self, record: Record, verdict: str) -> str:
        text = str(record.name)
        if verdict == PRODUCER and (text in self._outer or text in self._across):
            verdict = PASSED_ON if text in self._outer else ENTERED
        elif verdict == PASSED_ON and not self._met:
            verdict = ENTERED
        self._met = True
        bad_weights = any(map(kinds_of, leaves(record.fields.get("parameters"))))
        if record.parent is not None and (verdict == PRODUCER or text in self._outer or bad_weights):
            self._outer.add(record.parent)
        if record.name.direction != FORWARD:
            self._owners.add(record.name.owner)
            if record.parent is not None:
                self._owners.add(CallName.parse(record.parent).owner)
        return verdict


def given_to(record: Record) -> Iterator[Leaf]:
    """Its inputs; what `out` held before the call, which overwrites it, is none of them."""
    for field in _GIVEN:
        tree = record.fields.get(field)
        if field == "input_kwargs" and isinstance(tree, dict) and not record.name.is_module:
            tree = {key: item for key, item in tree.items() if key != _OVERWRITTEN}
        yield from leaves(tree)


def made_by(record: Record) -> Iterator[Leaf]:
    if record.name.direction == PARAMETERS_GRAD:
        return leaves(record.fields)
    return leaves(record.fields.get("output"))


def _is_excused(leaf: Leaf) -> bool:
    kinds = kinds_of(leaf)
    return not kinds or (isinstance(leaf, Held) and leaf.excused is not None and kinds <= leaf.excused)


def slots(found: Iterable[Leaf]) -> str:
    """Where numbers are not finite, and which: `output.0: inf nan; output.1: nan`."""
    words = []
    for leaf in found:
        kinds = kinds_of(leaf)
        if kinds:
            where = leaf.slot if isinstance(leaf, Held) else "an argument"
            words.append(f"{where}: {' '.join(sorted(kinds))}")
    return "; ".join(words)
