"""Scripts that complete commands, options and values in a shell.

shtab makes them from the argument parser itself. They are static: a shell that completes starts no Python.
"""

from __future__ import annotations

import argparse
from typing import Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"FILE", "PATH"})


def script(shell: str) -> str:
    import shtab  # takes as long to load as the rest of a command

    from amqp10broker.cli.main import build_parser  # it imports this file, too: not while it is loaded

    parser = build_parser()
    _tell_what_is_known(parser, shtab.FILE)
    return str(shtab.complete(parser, shell))


def _tell_what_is_known(parser: argparse.ArgumentParser, file: object) -> None:
    # Changes the parser, which must not be used afterwards: completes files, and values that are only
    # suggestions.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _tell_what_is_known(below, file)
        elif action.metavar in _FILES:
            action.complete = file  # type: ignore[attr-defined]
        elif completions := getattr(action, "completions", None):
            action.choices = [str(each) for each in completions]


def _arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which")


def _completion(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell), end="")
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "completion",
        _arguments,
        _completion,
        "Print a script that completes commands, options and values. For this shell only: "
        'eval "$(amqp10broker completion bash)"',
    ),
)
