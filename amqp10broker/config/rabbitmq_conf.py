"""RabbitMQ's configuration: rabbitmq.conf, and the environment of its image, as settings of this broker.

`ROWS` is the one table of equals. A key that has none is named in a warning with the reason, so that a
file is taken as it is. Source: RabbitMQ's configuration guide and the README of its image.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from amqp10broker.config.load import Given, build, read_environment, read_flags
from amqp10broker.config.records import SETTINGS, Config, User
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, closest

_LINE: Final = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=\s*(.*?)\s*$")


def _milliseconds(written: str) -> str:
    return str(int(written) * 1_000)


def _port(written: str) -> str:
    return written.rpartition(":")[2]


def _switch(written: str) -> str:
    return {"on": "true", "off": "false"}.get(written, written)


@dataclass(frozen=True, slots=True)
class Row:
    """A key of rabbitmq.conf. `setting`: its equal; empty if there is none, with the reason in `note`."""

    key: str
    setting: str = ""
    convert: Callable[[str], str] = str
    note: str = ""


_LISTS: Final = "'amqp10broker rabbitmq-server --keys' lists those that have one"
_NO_STREAM_PROTOCOL: Final = "streams are served over AMQP"
_SAME: Final = (
    *("default_vhost", "default_queue_type", "channel_max", "connection_max"),
    *("session_max_per_connection", "link_max_per_session", "consumer_max_per_channel"),
    *("queue_leader_locator", "max_link_credit", "max_incoming_window", "max_queue_credit"),
)
"""Keys that are settings of the same name."""
ROWS: Final = (
    *(Row(name, name) for name in _SAME),
    Row("listeners.tcp.*", "port", _port),
    Row("listeners.ssl.*", "tls_port", _port),
    Row("ssl_options.certfile", "tls_certificate"),
    Row("ssl_options.keyfile", "tls_key"),
    Row("ssl_options.cacertfile", "tls_ca"),
    Row("ssl_options.password", "tls_key_password"),
    Row("vm_memory_high_watermark.relative", "vm_memory_high_watermark"),
    Row("vm_memory_high_watermark.absolute", "vm_memory_high_watermark"),
    Row("disk_free_limit.absolute", "disk_free_limit"),
    Row("disk_free_limit.relative", "disk_free_limit", "mem_relative {}".format),
    Row("max_message_size", "max_message_size_bytes"),
    Row("frame_max", "max_frame_size_bytes"),
    Row("heartbeat", "idle_timeout_ms", _milliseconds),
    Row("handshake_timeout", "handshake_timeout_ms"),
    Row("anonymous_login_user", "anonymous_login_user", lambda name: "" if name == "none" else name),
    Row("collect_statistics_interval", "collect_statistics_interval_ms"),
    Row("load_definitions", "definitions"),
    Row("management.load_definitions", "definitions"),
    Row("definitions.local.path", "definitions"),
    Row("management.tcp.port", "http_port"),
    Row("management.tcp.ip", "http_host"),
    Row("management.path_prefix", "http_path_prefix"),
    Row("prometheus.tcp.port", "prometheus_port"),
    Row("log.level", "log_level"),
    Row("log.console.level", "log_level"),
    Row("log.console.formatter", "log_format", lambda form: "json" if form == "json" else "console"),
    Row("deprecated_features.permit.global_qos", "permit_global_qos"),
    Row("deprecated_features.permit.transient_nonexcl_queues", "permit_transient_nonexcl_queues"),
    Row("deprecated_features.permit.amqp_address_v1", "permit_amqp_address_v1"),
    Row("deprecated_features.permit.queue_master_locator", "permit_queue_master_locator"),
    Row("auth_oauth2.resource_server_id", "oauth2_resource_server_id"),
    Row("auth_oauth2.jwks_uri", "oauth2_jwks_uri"),
    Row("auth_oauth2.issuer", "oauth2_issuer"),
    Row("auth_oauth2.scope_prefix", "oauth2_scope_prefix"),
    Row("auth_oauth2.additional_scopes_key", "oauth2_additional_scopes_key"),
    Row("auth_oauth2.verify_aud", "oauth2_verify_aud"),
    Row("quorum_queue.initial_cluster_size", "quorum_initial_group_size"),
    Row("quorum_queue.continuous_membership_reconciliation.enabled", "quorum_reconciliation", _switch),
    Row(
        "quorum_queue.continuous_membership_reconciliation.target_group_size",
        "quorum_reconciliation_target_group_size",
    ),
    Row(
        "quorum_queue.continuous_membership_reconciliation.auto_remove",
        "quorum_reconciliation_auto_remove",
        _switch,
    ),
    Row("quorum_queue.continuous_membership_reconciliation.interval", "quorum_reconciliation_interval_ms"),
    Row(
        "quorum_queue.continuous_membership_reconciliation.trigger_interval",
        "quorum_reconciliation_trigger_interval_ms",
    ),
    Row(
        "quorum_queue.property_equivalence.relaxed_checks_on_redeclaration",
        "quorum_relaxed_checks_on_redeclaration",
        _switch,
    ),
    Row("quorum_queue.commands_soft_limit", "credit_flow_initial"),
    Row("raft.segment_max_entries", note="the journal has files by size, see journal_file_bytes"),
    Row("raft.wal_max_size_bytes", "journal_file_bytes"),
    Row("dead_letter_worker_consumer_prefetch", "dead_letter_prefetch"),
    Row("cluster_name", note="set it with: amqp10broker cluster set-name NAME"),
    Row("cluster_formation.*", note="write cluster_nodes, docs/cluster.md"),
    Row("consumer_timeout", note="write the policy key consumer-timeout"),
    Row("log.*", note="the log goes to standard error"),
    Row("stream.*", note=_NO_STREAM_PROTOCOL),
    Row("mqtt.*", note="MQTT is not served"),
    Row("stomp.*", note="STOMP is not served"),
)
"""Keys without ``rabbit.``; ``*`` stands for any rest. The first row that matches counts."""
IMAGE_VARIABLES: Final[Mapping[str, str]] = {
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
    "RABBITMQ_NODE_PORT": "listeners.tcp.default",
    "RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "vm_memory_high_watermark.relative",
}
_IN_FORM: Final = (
    *("ssl_options.verify", "ssl_options.fail_if_no_peer_cert", "default_user", "default_pass"),
    *("default_permissions", "loopback_users", "auth_backends", "log.console"),
)
"""How keys begin that `_special` reads, or that say what is so here."""


def equal_of(name: str) -> str | None:
    """Return what to write in place of RabbitMQ's name of a setting, as a sentence; None if it is not one."""
    row = _row(name.removeprefix("rabbit."))
    if row is None:
        return None
    return f"RabbitMQ's {row.key} is {row.setting} here" if row.setting else f"it has no equal: {row.note}"


