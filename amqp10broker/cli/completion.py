"""``amqp10broker completion``: scripts that complete commands, options and values in a shell.

Made from the argument parser itself, so that they cannot tell anything else. The scripts are static: a
shell that completes starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK

PROGRAM: Final = "amqp10broker"
_FILES: Final = frozenset({"FILE", "PATH"})
"""Metavars of what is a file's name."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        flags: how it is written.
        help: the first words on it.
        value: it takes one.
        choices: of that value, as far as they are known.
        file: its value is a file's name.
    """

    flags: tuple[str, ...]
    help: str
    value: bool = False
    choices: tuple[str, ...] = ()
    file: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """The program, a command, or a kind of it.

    Attributes:
        path: the words that lead here.
        help: a line on it.
        options: in order.
        words: what may stand here that is no option.
        file: a file's name may stand here.
        children: the commands below.
    """

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...] = ()
    words: tuple[str, ...] = ()
    file: bool = False
    children: tuple[Node, ...] = field(default=())

    def all(self) -> Iterator[Node]:
        """It and all below it."""
        yield self
        for child in self.children:
            yield from child.all()


def node_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), help: str = "") -> Node:
    """What a parser accepts."""
    options: list[Option] = []
    words: list[str] = []
    children: list[Node] = []
    file = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            children += [
                node_of(below, (*path, name), helps.get(name, "")) for name, below in action.choices.items()
            ]
        elif action.option_strings:
            options.append(
                Option(
                    tuple(action.option_strings),
                    _first_words(action.help),
                    value=action.nargs != 0,
                    choices=_choices(action),
                    file=action.metavar in _FILES,
                )
            )
        else:
            words += _choices(action)
            file = file or action.metavar in _FILES
    return Node(path, help, tuple(options), tuple(words), file, tuple(children))


def _choices(action: argparse.Action) -> tuple[str, ...]:
    named: Any = getattr(action, "completions", None) or action.choices or ()
    return tuple(str(each) for each in named)


def _first_words(help: str | None) -> str:
    text = (help or "").replace("%%", "%")
    return text.split(";")[0].split(" (")[0]


# --- bash -----------------------------------------------------------------------------------------


def bash(root: Node) -> str:
    """The script for bash, of any version since 3.2; needs no package beside it."""
    return f"""\
# Completion of {PROGRAM} for bash. To have it always:
#   {PROGRAM} completion bash > ~/.local/share/bash-completion/completions/{PROGRAM}
_{PROGRAM}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at= words= files= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${{COMP_WORDS[i]}}" in
            {_paths(root)}) at="$at ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$at:$prev" in
{_values(root, "words='{}'")}
        *)
            if [[ $cur == -* ]]; then
                case "$at" in
{_at(root, lambda node: f"words='{' '.join(_flags(node))}'")}
                esac
            else
                case "$at" in
{_at(root, lambda node: f"words='{' '.join(_words(node))}'" + ("; files=1" if node.file else ""))}
                esac
            fi ;;
    esac
    COMPREPLY=()
    local word
    for word in $words; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$word")
    done
    if [[ $files ]]; then
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
    fi
}}
complete -o default -F _{PROGRAM} {PROGRAM}
"""


# --- zsh ------------------------------------------------------------------------------------------


def zsh(root: Node) -> str:
    """The script for zsh; to be sourced, or put into a directory of ``$fpath``."""

    def described(node: Node) -> str:
        return f"words=({' '.join(_quoted(_pair(name, help)) for name, help in _helped_words(node))})" + (
            "; files=1" if node.file else ""
        )

    def options(node: Node) -> str:
        pairs = ((flag, option.help) for option in node.options for flag in option.flags)
        return f"words=({' '.join(_quoted(_pair(flag, help)) for flag, help in pairs)})"

    return f"""\
