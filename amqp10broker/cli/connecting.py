"""Options and login of commands that are clients, such as ``publish`` and ``get``, and passwords.

They use AMQP 1.0 and not the administration socket, so that permissions, credit and outcomes are those of an
application. Passwords are not read from the command line, which other users of the machine can read.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from amqp10broker.cli.commands import STANDARD, Parser, read_file, seconds
from amqp10broker.cli.exits import Unreachable
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError

if TYPE_CHECKING:
    from amqp10broker.client.blocking import Client


def add_password_file(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="file whose first line is the password, - for standard input (default: asked for at the "
        "terminal, otherwise standard input)",
    )


def add_password(parser: argparse.ArgumentParser) -> None:
    """Add the options of a user's new password, or of none."""
    password = parser.add_mutually_exclusive_group()
    add_password_file(password)
    password.add_argument("--no-password", action="store_true", help="the user cannot log in with a password")


def new_password(arguments: argparse.Namespace) -> str | None:
    """Read the new password by the options of `add_password`; None: no login with a password."""
    if arguments.no_password:
        return None
    return read_password(arguments.password_file, arguments.user, confirm=True)


def read_password(file: str | None, user: str, *, confirm: bool) -> str:
    """Read a password from a file (``-``: standard input); None: from the terminal, if there is one."""
    if file is None and sys.stdin.isatty():
        import getpass

        password = getpass.getpass(f"Password of user '{user}': ")
        if confirm and getpass.getpass("Repeat the password: ") != password:
            raise ConfigError("the password", "differs from its repetition", "try again")
    else:
        password = first_line(file or STANDARD)
    if not password:
        raise ConfigError("the password", "is empty", "must have at least one character")
    return password


def first_line(file: str) -> str:
    content = read_file(file)
    try:
        return content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError as error:
        source = "standard input" if file == STANDARD else f"file {file}"
        raise ConfigError(source, "is not UTF-8", "must begin with the password in a line") from error


TIMEOUT_S: Final = 30.0
_TIMEOUT_S_MIN: Final = 0.01
_TIMEOUT_S_MAX: Final = 86_400.0
_COUNT_MAX: Final = 4_294_967_295


def add_client(parser: Parser) -> None:
    client = parser.add_argument_group("connection")
    client.add_argument("--vhost", metavar="NAME", help="virtual host (default: the broker's default, /)")
    add_address(client)
    password = client.add_mutually_exclusive_group()
    password.add_argument(
        "--password",
        help="password (default: guest); others on this machine can see it in the process list",
    )
    password.add_argument("--password-file", metavar="FILE", help="file whose first line is the password")
    client.add_argument(
        "--timeout",
        type=seconds(_TIMEOUT_S_MIN, _TIMEOUT_S_MAX),
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long to wait for each response of the broker (default: {TIMEOUT_S:g})",
    )


def add_address(parser: Parser | argparse._ArgumentGroup) -> None:
    """Add the options of address and user, for `login_of`."""
    parser.add_argument("--host", help="host of the broker (default: that of AMQP10BROKER_URL, or 127.0.0.1)")
    parser.add_argument(
        "--port", help=("port of the broker (default: that of AMQP10BROKER_URL, AMQP10BROKER_PORT, or 5672)")
    )
    parser.add_argument(
        "--user", help="user (default: that of AMQP10BROKER_URL, or guest); empty: log in with SASL ANONYMOUS"
    )


@dataclass(frozen=True, slots=True)
class Login:
    """Address and credentials of a connection. `vhost`: None: the broker's default."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str | None
    tls: bool

    def connect(self, timeout_s: float) -> Client:
        """Connect; a certificate is verified by the authorities that this machine trusts."""
        from amqp10broker.client.blocking import connect
        from amqp10broker.client.options import ClientOptions

        context = None
        if self.tls:
            import ssl

            context = ssl.create_default_context()
        return connect(
            self.host,
            self.port,
            user=self.user or None,
            password=self.password,
            timeout_s=timeout_s,
            options=ClientOptions(hostname=None if self.vhost is None else f"vhost:{self.vhost}"),
            ssl_context=context,
        )


def login_of(arguments: argparse.Namespace) -> Login:
    from amqp10broker.cli import admin
    from amqp10broker.cli.admin import from_environment

    url = from_environment(os.environ)
    if arguments.port is not None or url is None:
        port = admin.place_of(arguments.port, None, os.environ).port
    else:
        port = url.port
    user, password = arguments.user, arguments.password
    if user is None:
        user = "guest" if url is None or url.user is None else url.user
        if password is None and url is not None:
            password = url.password
    vhost = getattr(arguments, "vhost", None)
    return Login(
        arguments.host or ("127.0.0.1" if url is None else url.host),
        port,
        user,
        "guest" if password is None else password,
        url.vhost if vhost is None and url is not None else vhost,
        tls=url is not None and url.tls,
    )


def connect(arguments: argparse.Namespace) -> Client:
    from amqp10broker.client.errors import ConnectError, TimedOutError

    login = login_of(arguments)
    if arguments.password_file is not None:
        login = replace(login, password=first_line(arguments.password_file))
    try:
        return login.connect(arguments.timeout)
    except (ConnectError, TimedOutError) as error:
        raise Unreachable(str(error)) from error


def positive(written: str) -> int:
    # The number has at most as many digits as the largest credit: Python refuses to read thousands of them.
    number = int(written) if written.isdecimal() and len(written) <= len(str(_COUNT_MAX)) else 0
    if not 1 <= number <= _COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{written[:40]!r} must be an integer from 1 to {_COUNT_MAX}")
    return number
