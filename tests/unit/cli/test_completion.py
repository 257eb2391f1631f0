"""Completion scripts: made from the parser, and what bash makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from amqp10broker.cli import completion, main

ROOT = completion.node_of(main.build_parser())
NAMES = [name for names in main.HOMES.values() for name in names]


def node(*path: str) -> completion.Node:
    return next(each for each in ROOT.all() if each.path == path)


def test_every_command_and_kind_is_known() -> None:
    """The tree is the parser's own."""
    assert [child.path[-1] for child in ROOT.children] == NAMES
    assert [child.path for child in node("declare").children] == [
        ("declare", "queue"),
        ("declare", "exchange"),
    ]


def test_options_say_whether_a_value_follows() -> None:
    """A flag is complete; a value has choices, is a file, or is anything."""
    options = {option.flags[-1]: option for option in node("list-queues").options}
    assert options["--format"].choices == ("table", "json", "csv", "plain")
    assert not options["--no-header"].value
    assert options["--admin-socket"].file
    assert options["--vhost"].value
    assert node("export-definitions").file
    assert "messages" in node("list-queues").words


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_names_every_command_and_option(shell: str) -> None:
    """Nothing that the parser takes is left out."""
    script = completion.SHELLS[shell](ROOT)
    for each in ROOT.all():
        for name in each.path:
            assert name in script
        for option in each.options:
            for flag in option.flags:
                assert (f"-l {flag[2:]}" if shell == "fish" and flag[:2] == "--" else flag) in script


@pytest.mark.parametrize("shell", [shell for shell in completion.SHELLS if shutil.which(shell)])
def test_a_script_is_good_syntax_where_its_shell_is_there(shell: str, tmp_path: Path) -> None:
    """The shell reads it without running it. Shells that are not installed are not asked."""
    program = shutil.which(shell)
    assert program is not None
    script = tmp_path / "script"
    script.write_text(completion.SHELLS[shell](ROOT))
    done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def complete(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    program = shutil.which("bash")
    assert program is not None, "bash is what .ci/run itself runs in"
    script = tmp_path / "script"
    script.write_text(completion.bash(ROOT))
    (tmp_path / "file with space.json").touch()
    commands = (
        'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _amqp10broker; '
        '[[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [program, "--norc", "-c", commands, "bash", "amqp10broker", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["list-q"], ["list-queues"]),
        (["no"], []),
        (["list-queues", "mess"], ["messages", "messages_ready", "messages_unacknowledged"]),
        (["list-queues", "name", "ty"], ["type"]),
        (["list-queues", "--format", ""], ["table", "json", "csv", "plain"]),
        (["list-queues", "--format", "json", "lea"], ["leader"]),
        (["list-queues", "--no"], ["--no-header"]),
        (["declare", ""], ["queue", "exchange"]),
        (["declare", "exchange", "--typ"], ["--type"]),
        (["declare", "exchange", "--type", "to"], ["topic"]),
        (["declare", "queue", "--type", ""], ["classic", "quorum", "stream"]),
        (["delete", "v"], ["vhost"]),
        (["alarm", ""], ["memory", "disk", "on", "off"]),
        (["set-vm-memory-high-watermark", "a"], ["absolute"]),
        (["set-disk-free-limit", "m"], ["mem_relative"]),
        (["set", "max_l"], ["max_link_credit"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["publish", "--property", "message"], ["message-id="]),
        (["list-queues", "--vhost", ""], []),
        (["import-definitions", "file"], ["file with space.json"]),
        (["publish", "--file", "file"], ["file with space.json"]),
    ],
    ids=" ".join,
)
def test_bash_offers_what_may_stand_there(words: list[str], offered: list[str], tmp_path: Path) -> None:
    """Commands, kinds, options, values of options, columns, files."""
    assert complete(tmp_path, *words) == offered


def test_bash_offers_all_commands_first(tmp_path: Path) -> None:
    """In the order of the help."""
    assert complete(tmp_path, "") == NAMES
