"""The module tree of a page: which node each call hangs at, from its parents or, without these, its name."""

from __future__ import annotations

from typing import NamedTuple

from msprobe.errors import RecordingError
from msprobe.name import DEBUG, FORWARD, PARAMETERS_GRAD, CallName, outer
from msprobe.record import Record, Recording

TOP = -1


class Tree(NamedTuple):
    """Nodes by number; what hangs below a node has a higher number, and TOP is above all."""

    labels: list[str]
    parents: list[int]


class TreeBuilder:
    """Hangs call after call into a tree; both directions of a call share a node."""

    def __init__(self, target: Recording, golden: Recording) -> None:
        self._recordings = target, golden
        self._has_parents = any(r.parent for side in self._recordings for r in side.records.values())
        self._numbers: dict[str, int] = {}
        self._modules: dict[str, int] = {}  # by the name of one of their records
        self._around: dict[int, str] = {}  # what the names of modules below this one begin with
        self.tree = Tree([], [])

    def add(self, record: Record) -> int:
        """The number of the node that stands for this call."""
        name = record.name
        if name.direction == DEBUG:
            return self._node(name.owner, name.owner, TOP)
        is_module = name.is_module or name.direction == PARAMETERS_GRAD
        if not self._has_parents:
            return self._add_path(name) if is_module else self._add_api(name)
        if is_module:
            return self._module(str(name))
        call = f"{name.owner}.{name.count}"
        return self._node(call, call, self._module(record.parent) if record.parent else TOP)

    # ---- from parents ----

    def _module(self, key: str) -> int:
        """The node of a module, given one of its records; those around it are made first."""
        chain: list[str] = []
        at: str | None = key
        while at and at not in self._modules and at not in chain:
            chain.append(at)
            at = self._parent(at)
        above = self._modules.get(at, TOP) if at else TOP
        for name in reversed(chain):
            above = self._modules[name] = self._inside(_owner(name), above)
        return above

    def _parent(self, key: str) -> str | None:
        for recording in self._recordings:
            record = recording.records.get(key)
            if record is not None and record.parent:
                return record.parent
        return None

    def _inside(self, owner: str, above: int) -> int:
        """A module's node; its label leaves out what those around it say already."""
        short = owner.removeprefix(self._around.get(above, ""))
        label = CallName(owner, FORWARD, 0).api if short == owner else short
        number = self._node(owner, label, above)
        self._around.setdefault(number, f"{outer(owner)}.")
        return number

    # ---- from names ----

    def _add_api(self, name: CallName) -> int:
        above = self._node(name.prefix, name.prefix, TOP)
        above = self._node(name.owner, name.api, above)
        return self._node(f"{name.owner}.{name.count}", f"{name.api}.{name.count}", above)

    def _add_path(self, name: CallName) -> int:
        key = last = name.prefix
        above = self._node(key, key, TOP)
        for last in name.path:
            key = f"{key}.{last}"
            above = self._node(key, last, above)
        self.tree.labels[above] = f"{last} {name.kind}"
        return above

    def _node(self, key: str, label: str, above: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.tree.labels)
            self.tree.labels.append(label)
            self.tree.parents.append(above)
        return number


def _owner(key: str) -> str:
    try:
        return CallName.parse(key).owner
    except RecordingError:  # a parent that some other writer names in its own way
        return key
