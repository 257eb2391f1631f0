"""What a broker has when it starts: the users, virtual hosts and queues of its configuration."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp10broker.amqp091.codec import decode_table
from amqp10broker.amqp091.errors import DecodeError
from amqp10broker.catalog import definitions
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.users import PasswordRecord, Permission
from amqp10broker.config import Config
from amqp10broker.config.records import DEFAULT_USERS
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.security.passwords import plain_record
from amqp10broker.security.tls import TlsSettings, Verify, server_context

ADMINISTRATOR: Final = "administrator"


def furnish(
    catalog: Catalog, config: Config, make_password: Callable[[str], PasswordRecord]
) -> frozenset[str]:
    """Put what the configuration names into an empty catalog.

    Configured users may do everything in every virtual host that is there at start. The default ones are
    not for a broker that gets its users from a definitions file, whose administrator may have deleted
    guest, or given it another password.

    Args:
        catalog: empty so far.
        config: what to put in.
        make_password: makes the record of a password that the definitions file holds in plain.

    Returns:
        Names of the configuration's users that are now there.

    Raises:
        ConfigError: the definitions file cannot be read or holds something that cannot be.
    """
    if catalog.find_vhost(config.default_vhost) is None:
        catalog.add_vhost(config.default_vhost)
    if config.definitions is not None:
        _import(catalog, config.definitions, make_password)
    users = () if len(catalog.users) and config.users == DEFAULT_USERS else config.users
    for user in users:
        record = plain_record(user.password)
        if catalog.users.find(user.name) is None:
            catalog.users.add(user.name, record, tags={ADMINISTRATOR})
        else:
            catalog.users.set_password(user.name, record)
        for name in catalog.vhosts:
            catalog.set_permission(user.name, name, Permission())
    vhost = catalog.lookup_vhost(config.default_vhost)
    for queue in config.queues:
        vhost.declare(queue.name, durable=queue.durable, arguments=queue.arguments)
    return frozenset(user.name for user in users)


def _import(catalog: Catalog, path: str, make_password: Callable[[str], PasswordRecord]) -> None:
    source = f"definitions file {path}"
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except OSError as error:
        raise ConfigError(source, f"cannot be read: {error.strerror}", "must be a JSON file") from error
    except ValueError as error:
        raise ConfigError(source, f"is not JSON: {error}", "must be what RabbitMQ exports") from error
    try:
        definitions.load(document, catalog, make_password=make_password)
    except BrokerError as error:
        raise ConfigError(source, f"cannot be imported: {error}", "nothing of it was taken over") from error


def tls_context(config: Config) -> ssl.SSLContext | None:
    """The context of the TLS listener; None without one.

    Raises:
        ConfigError: a file cannot be read or is not what it should be.
    """
    if config.tls_certificate is None:
        return None
    return server_context(
        TlsSettings(
            certificate_file=config.tls_certificate,
            key_file=config.tls_key,
            key_password=config.tls_key_password,
            ca_file=config.tls_ca,
            verify=Verify(config.tls_verify),
            minimum_version=config.tls_minimum_version,
        )
    )


def read_field_table(data: bytes) -> Mapping[str, object] | None:
    """The pairs of a field table without its length, as AMQPLAIN sends it; None if it is none."""
    try:
        table, end = decode_table(len(data).to_bytes(4, "big") + data, 0)
    except DecodeError:
        return None
    return table if end == len(data) + 4 else None
