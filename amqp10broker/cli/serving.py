"""``serve``: its options, from the table of settings, and the configuration that they make."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.config.setting_types import Setting
from amqp10broker.config.settings import FLOW_SETTINGS, SETTINGS, Config

_FIRST: Final = """
    host port data_dir log_level log_format trace_frames admin_socket ready_file container_id
"""
_CLUSTER: Final = """
    node_name cluster_port cluster_nodes cluster_target_size cluster_secret_file cluster_suspect_ms
    cluster_decide_ms cluster_plaintext cluster_tls_cert_file cluster_tls_key_file cluster_tls_ca_file
    discard_my_data
"""
_HTTP: Final = """
    http http_port http_optional http_host http_tls http_path_prefix http_cors_origins http_body_bytes_max
    collect_statistics_interval_ms http_connection_max websocket websocket_on_port websocket_origins
    prometheus prometheus_port prometheus_optional
"""
_GROUPS: Final = {
    "HTTP API": _HTTP.split(),
    "OpenTelemetry": [name for name in SETTINGS if name.startswith("otel_")],
    "tokens (OAuth 2)": [name for name in SETTINGS if name.startswith("oauth2_")],
    "cluster": _CLUSTER.split(),
}
HTTP_PORT_ABOVE: Final = 10_000
"""Default distance of the HTTP port from that of AMQP, as of RabbitMQ's 15672 from 5672."""
PROMETHEUS_PORT_ABOVE: Final = 10_020
"""The same of the port of metrics, RabbitMQ's 15692."""
# Descriptions of defaults that read badly: an empty or missing value with a meaning.
_DEFAULTS_IN_WORDS: Final = {
    "container_id": "amqp10broker@HOSTNAME",
    "admin_socket": "PORT.sock in a private directory",
    "cluster_tls_key_file": "the file of cluster_tls_cert_file",
    "tls_key": "the file of tls_certificate",
    "emulate": "the behaviour of 4.2 with what 4.3 adds, and the version number of 4.3",
    "http_port": f"port + {HTTP_PORT_ABOVE}, if it is free",
    "http_host": "that of host",
    "prometheus_port": f"port + {PROMETHEUS_PORT_ABOVE}, if it is free",
    "oauth2_scope_prefix": "oauth2_resource_server_id and a dot",
    "oauth2_issuer": "any",
    "oauth2_jwks_ca_file": "the system's",
    "record_run": "broker-TIME-NUMBER",
    "disk_free_limit": "50MB; none without a data folder",
}


def _arguments(parser: Parser) -> None:
    defaults = Config()
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file in TOML; its keys are the names of the options with _ instead of -",
    )
    parser.add_argument(
        "--user",
        action="append",
        metavar="NAME:PASSWORD",
        help="a user with a password, repeatable; it replaces all other users. Others on this machine can "
        "see it in the process list: prefer [[user]] in the configuration file (default: guest:guest, "
        "from this machine only)",
    )
    for name in _FIRST.split():
        _add_setting(parser, SETTINGS[name], getattr(defaults, name))
    flow = parser.add_argument_group("flow control")
    for name, setting in FLOW_SETTINGS.items():
        _add_setting(flow, setting, getattr(defaults.flow, name))
    elsewhere = {*_FIRST.split(), *chain.from_iterable(_GROUPS.values()), "test_mode", *FLOW_SETTINGS}
    limits = parser.add_argument_group("limits and behaviour")
    for name, setting in SETTINGS.items():
        if name not in elsewhere:
            _add_setting(limits, setting, getattr(defaults, name))
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_setting(group, SETTINGS[name], getattr(defaults, name))
    testing = parser.add_argument_group(
        "for tests only",
        "With --test-mode, 'amqp10broker fault inject' makes the broker commit faults; 'fault list' and "
        "'fault lift' list and end them.",
    )
    _add_setting(testing, SETTINGS["test_mode"], defaults.test_mode)
    testing.add_argument(
        "--confirm-delay",
        action="append",
        metavar="QUEUE=MS",
        help="delay the confirms of queues with that name or pattern, repeatable; needs --test-mode",
    )
    testing.add_argument(
        "--sync-delay",
        metavar="MS",
        help="delay each sync of the data folder, as a slow disk does; needs --test-mode",
    )


_SWITCHED: Final[Mapping[object, str]] = {True: " (default: on)", False: " (default: off)"}


def _add_setting(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, setting: Setting, default: object
) -> None:
    # The text is parsed with the other sources, so that its errors read like theirs.
    if setting.kind is bool:
        parser.add_argument(
            setting.flag,
            action=argparse.BooleanOptionalAction,
            default=None,
            dest=setting.name,
            help=setting.help.replace("%", "%%") + _SWITCHED.get(default, ""),
        )
        return
    shown = _DEFAULTS_IN_WORDS.get(setting.name, "none" if default in (None, "") else default)
    notes = [f"default: {shown}"]
    if setting.choices:
        notes.insert(0, ", ".join(setting.choices))
    if setting.zero_means:
        notes.insert(0, f"0: {setting.zero_means}")
    parser.add_argument(
        setting.flag,
        dest=setting.name,
        metavar="N" if setting.kind is int else "TEXT",
        help=f"{setting.help} ({'; '.join(notes)})".replace("%", "%%"),
    )


def config_of(arguments: argparse.Namespace) -> Config:
    flags = {name: getattr(arguments, name) for name in (*SETTINGS, "user", "confirm_delay", "sync_delay")}
    config = Config.load(file=arguments.config, environ=os.environ, flags=flags)
    # A default port that is in use must not prevent the start of a second broker.
    if config.http and config.http_port is None:
        config = replace(config, http_port=_above(config, HTTP_PORT_ABOVE), http_optional=True)
    if config.http and config.prometheus and config.prometheus_port is None:
        port = _above(config, PROMETHEUS_PORT_ABOVE)
        config = replace(config, prometheus_port=port, prometheus_optional=True)
    return config


def _above(config: Config, offset: int) -> int:
    port = config.port + offset
    return port if config.port and port <= 65_535 else 0


def _serve(arguments: argparse.Namespace) -> int:
    if arguments.bare and SETTINGS["log_level"].variable not in os.environ:
        arguments.log_level = "warning"
    config = config_of(arguments)
    # Imports make no garbage, and their objects stay: the collector need not walk them, a tenth of a start.
    gc.disable()
    from amqp10broker.cli import serve  # Trio and structlog: for this command only

    if serve.COUNTS_REFERENCES:
        gc.freeze()
    gc.enable()
    return serve.run(config, announce=serve.welcome) if arguments.bare else serve.run(config)


COMMANDS: Final = (
    Command(
        "serve",
        _arguments,
        _serve,
        "Run the broker until it receives SIGTERM or Ctrl-C. An option overrides its environment variable "
        "(AMQP10BROKER_PORT for --port), which overrides the configuration file.",
    ),
)
