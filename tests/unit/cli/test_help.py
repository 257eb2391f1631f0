"""``--help`` of every command: like a page of a manual, and true."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from amqp10broker.cli import main
from amqp10broker.cli.commands import WIDTH_MAX, Parser

NOT_FOR_PEOPLE = ("nursery", "mailbox", "epoch", "wake", "dataclass", "namespace", "None", "True", "False")
"""Words of ours for what is inside, and of Python's."""


def parsers(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Parser]]:
    yield " ".join(words), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers(below, (*words, name))


ALL = dict(parsers(main.build_parser()))


def options(parser: Parser) -> list[argparse.Action]:
    without = argparse._HelpAction | argparse._VersionAction | argparse._SubParsersAction
    return [action for action in parser._actions if not isinstance(action, without)]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.parametrize("words", ALL)
def test_a_page_of_help_says_all_and_fits(words: str) -> None:
    page = ALL[words].format_help()
    assert [line for line in page.splitlines() if len(line) > WIDTH_MAX] == []
    assert [action.dest for action in options(ALL[words]) if not action.help] == []
    told = " ".join(page.split())
    # Each option begins a paragraph, which ends where the next one begins.
    places = [
        max(page.rfind(f"\n  {option}") for option in action.option_strings)
        for action in options(ALL[words])
        if action.option_strings and not action.required
    ]
    assert "(default: )" not in page
    assert min(places, default=0) >= 0
    for place in places:
        paragraph = re.split(r"\n  \S|\n\n", page[place + 3 :])[0]
        assert "default" in paragraph, paragraph
    found = [word for word in NOT_FOR_PEOPLE if re.search(rf"\b{word}\b", told)]
    assert found == []


def test_the_first_page_lists_every_command_or_its_group_once_and_fits_a_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Faults are left out, which are for brokers in test mode: the help of `serve` lists them."""
    monkeypatch.setenv("COLUMNS", "80")
    page = main.build_parser(whole=False).format_help()
    rows = page.partition("\ncommands:\n")[2].partition("\n\n")[0].splitlines()
    listed = [name for row in rows for name in row.partition(":")[2].split()]
    assert sorted([*listed, "fault"]) == sorted({words.partition(" ")[0] for words in main.homes()})
    assert len(page.splitlines()) <= 32
    assert max(map(len, page.splitlines())) <= 80
    assert "amqp10broker fault" in ALL["serve"].format_help()


@pytest.mark.parametrize("words", ALL)
def test_a_page_of_help_ends_with_an_example_that_can_be_typed(words: str) -> None:
    """It is parsed as it stands, without the part behind a pipe and the shell's own syntax."""
    line = ALL[words].format_help().rpartition("\nexample:\n  $ ")[2].rstrip("\n")
    line = line.removeprefix('eval "$(').removesuffix(')"')
    typed = shlex.split(re.split(r" [<>] ", line.rpartition(" | ")[2])[0])
    assert typed[0] == "amqp10broker"
    parser = main.build_parser(typed[1:], whole=False)
    parser.check_options(typed[1:])
    assert parser.parse_args(typed[1:]).command
    assert words == "" or typed[1:][: len(words.split())] == words.split()


@pytest.mark.parametrize("asked", [["help"], ["--help"], ["list_queues", "-h"]])
def test_a_tool_of_rabbitmqs_lists_its_commands(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["rabbitmqctl", *asked]) == 0
    assert {"add_user", "list_queues", "set_policy"} <= set(capsys.readouterr().out.split())
