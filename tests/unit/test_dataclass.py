"""Our dataclass is the standard library's, later: same functions, same answers."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from amqp10broker.dataclass import dataclass

METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"slots": True},
    {"slots": True, "kw_only": True},
    {"slots": True, "eq": False},
    {"slots": True, "unsafe_hash": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
)


def plain() -> type:
    class Plain:
        """Of all kinds of fields."""

        KIND: ClassVar[str] = "plain"
        number: int
        name: str = "a"
        tags: tuple[str, ...] = field(default_factory=tuple)
        seen: int = field(default=0, compare=False, repr=False)
        size: int = field(default=7, init=False)

    return Plain


def with_methods() -> type:
    class WithMethods:
        number: int
        name: str = "a"

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name * 2)

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return self is other

    return WithMethods


def with_hash() -> type:
    class WithHash:
        number: int
        name: str = "a"

        def __hash__(self) -> int:
            return 5

    return WithHash


def both(make: Callable[[], type], options: dict[str, bool]) -> tuple[Any, Any]:
    return dataclass(**options)(make()), dataclasses.dataclass(**options)(make())  # type: ignore[call-overload]


def of(cls: type, *arguments: object, **named: object) -> Any:
    names = list(inspect.signature(cls).parameters)
    return cls(**dict(zip(names, arguments, strict=False)), **named)


def told(call: Callable[[], object]) -> object:
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(make, options, id="-".join([make.__name__, *options]))
        for make in (plain, with_methods, with_hash)
        for options in OPTIONS
        if not (options.get("unsafe_hash") and make is with_hash)  # `dataclasses` refuses a second __hash__
    ],
)
def test_it_answers_as_the_standard_librarys(make: Callable[[], type], options: dict[str, bool]) -> None:
    ours, theirs = both(make, options)

    def answers(cls: Any) -> list[object]:
        one, two, other = of(cls, 3), of(cls, 3, seen=1) if make is plain else of(cls, 3), of(cls, 4, "b")
        return [
            repr(one), one == two, one == other, one != two, one.__eq__(5), one == 3,
            (told(lambda: hash(one)) == told(lambda: hash(two))), told(lambda: hash(one) and 1),
            dataclasses.asdict(other), dataclasses.astuple(other), dataclasses.replace(one, number=9).number,
            [(each.name, each.type, each.init, each.kw_only) for each in dataclasses.fields(cls)],
            cls.__match_args__, inspect.signature(cls), told(lambda: of(cls)),
            told(lambda: of(cls, 1, what=2)),
            told(lambda: setattr(one, "number", 5)), told(lambda: delattr(other, "name")),
            dataclasses.asdict(copy.copy(two)), dataclasses.asdict(copy.deepcopy(two)),
            getattr(cls, "__slots__", None), cls.__hash__ is None, cls.__hash__ is object.__hash__,
        ]  # fmt: skip

    for our, their in zip(answers(ours), answers(theirs), strict=True):
        assert our == their


def test_nothing_is_compiled_before_it_is_used() -> None:
    cls: Any = dataclass(frozen=True, slots=True)(plain())
    assert not any(inspect.isfunction(vars(cls)[name]) for name in METHODS)
    one = cls(1)
    assert [name for name in METHODS if inspect.isfunction(vars(cls)[name])] == ["__init__"]
    assert one in {cls(1)}
    assert [name for name in METHODS if inspect.isfunction(vars(cls)[name])] == [
        "__init__",
        "__eq__",
        "__hash__",
    ]


@dataclass(frozen=True, slots=True)
class Base:
    number: int


def test_no_field_of_a_frozen_one_is_set_or_deleted() -> None:
    one: Any = Base(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'number'"):
        one.number = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'unknown'"):
        one.unknown = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
        del one.number


COMPILE_ALL = """
import sys
import amqp10broker.cli.main, amqp10broker.runtime.cluster.cluster, amqp10broker.runtime.broker
from amqp10broker.dataclass import _Later
classes = {
    value
    for name, module in sorted(sys.modules.items()) if name.startswith("amqp10broker.")
    for value in vars(module).values() if isinstance(value, type) and "__dataclass_fields__" in vars(value)
}
for cls in classes:
    for name, value in list(vars(cls).items()):
        if isinstance(value, _Later):
            getattr(cls, name)
print(len(classes) > 400)
"""


def test_every_class_of_the_broker_can_be_compiled() -> None:
    """The compiled code would fail at the first use where the standard library fails at definition."""
    done = subprocess.run([sys.executable, "-c", COMPILE_ALL], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
