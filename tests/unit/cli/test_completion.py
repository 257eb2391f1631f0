"""Completion scripts: made from the parser, and what bash makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from amqp10broker.cli import completion, main

NAMES = {word for words in main.homes() for word in words.split()}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_names_every_command(shell: str) -> None:
    """Nothing that the parser takes is left out; some shells want a backslash before a hyphen."""
    script = completion.script(shell).replace("\\-", "-")
    assert [name for name in NAMES if name not in script] == []


def complete(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    program = shutil.which("bash")
    assert program is not None, "bash is what .ci/run itself runs in"
    script = tmp_path / "script"
    script.write_text(completion.script("bash"))
    (tmp_path / "file with space.json").touch()
    commands = (
        'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_amqp10broker "$1" "${@: -1}"; '
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
        (["qu"], ["queue"]),
        (["no"], []),
        (
            ["queue", "list", "messages_"],
            ["messages_ready", "messages_unacknowledged", "messages_delayed", "messages_dlx"],
        ),
        (["queue", "list", "name", "ty"], ["type"]),
        (["queue", "list", "--format", ""], ["table", "json", "csv", "plain"]),
        (["queue", "list", "--format", "json", "lea"], ["leader"]),
        (["queue", "list", "--no"], ["--no-header"]),
        (["exchange", ""], ["declare", "delete", "list"]),
        (["exchange", "declare", "--typ"], ["--type"]),
        (["exchange", "declare", "--type", "to"], ["topic"]),
        (["queue", "declare", "--type", ""], ["classic", "quorum", "stream"]),
        (["vhost", "d"], ["delete"]),
        (["alarm", "set", ""], ["memory", "disk"]),
        (["alarm", "memory-limit", "a"], ["absolute"]),
        (["alarm", "disk-limit", "m"], ["mem_relative"]),
        (["set", "max_l"], ["max_link_credit"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["publish", "--property", "message"], ["message-id="]),
        (["queue", "list", "--vhost", ""], []),
        (["definitions", "import", "file"], ["file with space.json"]),
        (["publish", "--file", "file"], ["file with space.json"]),
    ],
    ids=" ".join,
)
def test_bash_offers_what_may_stand_there(words: list[str], offered: list[str], tmp_path: Path) -> None:
    """Commands, kinds, options, values of options, columns, files."""
    assert complete(tmp_path, *words) == offered