#compdef {PROGRAM}
# Completion of {PROGRAM} for zsh. To have it always, in a directory of $fpath:
#   {PROGRAM} completion zsh > _{PROGRAM}
_{PROGRAM}() {{
    local at= files= i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        case "$at ${{words[i]}}" in
            {_paths(root)}) at="$at ${{words[i]}}" ;;
        esac
    done
    local cur=${{words[CURRENT]}} prev=${{words[CURRENT-1]}}
    case "$at:$prev" in
{_values(root, "found=({})")}
        *)
            if [[ $cur == -* ]]; then
                case "$at" in
{_at(root, lambda node: options(node).replace("words=", "found=", 1))}
                esac
            else
                case "$at" in
{_at(root, lambda node: described(node).replace("words=", "found=", 1))}
                esac
            fi ;;
    esac
    (( $#found )) && _describe -t values value found
    [[ -n $files ]] && _files
}}
if [[ $funcstack[1] == _{PROGRAM} ]]; then _{PROGRAM} "$@"; else compdef _{PROGRAM} {PROGRAM}; fi
"""


# --- fish -----------------------------------------------------------------------------------------


def fish(root: Node) -> str:
    """The script for fish."""
    paths = " ".join(_quoted(_at_text(node)) for node in root.all() if node.path)
    lines = [
        f"# Completion of {PROGRAM} for fish. To have it always:",
        f"#   {PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish",
        f"function __{PROGRAM}_at",
        "    set -l words (commandline -opc)",
        "    set -e words[1]",
        "    set -l at ''",
        "    for word in $words",
        f'        contains -- "$at $word" {paths}; and set at "$at $word"',
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        f"complete -c {PROGRAM} -f",
    ]
    for node in root.all():
        here = f"complete -c {PROGRAM} -n " + _quoted(f'__{PROGRAM}_at "{_at_text(node)}"')
        for name, help in _helped_words(node):
            lines.append(f"{here} -a {_quoted(name)} -d {_quoted(help)}")
        if node.file:
            lines.append(f"{here} -F")
        for option in node.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            value = ""
            if option.value:
                value = " -r -F" if option.file else " -x"
                if option.choices:
                    value += f" -a {_quoted(' '.join(option.choices))}"
            lines.append(f"{here} {flags}{value} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


# --- what the scripts have in common --------------------------------------------------------------


def _at_text(node: Node) -> str:
    """The words that lead to it, as the scripts collect them: each behind a space."""
    return "".join(f" {name}" for name in node.path)


def _paths(root: Node) -> str:
    """A pattern of all words that lead somewhere, each behind those before it."""
    return "|".join(_quoted(_at_text(node)) for node in root.all() if node.path)


def _at(root: Node, what: Callable[[Node], str]) -> str:
    return "\n".join(f"                    {_quoted(_at_text(node))}) {what(node)} ;;" for node in root.all())


def _values(root: Node, words: str) -> str:
    """What stands behind an option that has a value."""
    lines = []
    for node in root.all():
        at = _at_text(node)
        for option in node.options:
            if option.value:
                pattern = "|".join(f"'{at}:{flag}'" for flag in option.flags)
                what = "files=1" if option.file else words.format(" ".join(option.choices))
                lines.append(f"        {pattern}) {what} ;;")
    return "\n".join(lines)


def _flags(node: Node) -> list[str]:
    return [flag for option in node.options for flag in option.flags]


def _words(node: Node) -> list[str]:
    return [name for name, _ in _helped_words(node)]


def _helped_words(node: Node) -> list[tuple[str, str]]:
    return [(child.path[-1], child.help) for child in node.children] + [(word, "") for word in node.words]


def _pair(name: str, help: str) -> str:
    name = name.replace(":", "\\:")
    return f"{name}:{help}" if help else name


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- the command ----------------------------------------------------------------------------------

SHELLS: Final[Mapping[str, Callable[[Node], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS))


def _completion(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli.main import build_parser  # it finds this file, too: not while it is loaded

    print(SHELLS[arguments.shell](node_of(build_parser())), end="")
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
