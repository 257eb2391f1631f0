"""Reads passwords without the command line, which other users of the machine can read in the process list."""

from __future__ import annotations

import argparse
import sys

from amqp10broker.cli.commands import STANDARD, read_file
from amqp10broker.errors import ConfigError


def add_password_file(parser: argparse._ActionsContainer) -> None:
    """Add the option of a file with the password."""
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="a file whose first line is the password, - for standard input (default: ask at the terminal, "
        "or read standard input if that is no terminal)",
    )


def add_password(parser: argparse.ArgumentParser) -> None:
    """Add the options of a user's new password, or of none."""
    password = parser.add_mutually_exclusive_group()
    add_password_file(password)
    password.add_argument("--no-password", action="store_true", help="nobody can log in with a password")


def new_password(arguments: argparse.Namespace) -> str | None:
    """Read the new password by the options of `add_password`; None: without password login."""
    if arguments.no_password:
        return None
    return read_password(arguments.password_file, arguments.user, confirm=True)


def read_password(file: str | None, user: str, *, confirm: bool) -> str:
    """Read the password of a user from a file, from standard input, or from the terminal. `file`: ``-`` for
    standard input; None prompts at a terminal, if standard input is one.
    """
    if file is None and sys.stdin.isatty():
        import getpass

        password = getpass.getpass(f"Password of user '{user}': ")
        if confirm and getpass.getpass("The same again: ") != password:
            raise ConfigError("the password", "was typed differently the second time", "try again")
    else:
        password = first_line(file or STANDARD)
    if not password:
        raise ConfigError("the password", "is empty", "must have at least one character")
    return password


def first_line(file: str) -> str:
    """Return the first line of a file, or of standard input for ``-``."""
    content = read_file(file)
    try:
        return content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError as error:
        source = "standard input" if file == STANDARD else f"file {file}"
        raise ConfigError(source, "is not UTF-8", "must begin with the password in a line") from error
