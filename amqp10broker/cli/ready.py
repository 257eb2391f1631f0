"""What `serve` announces when clients can connect: the lines of a bare `amqp10broker`, and the ready file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amqp10broker
from amqp10broker.config.records import DEFAULT_USERS
from amqp10broker.errors import ConfigError

if TYPE_CHECKING:
    from amqp10broker.runtime.broker import Broker


def welcome(broker: Broker) -> Iterator[str]:
    """Yield five lines: where the broker listens, the page, the login, where data are, how to go on."""
    config = broker.config
    known = config.users == DEFAULT_USERS
    login = "guest:guest@" if known else ""
    page = f"{_url('http', broker.http_addresses)}/" if broker.http_addresses else "none (HTTP is off)"
    url = _url("amqp", broker.addresses, login)
    yield f"amqp10broker {amqp10broker.__version__}, AMQP 1.0 and 0-9-1: {url}"
    yield f"page and HTTP API: {page}"
    users = "guest with the password guest, from this machine" if known else "the users of the configuration"
    yield f"login: {users}"
    if config.data_dir is None:
        yield "everything is in memory; 'amqp10broker serve --data-dir DIR' stores what is durable"
    else:
        yield f"durable data: {config.data_dir}"
    yield "Press Ctrl-C to stop it. 'amqp10broker --help' lists the commands."


def write_ready_file(path: str, broker: Broker) -> None:
    """Write the broker's ports as JSON. The file appears whole, so that a program can wait for it.

    Its keys are `pid`, `url`, `http_url`, `port`, `tls_port`, `http_port` and `metrics_port`; null stands for
    a port that is not there. Raises `ConfigError` if the file cannot be written.
    """
    ports: dict[str, Any] = {
        "pid": os.getpid(),
        "url": _url("amqp", broker.addresses),
        "http_url": _url("https" if broker.config.http_tls else "http", broker.http_addresses),
        "port": _port(broker.addresses),
        "tls_port": _port(broker.tls_addresses),
        "http_port": _port(broker.http_addresses),
        "metrics_port": _port(broker.metrics_addresses),
    }
    part = Path(f"{path}.{os.getpid()}")
    try:
        part.write_text(json.dumps(ports) + "\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(
            "ready_file", f"{path} cannot be written: {error.strerror}", "choose another"
        ) from error


def _url(scheme: str, addresses: list[tuple[str, int]], login: str = "") -> str | None:
    if not addresses:
        return None
    host, port = addresses[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://{login}[{host}]:{port}" if ":" in host else f"{scheme}://{login}{host}:{port}"


def _port(addresses: list[tuple[str, int]]) -> int | None:
    return addresses[0][1] if addresses else None
