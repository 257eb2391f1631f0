"""The registry of operations: a record stands as a decorator above the function that it describes.

Command line, HTTP API, management over AMQP and help read `operations.OPERATIONS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin

from amqp10broker.dataclass import dataclass
from amqp10broker.operations.arguments import Argument, Check, Kind

F = TypeVar("F", bound=Callable[..., Any])

FOR_ADMINISTRATORS: Final = "the tag administrator"
"""The permission of operations for users with that tag, and for the machine's owner at the local socket."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command of an operation on the command line.

    Attributes:
        words: it is written so: a group and a word, ``policy set``, or one word.
        example: its arguments in the example of its help.
        said: the sentence for people: a format string over arguments and result, or a function of both.
        columns: of a result of rows; without them `said` formats it.
        description: for its own help; empty: that of the operation.
        positional: arguments that are written without the name of an option, though they have a default.
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
        permission: that the user needs. `FOR_ADMINISTRATORS` is checked before `run`, others by `run`.
        help: a sentence: the first paragraph of the function's docstring.
        changes: it changes declarations or the cluster, and is logged.
        at_node: describes the last argument, ``node``, which names the node that executes it, and is not for
            `run`; empty: it does not have one.
        takes_s: how long it may take; 0: as long as others.
        command: None: the command line has none.
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
        """The arguments: the parameters of `run` behind the caller, and the node."""
        return _arguments_of(self.run, self.at_node)

    @property
    def line(self) -> str:
        """The help as a line in a list of commands."""
        return f"{self.help[0].lower()}{self.help[1:-1]}"

    @property
    def in_vhost(self) -> bool:
        """Whether its names are in the caller's virtual host, which must exist."""
        return self.noun in ("queue", "exchange", "binding", "policy")


REGISTERED: Final[list[Operation]] = []
"""The operations of the modules that are imported; `operations.registry` imports all."""


def operation(
    name: str,
    noun: str,
    *,
    permission: str = FOR_ADMINISTRATORS,
    changes: bool = True,
    at_node: str = "",
    takes_s: float = 0,
    command: Command | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as an operation.

    Its parameters are the caller, and arguments annotated as ``Annotated[type, help]``, with a `Check` where
    the type is not enough. It returns a result of plain Python values, and raises `RefusedError` if nothing
    was changed. A function that waits for the catalog or a queue is a generator (`caller.Steps`). One that
    takes time is a coroutine function, for front ends that can wait; so is one that waits for other nodes.

    Args:
        at_node: as in `Operation`.
    """

    def register(run: F) -> F:
        help = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        REGISTERED.append(Operation(name, noun, permission, help, changes, at_node, takes_s, command, run))
        return run

    return register


@cache
def _arguments_of(run: Callable[..., Any], at_node: str) -> tuple[Argument, ...]:
    # For all operations this takes as long as a command line may, and a command needs that of one.
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
    # Of a union the first counts; the others are None, and the type of `Check.word`.
    origin = get_origin(type)
    if origin in (None, Sequence, dict):
        return _KINDS[origin or type]
    return _kind_of(get_args(type)[0])
