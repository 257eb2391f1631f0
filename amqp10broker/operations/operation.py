"""The registry of operations. The record of an operation is a decorator above its function.

The command line, the HTTP API, management over AMQP and the help use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused, BadRequest, ReservedName


class Kind(Enum):
    """The type of an argument."""

    TEXT = "a string"
    FLAG = "true or false"
    INTEGER = "an integer"
    TEXTS = "a list of strings"
    TABLE = "a map with string keys"
    ANY = "any value"


@dataclass(frozen=True, slots=True)
class Check:
    """The limits of a value.

    Attributes:
        secret: it must not be logged.
        known: examples; others are allowed.
        keys: of a table, with their descriptions.
        bounds: the smallest and the largest integer.
        word: a text that is allowed instead of an integer.
    """

    secret: bool = False
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    bounds: tuple[int, int] | None = None
    word: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation. `default`: None if it is required."""

    name: str
    kind: Kind
    help: str
    required: bool
    default: object
    check: Check


Name = Annotated[str, "its name"]
XArguments = Annotated[dict[str, Any], "x-arguments"]
IfUnused = Annotated[bool, "only if it is not in use"]
Durable = Annotated[bool, "it survives a restart"]
Vhost = Annotated[str | None, "name of the virtual host; the caller's own if not given"]
NodeName = Annotated[str, "name of the node; what stands behind an @ does not matter"]
Found = Annotated[str, "regular expression, found anywhere in the name"]
EMPTY: Final[dict[str, Any]] = {}


def checked(noun: str, arguments: tuple[Argument, ...], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments with defaults. Raises `BadRequest` for unknown, missing or mistyped ones."""
    known = {argument.name: argument for argument in arguments}
    for name, value in given.items():
        if name not in known:
            raise BadRequest(
                noun, f"bad {noun} property {{{shown(name)},{shown(value)}}}: known are {', '.join(known)}"
            )
    values: dict[str, Any] = {}
    for argument in arguments:
        check, value = argument.check, given.get(argument.name)
        wanted = None
        if value is None:
            if argument.required:
                raise BadRequest(
                    noun, f"{noun} property '{argument.name}' is missing: give {argument.kind.value}"
                )
            value = argument.default
        elif not _fits(argument.kind, value) and (check.word is None or value != check.word):
            wanted = argument.kind.value if check.word is None else f"{argument.kind.value} or {check.word}"
        elif check.choices and value not in check.choices:
            wanted = f"one of {', '.join(check.choices)}"
        if wanted is not None:
            named = f"{{{shown(argument.name)},{shown(value)}}}"
            raise BadRequest(noun, f"bad {noun} property {named}: it must be {wanted}")
        values[argument.name] = value
    return values


def _fits(kind: Kind, value: object) -> bool:
    if isinstance(value, list | tuple) and kind is Kind.TEXTS:
        return all(isinstance(item, str) for item in value)
    if isinstance(value, Mapping) and kind is Kind.TABLE:
        return all(isinstance(key, str) for key in value)
    if isinstance(value, bool):
        return kind in (Kind.FLAG, Kind.ANY)
    return kind is Kind.ANY or isinstance(value, {Kind.TEXT: str, Kind.INTEGER: int}.get(kind, ()))


def shown(value: object) -> str:
    """Format a value for an error text: like JSON, in at most 100 characters."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f"'{value}'"
    else:
        text = "null" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def counted(count: int, noun: str) -> str:
    """Format a count with a noun: ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


RESERVED_PREFIX: Final = "amq."
NAME_BYTES_MAX: Final = 255


def check_name(kind: str, name: str) -> str:
    """Return the name. Raises `BadRequest` if it contains a line end, or is too long.

    AMQP 0-9-1 drops line ends from names; over AMQP 1.0 they are refused, so that no name changes silently.
    """
    if "\n" in name or "\r" in name:
        raise BadRequest(
            f"{kind} '{name}'",
            f"Bad name '{name}': line feed and carriage return characters not allowed",
        )
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise BadRequest(
            f"{kind} '{name[:32]}...'", f"Bad name '{name[:32]}...': longer than {NAME_BYTES_MAX} bytes"
        )
    return name


def check_not_default(exchange: str) -> str:
    """Return the name; raises `AccessRefused` for the default exchange."""
    if exchange == "":
        raise AccessRefused("exchange ''", "operation not permitted on the default exchange")
    return exchange


def check_not_reserved(kind: str, name: str) -> str:
    """Return the name. Raises `ReservedName` if its prefix is reserved for the broker."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(
            f"{kind} '{name}'", f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
        )
    return name


