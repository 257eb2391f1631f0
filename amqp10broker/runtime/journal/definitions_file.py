"""The definitions file of a configuration: all of it at once, or its queues when a cluster is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from amqp10broker.config import Config
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import ImportDefinitions, importing
from amqp10broker.metadata.definitions_due import due_of, without_due
from amqp10broker.metadata.users import PasswordRecord
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.broker")

TOLD_MAX: Final = 50
"""Entries of a document that are told in the log one by one."""


def import_file(
    catalog: Catalog, path: str, make_password: Callable[[str], PasswordRecord], *, queues_later: bool
) -> None:
    """Import a definitions file; omitted parts are logged. Raises `ConfigError` if it cannot be read, or has
    invalid content; nothing was imported then.
    """
    document = _document(path)
    with naming_the_file(path):
        request = importing(document, make_password=make_password)
        report = catalog.propose(without_due(request) if queues_later else request)
    tell_left_out(report.skipped)


def tell_left_out(reasons: Sequence[str]) -> None:
    """Log what of a document of definitions is not there."""
    for reason in reasons[:TOLD_MAX]:
        _log.warning("left out of the definitions", reason=reason)
    if len(reasons) > TOLD_MAX:
        _log.warning("more was left out of the definitions", count=len(reasons) - TOLD_MAX)


@contextmanager
def naming_the_file(path: str | None) -> Iterator[None]:
    """Name the file, if there is one, in errors raised inside the block."""
    try:
        yield
    except BrokerError as error:
        if path is None:
            raise
        source = f"definitions file {path}"
        raise ConfigError(source, f"cannot be imported: {error}", "nothing of it was taken over") from error


def due_now(config: Config, catalog: Catalog) -> ImportDefinitions:
    """Queues and bindings of a configuration that are due later, as far as they are not there. Raises
    `ConfigError` if the definitions file cannot be read.
    """
    document = {} if config.definitions is None else _document(config.definitions)
    vhost = catalog.lookup_vhost(config.default_vhost) if config.queues else None
    queues = [
        {
            "vhost": config.default_vhost,
            "name": queue.name,
            "durable": queue.durable,
            "arguments": dict(queue.arguments),
        }
        for queue in config.queues
        if vhost is not None and vhost.find(queue.name) is None
    ]
    return due_of(document, queues)


def _document(path: str) -> Any:
    source = f"definitions file {path}"
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ConfigError(source, f"cannot be read: {error.strerror}", "must be a JSON file") from error
    except ValueError as error:
        raise ConfigError(
            source,
            f"is not JSON: {error}",
            "give a file of 'amqp10broker definitions export' or 'rabbitmqctl export_definitions'",
        ) from error
