"""The client of a broker's administration socket: one line of JSON out, one or more back.

    {"op": "purge-queue", "vhost": "/", "arguments": {...}} -> {"ok": true, "result": {...}}
    anything that cannot be done                            -> {"ok": false, "error": "a sentence", ...}

``AMQP10BROKER_URL``, ``amqp://user:password@host:port/vhost``, says where the broker is. All its parts but
the host are optional, special characters are percent-encoded, and an option takes precedence over its part.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli.exits import RefusedByBroker
from amqp10broker.client.options import PORT, BrokerUrl, UrlError, parse_url
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.config.settings import SETTINGS
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AdminSocketError, ConfigError
from amqp10broker.runtime.admin import path as adminpath

if TYPE_CHECKING:
    import socket


SOURCE: Final = f"variable {URL_VARIABLE}"


def from_environment(environ: Mapping[str, str]) -> BrokerUrl | None:
    """Parse the variable; None: it is not set, or empty."""
    written = environ.get(URL_VARIABLE)
    if not written:
        return None
    try:
        return parse_url(written)
    except UrlError as fault:
        raise ConfigError(SOURCE, fault.problem, fault.allowed) from None


def is_here(url: BrokerUrl) -> bool:
    return url.host in ("localhost", "::1") or url.host.startswith("127.")


TIMEOUT_S: Final = 10.0
"""The time without an answer after which a broker is reported as stuck."""
DECIDED_S: Final = 45.0
"""The time for operations that change declarations: a cluster gives up after 30 s."""
SHOWN_MAX: Final = 3
"""The ports of other brokers that an error names; more would hide the sentence."""


# Remedies for refusals, by their kind; for a missing object, by the kind of object.
_ADVICE: Final[Mapping[str, str]] = {
    "Inequivalent": "declare it with the same properties, or delete it first",
    "InUse": "wait until it is unused or empty, or leave out --if-unused and --if-empty",
    "ResourceLocked": "it belongs to one connection, see 'amqp10broker connection list'",
    "NotFound queue": "see 'amqp10broker queue list'",
    "NotFound exchange": "see 'amqp10broker exchange list'",
    "NotFound vhost": "see 'amqp10broker vhost list'",
    "NotFound user": "see 'amqp10broker user list'",
    "NotFound connection": "see 'amqp10broker connection list'",
    "NotFound node": "see 'amqp10broker cluster status'",
}


@dataclass(frozen=True, slots=True)
class Place:
    port: int
    path: str | None


def place_of(port: str | None, path: str | None, environ: Mapping[str, str]) -> Place:
    """Return the place by the options, else by `AMQP10BROKER_URL` or the broker's own variables."""
    setting = SETTINGS["port"]
    if port is None and path is None:
        path = environ.get(SETTINGS["admin_socket"].variable) or None
        url = from_environment(environ)
        if path is None and url is not None:
            if not is_here(url):
                raise ConfigError(
                    SOURCE,
                    f"names the host {url.host}, but this command works with brokers on this machine only",
                    "run it on that host, or select a broker on this machine with --port or --admin-socket",
                )
            # A broker with TLS also has a plain port, which names the socket.
            return Place(PORT if url.tls else url.port, None)
        port = environ.get(setting.variable)
        source = f"variable {setting.variable}"
    else:
        source = "flag --port"
    number = setting.parse(port if port is not None else "5672", source)
    assert isinstance(number, int)
    return Place(number, path)


def ask(place: Place, request: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
    """Send one request, and return its result. `timeout_s`: None: that of the operation."""
    if timeout_s is None:
        timeout_s = _patience_s(str(request.get("op")))
    with closing(ask_stream(place, request, timeout_s=timeout_s)) as answers:
        return next(answers)


def _patience_s(operation: str) -> float:
    from amqp10broker.operations.registry import OPERATIONS

    known = OPERATIONS.get(operation)
    if known is None:
        return TIMEOUT_S
    return known.takes_s or (DECIDED_S if known.changes else TIMEOUT_S)


def ask_stream(
    place: Place, request: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S
) -> Generator[Any, None, None]:
    """Send one request, and yield its result, and the lines that follow until the end."""
    with _connected(place, timeout_s) as (path, stream):
        stream.sendall(json.dumps(request).encode() + b"\n")
        with stream.makefile("rb") as lines:
            yield _result(path, lines.readline())
            stream.settimeout(None)  # further lines come at any time
            for line in lines:
                yield json.loads(line)


@contextmanager
def _connected(place: Place, timeout_s: float) -> Iterator[tuple[str, socket.socket]]:
    path = place.path or adminpath.find(place.port)
    if path is None:
        raise AdminSocketError(_nobody(place))
    try:
        with adminpath.connect(path, timeout_s=timeout_s) as stream:
            yield path, stream
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise AdminSocketError(_nobody(place)) from error
    except TimeoutError as error:
        raise AdminSocketError(
            f"the broker at {path} has not answered for {timeout_s:g} s; it may be stuck or overloaded"
        ) from error
    except OSError as error:
        raise AdminSocketError(
            f"cannot connect to the broker at {path}: {error.strerror or error}; check that it runs, and "
            "that this user may connect to it"
        ) from error


def _result(path: str, line: bytes) -> Any:
    if not line.endswith(b"\n"):
        raise AdminSocketError(f"the broker at {path} closed the connection before it answered; see its log")
    try:
        answer = json.loads(line)
        if answer["ok"]:
            return answer["result"]
        reason = str(answer["error"])
    except (ValueError, KeyError, TypeError) as error:
        raise AdminSocketError(
            f"the program that answers at {path} is not an amqp10broker of this version; restart it with "
            "this version, or use the command of its version"
        ) from error
    kind = answer.get("kind")
    raise RefusedByBroker(
        f"the broker refuses: {reason}{_advice(answer)}", kind if isinstance(kind, str) else ""
    )


def _advice(answer: Mapping[str, Any]) -> str:
    kind = str(answer.get("kind"))
    what = str(answer.get("resource")).partition(" ")[0]
    advice = _ADVICE.get(kind) or _ADVICE.get(f"{kind} {what}")
    return f" ({advice})" if advice else ""


def _nobody(place: Place) -> str:
    if place.path:
        return (
            f"no broker serves {place.path}; start a broker with 'amqp10broker serve --admin-socket "
            f"{place.path}'"
        )
    others = [port for port in adminpath.found_ports() if port != place.port]
    if others:
        hint = " or ".join(f"--port {port}" for port in others[:SHOWN_MAX])
        return f"no broker of this user runs on port {place.port}; other brokers may run, try {hint}"
    return (
        f"no broker of this user runs on port {place.port}; start one with 'amqp10broker serve', or select "
        "another with --port or --admin-socket"
    )
