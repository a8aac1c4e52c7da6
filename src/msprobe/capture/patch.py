"""How a framework is changed for a while: each change is undone, the last first, even if another fails."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from msprobe.adapter import Api, Around, Undo
from msprobe.errors import UsageError

_ABSENT = object()
_INVERSIONS = frozenset({"__invert__", "__index__", "__int__"})  # they begin like the in-place operators


class Place(NamedTuple):
    """A function, where it stands, and the name it is recorded by."""

    holder: Any
    attribute: str
    api: Api


Install = Callable[[Place, Around], Undo]  # have the calls of one place go through `around`


def together(*installs: Callable[[], Undo]) -> Undo:
    """Install all, or none when one of them fails."""
    with ExitStack() as installed:
        for install in installs:
            installed.callback(install())
        return installed.pop_all().close


def replace(holder: Any, name: str, make: Callable[[Any], Any]) -> Undo:
    """Replace an attribute; undone, the holder is as before, whether it owned or inherited it."""
    before = getattr(holder, name)
    own = vars(holder).get(name, _ABSENT) if hasattr(holder, "__dict__") else before
    made = make(before)
    setattr(holder, name, staticmethod(made) if isinstance(own, staticmethod) else made)
    return lambda: delattr(holder, name) if own is _ABSENT else setattr(holder, name, own)


class Shared:
    """What several may want installed at a time: done for the first, undone by the last."""

    def __init__(self, *installs: Callable[[], Undo]) -> None:
        self._installs = installs
        self._lock = threading.Lock()
        self._wanted = 0
        self._undo: Undo | None = None

    def on(self) -> Undo:
        with self._lock:
            self._undo = self._undo or together(*self._installs)
            self._wanted += 1
        return self._off

    def _off(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._undo is not None:
                self._undo()
                self._undo = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Installed for a while, also when nobody else wants it."""
        undo = self.on()
        try:
            yield
        finally:
            undo()


def replace_place(place: Place, around: Around) -> Undo:
    """Have the calls of a function, made through the place where it stands, go through `around`."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            return around(place.api, function, args, kwargs)

        return recorded

    return replace(place.holder, place.attribute, make)


def replace_places(places: Iterable[Place], around: Around, install: Install = replace_place) -> Undo:
    return together(*(functools.partial(install, place, around) for place in places))


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _INVERSIONS)
    return name.endswith("_")


class CustomApis:
    """Functions of the user's own; one registered or forgotten while calls are intercepted counts at once."""

    def __init__(self, install: Install = replace_place) -> None:
        self._install_one = install
        self._places: dict[tuple[int, str], Place] = {}
        self._around: Around | None = None
        self._undo: dict[tuple[int, str], Undo] = {}

    def register(self, module: Any, name: str, prefix: str | None) -> None:
        place = _custom_place(module, name, prefix)
        self.forget(module, name)
        try:
            self._install_one(place, just_call)()
        except (TypeError, AttributeError) as error:
            raise UsageError(
                f"register_custom_api: {name!r} of {module!r} cannot be replaced, and so not recorded "
                f"({error}); register a function of a Python module or class that calls it."
            ) from None
        self._places[id(module), name] = place
        if self._around is not None:
            self._undo[id(module), name] = self._install_one(place, self._around)

    def forget(self, module: Any, name: str) -> None:
        self._places.pop((id(module), name), None)
        undo = self._undo.pop((id(module), name), None)
        if undo is not None:
            undo()

    def install(self, around: Around) -> Undo:
        self._around = around
        try:
            for key, place in self._places.items():
                self._undo[key] = self._install_one(place, around)
        except BaseException:
            self._undo_all()
            raise
        return self._undo_all

    def _undo_all(self) -> None:
        self._around = None
        while self._undo:
            self._undo.popitem()[1]()


def _custom_place(module: Any, name: Any, prefix: Any) -> Place:
    """The place of a function a user wants recorded too."""
    if not isinstance(name, str) or not callable(getattr(module, name, None)):
        raise UsageError(f"register_custom_api: {module!r} has no function {name!r}.")
    if prefix is not None and not (isinstance(prefix, str) and prefix):
        raise UsageError(f"register_custom_api: api_prefix is {prefix!r}; it must be a str or None.")
    of_module = str(getattr(module, "__name__", "Custom"))
    return Place(module, name, Api(prefix or of_module, name, is_in_place(name)))


def just_call(api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