def load(
    files: Iterable[tuple[str, str]], environ: Mapping[str, str], flags: Mapping[str, object]
) -> tuple[Config, list[str]]:
    """Make a configuration of rabbitmq.conf and the environment of RabbitMQ's image.

    Args:
        files: name and text of each file, in the order in which later ones take precedence.
        environ: ``RABBITMQ_...``, and ``AMQP10BROKER_...``, which take precedence.
        flags: settings of this broker, which take precedence over both.

    Returns the configuration, and one warning for all keys that have no equal. Raises `ConfigError` if a line
    is not ``key = value``, or a value is not allowed.
    """
    keys = {key: given for name, text in files for key, given in _lines(name, text)}
    for variable, key in IMAGE_VARIABLES.items():
        if variable in environ:
            keys[key] = Given(environ[variable], f"variable {variable}")
    given = _special(keys)
    unknown = []
    for key, written in keys.items():
        row = _row(key)
        if row is None or not row.setting:
            if not key.startswith(_IN_FORM):
                meant = closest(key, [each.key for each in ROWS])
                said = row.note if row is not None else f"did you mean {meant}?" if meant else ""
                unknown.append(f"{key} ({said})" if said else key)
            continue
        setting = SETTINGS[row.setting]
        try:
            value = row.convert(str(written.value))
        except ValueError:
            value = str(written.value)
        given[row.setting] = Given(setting.parse(value, written.source), written.source)
        if row.key == "listeners.tcp.*" and ":" in str(written.value):
            given["host"] = Given(str(written.value).rpartition(":")[0].strip("[]"), written.source)
    given |= read_environment(environ)
    given |= read_flags(flags)
    warnings = (
        [f"settings of rabbitmq.conf without an equal: {', '.join(sorted(unknown))}; take them out, {_LISTS}"]
        if unknown
        else []
    )
    return build(given), warnings


def _row(key: str) -> Row | None:
    for row in ROWS:
        if row.key == key or (row.key.endswith("*") and key.startswith(row.key[:-1])):
            return row
    return None


def _lines(name: str, text: str) -> Iterator[tuple[str, Given]]:
    for number, line in enumerate(text.splitlines(), 1):
        written = line.partition("#")[0] if "'" not in line else line
        if not written.strip():
            continue
        found = _LINE.fullmatch(written)
        if found is None:
            raise ConfigError(f"{name}:{number}", f"is {line.strip()!r}", "write: key = value")
        value = found[2]
        quoted = len(value) > 1 and value[0] == value[-1] == "'"
        yield (
            found[1].removeprefix("rabbit."),
            Given(value[1:-1] if quoted else value, f"{name}:{number}, {found[1]}"),
        )


def _special(keys: Mapping[str, Given]) -> dict[str, Given]:
    """Read the keys that make up a setting together: the user, who may log in from where, the backends."""
    given: dict[str, Any] = {}
    user, password = keys.get("default_user"), keys.get("default_pass")
    if user is not None or password is not None:
        name = "guest" if user is None else user.value
        secret = "guest" if password is None else password.value
        source = (user or password or Given(None, "")).source
        given["users"] = Given((User(name, secret),), source)
    backends = [keys[key] for key in sorted(keys) if key.startswith("auth_backends.")]
    if backends:
        names = {"rabbit_auth_backend_oauth2": "oauth2", "rabbit_auth_backend_internal": "internal"}
        value = ",".join(names.get(each.value, each.value) for each in backends)
        SETTINGS["auth_backends"].check(value, backends[0].source)
        given["auth_backends"] = Given(value, backends[0].source)
    verify = keys.get("ssl_options.verify")
    if verify is not None and verify.value == "verify_peer":
        demanded = keys.get("ssl_options.fail_if_no_peer_cert", verify).value == "true"
        given["tls_verify"] = Given("required" if demanded else "optional", verify.source)
    loopback = keys.get("loopback_users")
    if loopback is not None and loopback.value == "none":
        given["loopback_users"] = Given((), loopback.source)
    allowed = keys.get("loopback_users.guest")
    if allowed is not None and allowed.value == "false":
        given["loopback_users"] = Given((), allowed.source)
    return given
