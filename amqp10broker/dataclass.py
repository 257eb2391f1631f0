"""A dataclass with methods that are compiled when they are first used.

`dataclasses.dataclass` generates up to six methods for a class and compiles them while the module is
imported: 0.8 ms a class on CPython 3.11, 0.45 s of the 1.2 s that a start of the broker took, for 500 classes
most of which a given process does not use. Here a class gets its fields from `dataclasses` at once, and each
method, also from `dataclasses`, when the method is first looked up. From then on the same function is in the
same place, so later uses take the same time.

`fields`, `replace`, `asdict` and `field` are those of `dataclasses`. Type checkers use
`dataclasses.dataclass` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from dataclasses import dataclass as compiled
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        unsafe_hash: bool = False,
    ) -> Callable[[type], type]:
        """Make a dataclass as `dataclasses.dataclass` does, with the options that are used here; methods of
        the class stay.
        """

        def make(cls: type) -> type:
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # otherwise `dataclasses` requests the signature of __init__
            own = {name for name, value in vars(cls).items() if value is not None}
            cls = compiled(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            later = ["__init__", "__repr__"]
            if eq:
                later.append("__eq__")
                cls.__hash__ = vars(cls).get("__hash__")
            if unsafe_hash or (eq and frozen):
                later.append("__hash__")
            for name in later:
                if name not in own:
                    setattr(cls, name, _Later(cls, name, frozen, slots))
            if frozen:
                cls.__setattr__, cls.__delattr__ = _set_nothing, _delete_nothing
                if slots:
                    cls.__setstate__ = _set_state
            return cls

        return make


class _Later:
    """The placeholder of a method: the first lookup compiles the method and replaces it."""

    __slots__ = ("_cls", "_frozen", "_name", "_slots")

    def __init__(self, cls: type, name: str, frozen: bool, slots: bool) -> None:
        self._cls = cls
        self._name = name
        self._frozen = frozen
        self._slots = slots

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function = _compile(self._cls, self._name, self._frozen, self._slots)
        setattr(self._cls, self._name, function)  # harmless in two threads: the functions are equal
        return function.__get__(instance, owner)


def _compile(cls: Any, name: str, frozen: bool, slots: bool) -> Any:
    """Return one method of a class, generated for a class of the same fields without other methods."""
    body: dict[str, Any] = {each.name: each for each in fields(cls)}
    body["__annotations__"] = {each.name: each.type for each in fields(cls)}
    body |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if hasattr(cls, "__post_init__"):
        body["__post_init__"] = cls.__post_init__  # __init__ calls it on the instance
    twin: type = compiled(
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name == "__eq__",
        unsafe_hash=name == "__hash__",
        frozen=frozen and name == "__init__",
        slots=slots and name == "__init__",
    )(type(cls.__name__, (), body))
    return vars(twin)[name]


def _set_nothing(_instance: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_nothing(_instance: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(instance: object, state: tuple[None, dict[str, Any]]) -> None:
    """Set the fields for `pickle` and `copy`, which use setattr otherwise."""
    for name, value in state[1].items():
        object.__setattr__(instance, name, value)
