"""``rabbitmq-server``: runs the broker by RabbitMQ's configuration, as its image is configured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.config.rabbitmq_conf import ROWS, load
from amqp10broker.errors import ConfigError

CONFIG_FILE: Final = "/etc/rabbitmq/rabbitmq.conf"
CONFIG_FOLDER: Final = "/etc/rabbitmq/conf.d"
STARTED: Final = "Server startup complete"
"""The line of the log for which testcontainers and Helm charts wait."""
DEFAULTS: Final = ("the image", "listeners.tcp.default = 0.0.0.0:5672\nloopback_users.guest = false")
HTTP_PORT: Final = 15_672
PROMETHEUS_PORT: Final = 15_692


def serve(given: Sequence[str]) -> int:
    """Run the broker until a signal stops it; returns the exit code. ``--keys`` prints the known keys.

    The files are ``/etc/rabbitmq/rabbitmq.conf`` and those of ``/etc/rabbitmq/conf.d``, or those that
    ``RABBITMQ_CONFIG_FILE`` and ``RABBITMQ_CONFIG_FILES`` name. As in RabbitMQ's image, clients may connect
    from everywhere, guest too. Raises `ConfigError` if a file cannot be read or has an invalid value.
    """
    if given == ["--keys"]:
        for row in ROWS:
            print(f"{row.key:<70} {row.setting or f'no equal: {row.note}'}")
        return EXIT_OK
    if given:
        raise ConfigError(
            f"rabbitmq-server {given[0]}",
            "is not an option",
            "configure it by rabbitmq.conf or the environment",
        )
    from amqp10broker.cli import serve as serving  # Trio and structlog

    config, warnings = load(_files(), os.environ, {})
    config = replace(
        config,
        http_port=HTTP_PORT if config.http_port is None else config.http_port,
        prometheus_port=PROMETHEUS_PORT if config.prometheus_port is None else config.prometheus_port,
    )
    return serving.run(config, announce=lambda broker: (STARTED,), warnings=warnings)


def _files() -> Iterator[tuple[str, str]]:
    main = Path(os.environ.get("RABBITMQ_CONFIG_FILE", CONFIG_FILE))
    if not main.suffix:
        main = main.with_suffix(".conf")
    folder = Path(os.environ.get("RABBITMQ_CONFIG_FILES", CONFIG_FOLDER))
    yield DEFAULTS
    for path in [main, *sorted(folder.glob("*.conf"))]:
        if path.exists() or (path == main and "RABBITMQ_CONFIG_FILE" in os.environ):
            try:
                yield str(path), path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(str(path), f"cannot be read: {error}", "give a text file") from error
