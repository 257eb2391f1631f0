"""The format of ``--help``: at most 100 columns, the default of every option, an example at the end."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqp10broker.operations.operation import Command

WIDTH_MAX: Final = 100
PROGRAM: Final = "amqp10broker"


class Help(argparse.HelpFormatter):
    """Texts with line breaks stay as they are; others are filled."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, WIDTH_MAX))

    def _get_help_string(self, action: argparse.Action) -> str:
        # As Python 3.11 and 3.12 add it to options that can be turned off.
        help = (action.help or "").replace(" (default: %(default)s)", "")
        if not action.option_strings or action.required or "default" in help:
            return help
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            return help
        if isinstance(action.default, bool):
            shown = "yes" if action.default else "no"
        else:
            shown = "none" if action.default in (None, "", []) else "%(default)s"
        return f"{help} (default: {shown})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None,
    ) -> str:
        actions = list(actions)
        text = super()._format_usage(usage, actions, groups, prefix)
        if max(map(len, text.splitlines())) <= self._width:
            return text
        program, self._prog = self._prog, f"{self._prog} [OPTION ...]"
        try:
            wanted = [each for each in actions if not each.option_strings or each.required]
            return super()._format_usage(usage, wanted, [], prefix)
        finally:
            self._prog = program


def example(prog: str) -> str:
    """Return the example at the end of a command's help."""
    from amqp10broker.cli.examples import EXAMPLES  # for --help alone

    words = prog.removeprefix(PROGRAM).strip()
    known = {each.words: each.example for each in _of_operations()} if words not in EXAMPLES else {}
    # A group has the example of its first command.
    name, given = next(
        each for each in {**known, **EXAMPLES}.items() if f"{each[0]} ".startswith(f"{words} ")
    )
    return f"example:\n  $ {given if PROGRAM in given else f'{PROGRAM} {name} {given}'.rstrip()}"


def _of_operations() -> Iterable[Command]:
    from amqp10broker.operations.registry import OPERATIONS

    return (each.command for each in OPERATIONS.values() if each.command is not None)
