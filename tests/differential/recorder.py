"""Runs an operation script against a broker and writes down what its clients see.

A script is a text: lines that begin with ``#`` or are empty are prose, lines that begin with ``=`` are what
was seen, every other line is an operation (see `language`). Running a script gives its text again with
what was really seen, so that two recordings, or a recording and the kept text, are compared line by line.

The scripts that are kept hold two recordings at once (see `beside`): where a RabbitMQ answered otherwise,
its lines follow ours and begin with ``~``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import pika
import proton

from tests.differential.client091 import Client091
from tests.differential.client10 import Client10
from tests.differential.language import parse

LIMITED_USER: Final = "limited"
SOCKET_S: Final = 10.0
RECORDED_BESIDE: Final = "# The lines that begin with ~ are of "
"""How a script begins that holds two recordings; product and version follow."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker and who may log in.

    Attributes:
        limited: password of the user `limited`, None if the broker has no such user.
    """

    host: str
    port: int
    user: str
    password: str
    limited: str | None

    @classmethod
    def from_url(cls, url: str, limited: str | None) -> Place:
        """Read ``amqp://user:password@host:port``; guest and 5672 are the defaults."""
        parts = urlsplit(url)
        return cls(
            parts.hostname or "localhost",
            parts.port or 5672,
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            limited,
        )

    def parameters(self, user: str, password: str) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            credentials=pika.PlainCredentials(user, password),
            socket_timeout=SOCKET_S,
            stack_timeout=SOCKET_S,
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One operation that two brokers answered differently."""

    operation: str
    one: tuple[str, ...]
    other: tuple[str, ...]

    def __str__(self) -> str:
        first = "".join(f"\n    one:   {line}" for line in self.one)
        second = "".join(f"\n    other: {line}" for line in self.other)
        return f"{self.operation}{first}{second}"


class Recorder:
    """The clients of a script.

    `A` and `B` speak AMQP 0-9-1 with confirms, `T` without, `M` and `N` AMQP 1.0; `LA` and `LM` are the
    user `limited`, in AMQP 0-9-1 and 1.0.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._clients: dict[str, Client091 | Client10] = {}
        self._names: dict[str, str] = {}

    def run(self, text: str) -> str:
        result: list[str] = []
        try:
            for line in text.splitlines():
                if line.startswith(("=", "~")):
                    continue
                result.append(line)
                if line and not line.startswith("#"):
                    result += [f"= {seen}" for seen in self._perform(line)]
        finally:
            for client in self._clients.values():
                client.close()
        return "\n".join(result) + "\n"

    def _perform(self, line: str) -> list[str]:
        user = self._place.user
        call = parse(line, USER=user, USER_BYTES=user.encode())
        client = self._clients.get(call.client)
        if client is None:
            client = self._clients[call.client] = self._connect(call.client)
        try:
            seen = client.perform(call.operation, *call.positional, **call.named)
        except (AssertionError, LookupError, proton.ProtonException) as error:
            # Something did not come, or a link that was to be there is not: seen as well.
            seen = [f"{type(error).__name__}: {error}"]
        # One line for each: RabbitMQ wraps a long term of Erlang inside a text.
        lines = (re.sub(r"\s*\n\s*", " ", each) for each in seen)
        return [each.replace(f"'{user}'", "'<user>'") for each in lines]

    def _connect(self, name: str) -> Client091 | Client10:
        place = self._place
        user, password = place.user, place.password
        if name.startswith("L"):
            assert place.limited is not None, "the script needs the user 'limited'"
            user, password = LIMITED_USER, place.limited
        if name.endswith(("M", "N")):
            return Client10(self._names, host=place.host, port=place.port, user=user, password=password)
        return Client091(place.parameters(user, password), confirms=name != "T")


def differences(ours: str, theirs: str) -> list[Difference]:
    return [
        Difference(operation, one, other)
        for (operation, one), (_, other) in zip(_steps(ours), _steps(theirs), strict=True)
        if one != other
    ]


def beside(ours: str, theirs: str) -> str:
    """Merge two recordings of one script; the other's differing answers stand below ours."""
    lines: list[str] = []
    others = iter(_steps(theirs))
    for block in _blocks(ours):
        lines += block
        if _is_operation(block[0]):
            _, other = next(others)
            if tuple(block[1:]) != other:
                lines += [f"~{line[1:]}" for line in other] or ["~"]
    return "\n".join(lines) + "\n"


def ours_of(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("~"))


def theirs_of(text: str) -> str:
    lines: list[str] = []
    for first, *answer in _blocks(text):
        other = [f"={line[1:]}" for line in answer if line.startswith("~")]
        lines += [first, *(line for line in other or answer if line != "=")]
    return "\n".join(lines) + "\n"


def named(text: str, version: str) -> str:
    """Return the script with a first line that gives the other recording's product and version."""
    lines = text.splitlines()
    if lines[0].startswith(RECORDED_BESIDE):
        del lines[0]
    return "\n".join([f"{RECORDED_BESIDE}{version}.", *lines]) + "\n"


def version_of(place: Place) -> str:
    """Return a broker's product and version, as AMQP 0-9-1 clients get them."""
    connection = pika.BlockingConnection(place.parameters(place.user, place.password))
    try:
        properties = connection._impl.server_properties
        return f"{properties['product']} {properties['version']}"
    finally:
        connection.close()


def sort_out(
    found: list[Difference], known: Mapping[str, str]
) -> tuple[list[tuple[Difference, str]], list[Difference]]:
    """Divide differences into known ones, by their beginnings and with the reason, and others."""
    expected: list[tuple[Difference, str]] = []
    surprising: list[Difference] = []
    for difference in found:
        reason = next((why for begin, why in known.items() if difference.operation.startswith(begin)), None)
        if reason is None:
            surprising.append(difference)
        else:
            expected.append((difference, reason))
    return expected, surprising


def _is_operation(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _blocks(text: str) -> list[list[str]]:
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("=", "~")):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _steps(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(first, tuple(seen)) for first, *seen in _blocks(text) if _is_operation(first)]