FOR_ADMINISTRATORS: Final = "the tag administrator"
"""The permission of users with that tag, and of the machine's owner at the local socket."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command of an operation.

    Attributes:
        words: a group and a word, ``policy set``, or one word.
        example: its arguments in the example of its help.
        said: the sentence for people: a format string over arguments and result, or a function of both.
        columns: those of a result of rows; without them `said` formats it.
        description: that of its own help; empty: that of the operation.
        positional: arguments without the name of an option, though they have a default.
        tool: it has the exit codes and formats of RabbitMQ's tools for clusters.
    """

    words: str
    example: str = ""
    said: str | Callable[[Mapping[str, Any], Any], str] = ""
    columns: tuple[str, ...] = ()
    description: str = ""
    positional: tuple[str, ...] = ()
    tool: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        noun: the kind of its object.
        permission: `FOR_ADMINISTRATORS` is checked before `run`, others by `run`.
        help: a sentence: the first paragraph of the docstring.
        changes: it changes declarations or the cluster, and is logged.
        at_node: the description of a last argument, ``node``, that names the executing node; empty: there is
            none.
        takes_s: how long it may take; 0: as long as others.
        run: takes the caller and the arguments.
    """

    name: str
    noun: str
    permission: str
    help: str
    changes: bool
    at_node: str
    takes_s: float
    command: Command | None
    run: Callable[..., Any]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return _arguments_of(self.run, self.at_node)

    def subject(self, given: Mapping[str, object]) -> str:
        """Return the object of a call, for the log: the given texts, without secrets."""
        named = (
            f"{argument.name}={shown(value)}"
            for argument in self.arguments
            if argument.kind is Kind.TEXT and not argument.check.secret
            # A refused value may be of any type.
            if isinstance(value := given.get(argument.name), str)
        )
        return f"{self.noun} {', '.join(named)}".rstrip()

    @property
    def line(self) -> str:
        """The help as a line in a list of commands."""
        return f"{self.help[0].lower()}{self.help[1:-1]}"

    @property
    def in_vhost(self) -> bool:
        """Whether its names are in the caller's virtual host, which must exist."""
        return self.noun in ("queue", "exchange", "binding", "policy")


REGISTERED: Final[list[Operation]] = []
"""The operations of the imported modules; `operations.registry` imports all."""


def operation(
    name: str,
    noun: str,
    *,
    permission: str = FOR_ADMINISTRATORS,
    changes: bool = True,
    at_node: str = "",
    takes_s: float = 0,
    command: Command | None = None,
) -> Callable[[Callable[..., Any]], Operation]:
    """Register the decorated function, and return its record.

    Its parameters are the caller, and arguments annotated as ``Annotated[type, help]``, with a `Check` where
    the type is not enough. It returns plain values, and raises `RefusedError` if nothing was changed. A
    function that waits for the catalog or a queue is a generator (`Steps`); one that takes time, or waits for
    other nodes, a coroutine function, for front ends that can wait.
    """

    def register(run: Callable[..., Any]) -> Operation:
        help = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        made = Operation(name, noun, permission, help, changes, at_node, takes_s, command, run)
        REGISTERED.append(made)
        return made

    return register


@cache
def _arguments_of(run: Callable[..., Any], at_node: str) -> tuple[Argument, ...]:
    # For all operations this takes as long as a command line may, and a command needs that of only one.
    _, *parameters = inspect.signature(run).parameters.values()
    arguments = []
    for each in parameters:
        type, help, *checks = get_args(eval(each.annotation, run.__globals__))
        required = each.default is inspect.Parameter.empty
        default = None if required else each.default
        check = checks[0] if checks else Check()
        arguments.append(Argument(each.name, _kind_of(type), help, required, default, check))
    if at_node:
        arguments.append(Argument("node", Kind.TEXT, at_node, False, None, Check()))
    return tuple(arguments)


_KINDS: Final[Mapping[Any, Kind]] = {
    str: Kind.TEXT,
    bool: Kind.FLAG,
    int: Kind.INTEGER,
    Sequence: Kind.TEXTS,
    dict: Kind.TABLE,
    Any: Kind.ANY,
}


def _kind_of(type: Any) -> Kind:
    # The first type of a union counts; the others are None, and the type of `Check.word`.
    origin = get_origin(type)
    if origin in (None, Sequence, dict):
        return _KINDS[origin or type]
    return _kind_of(get_args(type)[0])
