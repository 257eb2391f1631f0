"""The immutable records of the configuration.

Every record checks itself when it is made, so an existing one is valid. The error of a value from a
program names ``Config.port``; `load` checks first and names file, variable or flag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.config.setting_types import (
    AUTO,
    DISK_FORM,
    MEMORY_FORM,
    SHARE_FORM,
    UINT_MAX,
    Setting,
    describe,
    disk_limit,
    memory_watermark,
    number,
    settings_of,
    share,
    switch,
    text,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import EMULATE_FORM, PERMITTED, Rules, rules_of, version_of
from amqp10broker.errors import ConfigError

if TYPE_CHECKING:
    from os import PathLike


SIGNING_KEYS_FORM: Final = "must be ID=FILE, or several, separated by commas"
SCOPE_ALIASES_FORM: Final = "must be ALIAS=SCOPE SCOPE, or several, separated by commas"


def signing_keys(text: str) -> dict[str, str]:
    """Parse the files of keys, by key id."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in pair.partition("="))
        if not name or not value or name in found:
            raise ValueError(pair)
        found[name] = value
    return found


def scope_aliases(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the replacements of scopes, by alias."""
    return {alias: tuple(scopes.split()) for alias, scopes in signing_keys(text).items()}


QUEUE_NAME_BYTES_MAX: Final = 255
CONFIRM_DELAY_MS_MAX: Final = 3_600_000
_MIB: Final = 1024 * 1024
_HOUR_MS: Final = 3_600_000
LINK_CREDIT: Final = 170
INCOMING_WINDOW: Final = 400
QUEUE_CREDIT: Final = 256


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """The three settings of flow control. Replaced as one value while the broker runs.

    One link alone should not exhaust a session's window or a queue's credit: set `max_link_credit` and
    half of it below `max_queue_credit`, and twice `max_link_credit` below `max_incoming_window`.
    """

    # 170, because a link is topped up at half: at most 85 + 170 = 255 are then unconfirmed, one under 256.
    max_link_credit: int | str = number(
        LINK_CREDIT, "messages that a publisher may send on one link before the broker grants more", word=AUTO
    )
    max_incoming_window: int | str = number(
        INCOMING_WINDOW,
        "transfer frames that a client may send on one session before the broker opens the window again",
        word=AUTO,
    )
    max_queue_credit: int | str = number(
        QUEUE_CREDIT,
        "messages that a session requests from a queue at one time for one consumer; from a quorum queue "
        "up to 8 times as many, if the client reads",
        word=AUTO,
    )

    def __post_init__(self) -> None:
        _check_scalars(self, FLOW_SETTINGS, "FlowSettings")

    @property
    def link_credit(self) -> int:
        """`max_link_credit` as a number: the initial value if it is automatic."""
        return LINK_CREDIT if isinstance(self.max_link_credit, str) else self.max_link_credit

    @property
    def incoming_window(self) -> int:
        return INCOMING_WINDOW if isinstance(self.max_incoming_window, str) else self.max_incoming_window

    @property
    def queue_credit(self) -> int:
        return QUEUE_CREDIT if isinstance(self.max_queue_credit, str) else self.max_queue_credit

    @property
    def automatic(self) -> tuple[str, ...]:
        """Names of the settings with automatic values."""
        return tuple(name for name in FLOW_SETTINGS if getattr(self, name) == AUTO)

    def changed(self, name: str, value: object, *, source: str) -> FlowSettings:
        """Return a copy with one setting replaced. Raises `ConfigError` if there is no such setting, or the
        value is not allowed.
        """
        setting = FLOW_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(
                source,
                f"names {describe(name)}, which cannot be changed while running",
                f"must name one of {', '.join(FLOW_SETTINGS)}",
            )
        setting.check(value, source)
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class FlowOverride:
    """Other flow settings for some clients or addresses.

    A pattern is a shell pattern (``*``, ``?``, ``[ab]``), case-sensitive, on the whole text. Both given:
    both must match. `max_incoming_window` belongs to sessions; with an address pattern it applies to a
    session from the attach of such a link on.
    """

    address: str | None = text(None, "pattern for the address in the client's attach")
    container: str | None = text(None, "pattern for the client's container-id")
    max_link_credit: int | str | None = number(None, "as the setting of that name", word=AUTO)
    max_incoming_window: int | str | None = number(None, "as the setting of that name", word=AUTO)
    max_queue_credit: int | str | None = number(None, "as the setting of that name", word=AUTO)

    def __post_init__(self) -> None:
        _check_scalars(self, OVERRIDE_SETTINGS, "FlowOverride")
        if not self.changes():
            raise ConfigError(
                "FlowOverride", "changes nothing", f"must give at least one of {', '.join(FLOW_SETTINGS)}"
            )

    def matches(self, container_id: str, address: str | None) -> bool:
        """Return whether the override applies to a link; with `address` None, to a session without links."""
        if self.container is not None and not fnmatchcase(container_id, self.container):
            return False
        if self.address is None:
            return True
        return address is not None and fnmatchcase(address, self.address)

    def changes(self) -> dict[str, int | str]:
        """Return the settings that this override contains."""
        given: dict[str, int | str] = {}
        for name in FLOW_SETTINGS:
            value: int | str | None = getattr(self, name)
            if value is not None:
                given[name] = value
        return given


@dataclass(frozen=True, slots=True)
class User:
    """A user's name and password. The password does not appear in the repr, so not in logs either."""

    name: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        # SASL PLAIN separates the two by a NUL (RFC 4616), so neither can contain one.
        for what, value in (("name", self.name), ("password", self.password)):
            if not isinstance(value, str) or not value or "\0" in value:
                shown = describe(value) if what == "name" else "empty, not a string, or holds a NUL"
                raise ConfigError(f"User.{what}", f"is {shown}", "must be a string, not empty, without NUL")


DEFAULT_USERS: Final = (User("guest", "guest"),)
"""The users without any in the configuration or in a definitions file."""


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue that exists from the start."""

    name: str
    durable: bool = True
    arguments: Mapping[str, object] = field(default_factory=dict, hash=False)
    """x-arguments by name, which the queue's kind checks. Not to be changed."""

    def __post_init__(self) -> None:
        size = len(self.name.encode()) if isinstance(self.name, str) else 0
        if not 1 <= size <= QUEUE_NAME_BYTES_MAX:
            raise ConfigError(
                "QueueDeclaration.name",
                f"is {describe(self.name)}",
                f"must be a string of 1 to {QUEUE_NAME_BYTES_MAX} bytes in UTF-8",
            )
        if type(self.durable) is not bool:
            raise ConfigError(
                "QueueDeclaration.durable", f"is {describe(self.durable)}", "must be true or false"
            )
        if not isinstance(self.arguments, Mapping):
            raise ConfigError(
                "QueueDeclaration.arguments", f"is {describe(self.arguments)}", "must be a table"
            )
        for name, value in self.arguments.items():
            if not isinstance(value, str | int | float | list):
                raise ConfigError(
                    f"QueueDeclaration.arguments {name}",
                    f"is {describe(value)}",
                    "must be a string, a number, true or false, or a list",
                )
        object.__setattr__(self, "arguments", dict(self.arguments))


@dataclass(frozen=True, slots=True)
class FaultInjection:
    """Injected faults, for tests and benchmarks. Allowed with `Config.test_mode` only."""

    confirm_delay_ms: tuple[tuple[str, int], ...] = ()
    """(queue name pattern, milliseconds) by which confirms of that queue are delayed."""
    sync_delay_ms: int = 0
    """Additional milliseconds of each sync of the journal, to imitate a slow disk."""

    def __post_init__(self) -> None:
        for pattern, delay_ms in self.confirm_delay_ms:
            QUEUE_PATTERN.check(pattern, "FaultInjection.confirm_delay_ms")
            CONFIRM_DELAY.check(delay_ms, "FaultInjection.confirm_delay_ms")
        CONFIRM_DELAY.check(self.sync_delay_ms, "FaultInjection.sync_delay_ms")

    def __bool__(self) -> bool:
        return bool(self.confirm_delay_ms or self.sync_delay_ms)

    def confirm_delay_ms_for(self, queue: str) -> int:
        """Return the delay of a queue's confirms; 0 for none. The last pattern that matches counts."""
        for pattern, delay_ms in reversed(self.confirm_delay_ms):
            if fnmatchcase(queue, pattern):
                return delay_ms
        return 0


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a broker. ``Config()`` is RabbitMQ's behaviour on the usual port. Raises `ConfigError`
    if a value is not allowed; the message has the allowed ones.
    """

    host: str = text(
        "localhost", "address to listen on, or a host name: the broker then listens on all its addresses"
    )
    port: int = number(5672, "TCP port to listen on; 0 takes any free port", within=(0, 65_535))

    flow: FlowSettings = field(default_factory=FlowSettings)
    overrides: tuple[FlowOverride, ...] = ()
    """Later ones take precedence, setting by setting."""
    auto_credit_max: int = number(
        16_384, "upper limit of max_link_credit and max_queue_credit if they are auto"
    )
    auto_window_max: int = number(65_536, "upper limit of max_incoming_window if it is auto")
    auto_credit_max_bytes: int = number(
        8 * _MIB,
        "upper limit in bytes of max_link_credit and max_queue_credit if they are auto: it is divided by "
        "the size of the largest recent message; the credit is never below the default",
    )

    max_message_size_bytes: int = number(
        16 * _MIB, "size of the largest message that the broker accepts, in bytes", within=(1, 512 * _MIB)
    )
    unfinished_bytes_max: int = number(
        128 * _MIB,
        "bytes of unfinished messages that the broker stores for one connection; at least twice the "
        "largest message",
    )
    unfinished_bytes_max_per_node: int = number(
        1024 * _MIB,
        "the same for all connections of this node together; half of it for all connections of one user",
    )
    max_frame_size_bytes: int = number(
        131_072,
        "size of the largest frame that the broker accepts, in bytes",
        within=(512, UINT_MAX),
        zero_means=f"the protocol's maximum, {UINT_MAX}",
    )
    session_max_per_connection: int = number(64, "sessions that one connection may have", within=(1, 65_536))
    link_max_per_session: int = number(256, "links that one session may have")
    transactions_max_per_connection: int = number(
        256, "transactions of AMQP 1.0 that one connection may have open", within=(1, 65_536)
    )
    transaction_max_messages: int = number(
        100_000, "messages that one transaction of AMQP 1.0 may post; the broker rolls back one with more"
    )
    transaction_max_bytes: int = number(
        64 * _MIB,
        "bytes of messages that one transaction of AMQP 1.0 may post; the broker rolls back one with more",
    )
    transaction_timeout_ms: int = number(
        300_000,
        "time in ms from the first operation of a transaction of AMQP 1.0 until the broker rolls it back "
        "if it is still open",
        zero_means="no limit",
    )
    suspended_links_max: int = number(
        1_000,
        "suspended links of AMQP 1.0 that the broker stores for one user; further links end when they are "
        "detached",
        within=(1, 1_000_000),
        zero_means="links are not stored",
    )
    suspended_link_timeout_max_s: int = number(
        3_600,
        "longest time in seconds for which the broker stores a suspended link; a longer timeout that a "
        "client requests is lowered to it",
        zero_means="as long as the client requests, also with expiry-policy never",
    )
    connection_max: int = number(
        10_000,
        "connections that may be open at one time; the broker closes further ones",
        within=(1, 1_000_000),
    )
    channel_max: int = number(
        2_047,
        "channels that one AMQP 0-9-1 connection may have open, and the highest channel number",
        within=(1, 65_535),
    )
    consumer_max_per_channel: int = number(
        0, "consumers that one AMQP 0-9-1 channel may have", zero_means="no limit"
    )
    credit_flow_initial: int = number(
        400,
        "AMQP 0-9-1: credit_flow, messages that a connection's reader may pass to a channel, and a "
        "channel to a queue, before they are handled",
    )
    credit_flow_more_after: int = number(
        200,
        "AMQP 0-9-1: credit_flow, messages that a channel or queue handles before it grants as many again; "
        "at most credit_flow_initial",
    )
    selector_scan_max: int = number(
        1_000,
        "messages that a queue examines for consumers with a selector, and for browsers, in one iteration "
        "of its task",
        within=(1, 1_000_000),
    )
    emulate: str | None = text(
        None,
        "version of RabbitMQ whose behaviour and version number clients see: 3.13, 4.0, 4.2 or 4.3",
        reads=version_of,
        form=EMULATE_FORM,
    )
    permit_global_qos: bool | None = switch(
        None,
        "AMQP 0-9-1: basic.qos with global=true limits the whole channel; off: it works as with "
        "global=false (default: as in the emulated version)",
    )
    permit_transient_nonexcl_queues: bool | None = switch(
        None, "permit queues that are neither durable nor exclusive (default: as in the emulated version)"
    )
    permit_amqp_address_v1: bool | None = switch(
        None, "AMQP 1.0: permit a bare queue name as an address (default: as in the emulated version)"
    )
    permit_queue_master_locator: bool | None = switch(
        None, "permit the queue argument x-queue-master-locator (default: as in the emulated version)"
    )
    idle_timeout_ms: int = number(
        60_000,
        "time in ms without a frame from a client after which the broker closes its connection",
        within=(1_000, UINT_MAX),
        zero_means="never",
    )
    handshake_timeout_ms: int = number(
        10_000, "time in ms that a client has from the TCP connection to its open frame", within=(1, _HOUR_MS)
    )
    auth_failure_delay_ms: int = number(
        1_000, "time in ms that the broker waits before it answers a failed login", within=(0, 60_000)
    )
    shutdown_timeout_ms: int = number(
        10_000,
        "time in ms that clients have to close their connections when the broker stops",
        within=(0, _HOUR_MS),
    )
    writer_buffer_bytes: int = number(
        65_536,
        "bytes of transfers of one session that may wait in the connection's output buffer",
        within=(1, 1024 * _MIB),
    )

    data_dir: str | None = text(
        None, "folder for durable data, made if it does not exist; without it everything is in memory"
    )
    vm_memory_high_watermark: str = text(
        "0.6",
        "memory use of the broker process above which publishers are blocked: a share of the memory that "
        "it may use (0.6), or an amount (512MB, 1GiB)",
        reads=memory_watermark,
        form=MEMORY_FORM,
    )
    disk_free_limit: str | None = text(
        None,
        "free space on the data folder's disk below which publishers are blocked: an amount, or a multiple "
        "of the memory that the broker may use ('mem_relative 1.5')",
        reads=disk_limit,
        form=DISK_FORM,
    )

    record: str | None = text(
        None,
        "folder for a recording of flow events, made if it does not exist; needs pyarrow (extra 'record')",
    )
    record_every: int = number(
        50, "time in ms between two samples of all links while flow events are recorded", within=(10, 1_000)
    )
    record_run: str | None = text(
        None,
        "name of the recorded run; if the folder has a run of this name, as after a restart, it becomes "
        "NAME-2, NAME-3, ...",
    )

    users: tuple[User, ...] = DEFAULT_USERS
    loopback_users: tuple[str, ...] = ("guest",)
    """Names that may log in from this machine only."""
    anonymous_login_user: str = text(
        "guest", "user that SASL ANONYMOUS logs in as; empty turns ANONYMOUS off", may_be_empty=True
    )

    password_hash_export: str = text(
        "none",
        "second hash that the broker stores when a password is set, beside argon2id: none, or a salted "
        "SHA-256 (sha256), which RabbitMQ can import but from which a password is guessed faster",
        choices=("none", "sha256"),
    )
    auth_backends: str = text(
        "internal",
        "authentication backends, tried in this order: the broker's users with their passwords (internal), "
        "tokens of OAuth 2 (oauth2)",
        choices=("internal", "oauth2", "oauth2,internal", "internal,oauth2"),
    )
    oauth2_resource_server_id: str | None = text(
        None,
        "name of this broker at the authorization server: the audience of tokens, and the default "
        "prefix of their scopes",
    )
    oauth2_scope_prefix: str | None = text(
        None, "prefix of scopes; an empty value means no prefix", may_be_empty=True
    )
    oauth2_additional_scopes_key: str = text(
        "",
        "claims that contain scopes, in addition to 'scope', separated by commas: roles,realm_access.roles",
        may_be_empty=True,
    )
    oauth2_scope_aliases: str = text(
        "",
        "aliases of scopes: admin=rabbitmq.tag:administrator rabbitmq.read:*/*,other=...",
        reads=scope_aliases,
        form=SCOPE_ALIASES_FORM,
    )
    oauth2_preferred_username_claims: str = text(
        "preferred_username,sub,client_id",
        "claims that contain the user's name, separated by commas; the first that is present counts",
    )
    oauth2_issuer: str | None = text(None, "issuer that a token must name in its claim 'iss'")
    oauth2_verify_aud: bool = switch(True, "a token must name oauth2_resource_server_id in its claim 'aud'")
    oauth2_require_exp: bool = switch(True, "a token must have the claim 'exp', the time at which it expires")
    oauth2_leeway_ms: int = number(
        0,
        "difference in ms that the broker allows between its clock and that of the authorization server",
        within=(0, 600_000),
    )
    oauth2_algorithms: str = text(
        "RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512,Ed25519,EdDSA",
        "signature algorithms that the broker accepts; HS256, HS384 and HS512 only if they are listed",
    )
    oauth2_default_key: str | None = text(
        None,
        "file with the key for tokens without a key id: a public key in PEM format, or the secret for HS256",
    )
    oauth2_signing_keys: str = text(
        "", "files with keys, by key id: ID=FILE,ID=FILE", reads=signing_keys, form=SIGNING_KEYS_FORM
    )
    oauth2_jwks_uri: str | None = text(None, "URL of the authorization server's key set: https://...")
    oauth2_jwks_ca_file: str | None = text(
        None, "PEM file with the certificate authorities that the broker trusts for oauth2_jwks_uri"
    )
    oauth2_jwks_interval_ms: int = number(
        10_000, "least time in ms between two downloads of the key set", within=(1_000, _HOUR_MS)
    )

    plain_needs_tls: bool = switch(
        False, "offer SASL PLAIN and AMQPLAIN on TLS connections only; SCRAM-SHA-256 is offered always"
    )

    tls_certificate: str | None = text(
        None,
        "PEM file with the broker's certificate and its chain; if it is given, the broker serves TLS "
        "on tls_port",
    )
    tls_port: int = number(5671, "TCP port for TLS; 0 takes any free port", within=(0, 65_535))
    tls_key: str | None = text(None, "PEM file with the broker's private key")
    tls_key_password: str | None = text(
        None,
        "password of the private key; if it is given as an option, others on this machine can see it in the "
        "process list",
        secret=True,
    )
    tls_ca: str | None = text(
        None, "PEM file with the certificate authorities that the broker trusts for clients' certificates"
    )
    tls_verify: str = text(
        "none",
        "whether the broker requests a certificate from clients, and requires one",
        choices=("none", "optional", "required"),
    )
    tls_minimum_version: str = text(
        "1.2", "oldest version of TLS that the broker accepts", choices=("1.2", "1.3")
    )
    tls_user_from: str = text(
        "common_name",
        "part of a client's certificate that is the user name for SASL EXTERNAL",
        choices=("common_name", "distinguished_name", "san_dns", "san_email", "san_uri"),
    )

    http: bool = switch(True, "serve the HTTP API and the page at http_port")
    http_port: int | None = number(
        None, "TCP port of the HTTP API; 0 takes any free port", within=(0, 65_535)
    )
    http_optional: bool = switch(False, "start without the HTTP API if its port is in use")
    http_host: str | None = text(None, "address or host name to listen on for HTTP")
    http_tls: bool = switch(False, "serve HTTPS at http_port, with tls_certificate")
    http_path_prefix: str = text("", "path in front of /api, such as /broker", may_be_empty=True)
    http_cors_origins: str = text(
        "",
        "origins of web pages that may use the HTTP API, separated by commas: https://host:port, or * for "
        "all origins, without a login",
        may_be_empty=True,
    )
    collect_statistics_interval_ms: int = number(
        5_000,
        "time in ms between two samples of rates, while HTTP clients request them",
        within=(100, 600_000),
    )
    http_body_bytes_max: int = number(
        20_000_000, "size of the largest body of an HTTP request, in bytes", within=(1_000, 1024 * _MIB)
    )
    http_connection_max: int = number(
        1_000,
        "HTTP connections that may be open at one time; the broker closes further ones",
        within=(1, 100_000),
    )

    websocket: bool = switch(True, "serve AMQP over WebSocket at http_port, at any path")
    websocket_on_port: bool = switch(False, "serve AMQP over WebSocket at port and tls_port too")
    websocket_origins: str = text(
        "*",
        "origins of web pages that may connect over WebSocket, separated by commas: https://host:port, or "
        "* for all",
    )

    prometheus: bool = switch(True, "serve metrics for Prometheus at prometheus_port, without a login")
    prometheus_port: int | None = number(
        None, "TCP port of metrics, on http_host; 0 takes any free port", within=(0, 65_535)
    )
    prometheus_optional: bool = switch(False, "start without metrics if prometheus_port is in use")

    otel_endpoint: str | None = text(
        None,
        "URL of a receiver of OpenTelemetry's OTLP over HTTP: http://127.0.0.1:4318; needs the extra 'otel'",
    )
    otel_traces: bool = switch(True, "export traces of messages to otel_endpoint")
    otel_metrics: bool = switch(True, "export metrics to otel_endpoint")
    otel_service_name: str = text("amqp10broker", "service.name of the exported traces and metrics")
    otel_traces_sampler_ratio: str = text(
        "0",
        "share of the published messages without a trace context for which the broker begins a trace: 0 to 1",
        reads=share,
        form=SHARE_FORM,
    )
    otel_metrics_interval_ms: int = number(
        60_000,
        "time in ms between two exports of metrics to otel_endpoint",
        within=(1_000, _HOUR_MS),
    )

    default_vhost: str = text("/", "virtual host of AMQP 1.0 clients that do not name one")
    default_queue_type: str = text(
        "classic", "type of queues that are declared without a type", choices=("classic", "quorum", "stream")
    )
    classic_confirm: str = text(
        "synced",
        "when durable classic queues confirm persistent messages, unless a policy or argument says "
        "otherwise: after the sync of the disk, or after the write, up to 0.2 s earlier",
        choices=("synced", "written"),
    )
    quorum_relaxed_checks_on_redeclaration: bool = switch(
        False, "permit clients to declare an existing quorum queue again as a classic queue"
    )
    dead_letter_prefetch: int = number(
        32,
        "dead letters of one quorum queue with dead-letter-strategy at-least-once that may be unconfirmed "
        "at a time",
        within=(1, 65_535),
    )
    journal_file_bytes: int = number(
        32 * 1024**2,
        "size of a journal file in bytes; the files are smaller on a small disk",
        within=(1024**2, 512 * 1024**2),
    )
    quorum_initial_group_size: int = number(
        3,
        "initial members of a quorum queue in a cluster, unless x-quorum-initial-group-size is given",
        within=(1, 255),
    )
    queue_leader_locator: str = text(
        "client-local",
        "node of a new queue's leader in a cluster, unless a policy or argument says otherwise: the "
        "client's node, or the node with the fewest leaders",
        choices=("client-local", "balanced"),
    )
    quorum_reconciliation: bool = switch(
        False, "add members to quorum queues automatically, up to their target size"
    )
    quorum_reconciliation_target_group_size: int = number(
        0,
        "target size of quorum queues, unless a policy or argument gives a larger one",
        within=(1, 255),
        zero_means="only that of policies and arguments",
    )
    quorum_reconciliation_auto_remove: bool = switch(
        False, "remove members of quorum queues automatically that are on forgotten nodes"
    )
    quorum_reconciliation_interval_ms: int = number(
        3_600_000, "time in ms between two checks of the members of quorum queues", within=(10, 24 * _HOUR_MS)
    )
    quorum_reconciliation_trigger_interval_ms: int = number(
        10_000,
        "time in ms from an event that may change the members (a node starts or is forgotten, a queue is "
        "declared, a policy is set) to the next check",
        within=(10, _HOUR_MS),
    )
    definitions: str | None = text(
        None,
        "JSON file of definitions (users, virtual hosts, queues, exchanges) as RabbitMQ exports them; "
        "the broker imports it when it starts",
    )
    queues: tuple[QueueDeclaration, ...] = ()
    declare_on_attach: bool = switch(
        True, "an attach to a bare queue name declares a durable classic queue, as in RabbitMQ 4.0"
    )

    container_id: str = text(
        "",
        "container-id that the broker sends in its open frame",
        may_be_empty=True,
    )
    log_level: str = text(
        "info",
        "lowest level of log entries to write",
        choices=("debug", "info", "warning", "error", "critical"),
    )
    log_format: str = text(
        "console", "format of the log: text for people, or JSON for programs", choices=("console", "json")
    )
    record_frames: str | None = text(
        None,
        "folder for recordings of every frame, as JSON without message contents; 'frames print' and "
        "'frames lint' read them",
    )
    trace_frames: bool = switch(False, "write every frame, received or sent, to the log")
    admin_socket: str | None = text(
        None,
        "path of the Unix socket for administrative commands; an empty value turns it off",
        may_be_empty=True,
    )
    ready_file: str | None = text(
        None,
        "file to which the broker writes its ports as JSON when clients can connect, for programs that "
        "start a broker",
    )

    node_name: str | None = text(
        None,
        "name of this node, unique in its cluster; it makes the broker a node of a cluster, see "
        "cluster_nodes",
    )
    cluster_port: int = number(
        0, "TCP port for the other nodes of the cluster", within=(1, 65_535), zero_means="20000 above port"
    )
    cluster_nodes: str | None = text(
        None,
        "nodes of the cluster as NAME=HOST:PORT,... with their cluster ports; the first founds the "
        "cluster, the others join it; a node that is a member already uses the stored addresses",
    )
    cluster_target_size: int = number(
        0,
        "number of nodes at which the cluster is complete; the first node then declares the queues of its "
        "configuration",
        within=(1, 255),
        zero_means="as many as cluster_nodes has",
    )
    cluster_secret_file: str | None = text(
        None, "file with the secret that the nodes share, readable by its owner only"
    )
    cluster_suspect_ms: int = number(
        1_000,
        "time in ms without a message from another node after which this node treats it as down",
        within=(200, 60_000),
    )
    cluster_decide_ms: int = number(
        30_000,
        "time in ms within which a majority of the nodes must commit a change of metadata, and a queue "
        "must have a leader for a client's request; after it the request is refused",
        within=(1_000, 600_000),
    )
    cluster_plaintext: bool = switch(
        False,
        "permit connections without TLS to nodes on other machines; the traffic can then be read on "
        "the network",
    )
    cluster_tls_cert_file: str | None = text(
        None,
        "PEM file with this node's certificate; if it is given, nodes use TLS and verify each other's "
        "certificates",
    )
    cluster_tls_key_file: str | None = text(None, "PEM file with this node's private key")
    cluster_tls_ca_file: str | None = text(
        None, "PEM file with the certificate authorities that nodes trust for each other"
    )
    discard_my_data: bool = switch(
        False,
        "delete the data of this node when it joins a cluster; without this option a node that has "
        "data cannot join",
    )

    rules: Rules = field(init=False, repr=False, compare=False)
    """What the broker does where versions of RabbitMQ differ: of `emulate` and the permits."""

    test_mode: bool = switch(False, "allow fault injection; never in production")
    fault_injection: FaultInjection = field(default_factory=FaultInjection)

    def __post_init__(self) -> None:
        _check_scalars(self, CONFIG_SETTINGS, "Config")
        permits = tuple(getattr(self, f"permit_{row.name}") for row in PERMITTED)
        object.__setattr__(self, "rules", rules_of(self.emulate, permits))
        if self.max_frame_size_bytes == 0:
            object.__setattr__(self, "max_frame_size_bytes", UINT_MAX)
        names = [user.name for user in self.users]
        _check_unique("Config.users", names)
        _check_unique("Config.queues", [queue.name for queue in self.queues])
        if self.anonymous_login_user and self.anonymous_login_user not in names:
            raise ConfigError(
                "Config.anonymous_login_user",
                f"is {describe(self.anonymous_login_user)}, and there is no such user",
                f"must be one of the users ({', '.join(names)}), or empty to turn SASL ANONYMOUS off",
            )
        if self.fault_injection and not self.test_mode:
            raise ConfigError(
                "Config.fault_injection", "is given", "is allowed only together with test_mode (--test-mode)"
            )

    @classmethod
    def load(
        cls,
        *,
        file: str | PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> Config:
        """Merge the sources: flags before environment before file before default.

        Args:
            file: path of a TOML file; None reads the one that ``AMQP10BROKER_CONFIG`` names, if any.
            environ: usually `os.environ`; None ignores the environment.
            flags: command line options by setting name; text is parsed. None values are ignored.

        Raises:
            ConfigError: the file cannot be read, or a source has an unknown name or a bad value.
        """
        from amqp10broker.config.load import load

        return load(file=file, environ=environ or {}, flags=flags or {})

    def flow_for(self, container_id: str, address: str | None) -> FlowSettings:
        """Return the flow settings of one link, or with `address` None of a session. `address`: as attached:
        the source's for a consumer, the target's for a publisher.
        """
        changes: dict[str, Any] = {}
        for override in self.overrides:
            if override.matches(container_id, address):
                changes |= override.changes()
        return replace(self.flow, **changes) if changes else self.flow


def _check_scalars(record: object, settings: Mapping[str, Setting], source: str) -> None:
    for name, setting in settings.items():
        setting.check(getattr(record, name), f"{source}.{name}")


def _check_unique(source: str, names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    repeated = next(name for name in names if names.count(name) > 1)
    raise ConfigError(source, f"has {describe(repeated)} twice", "must give each name once")


FLOW_SETTINGS: Final = settings_of(FlowSettings)
"""The settings that may be changed at runtime."""
OVERRIDE_SETTINGS: Final = settings_of(FlowOverride)
CONFIG_SETTINGS: Final = settings_of(Config)
SETTINGS: Final = {**CONFIG_SETTINGS, **FLOW_SETTINGS}
"""Every scalar setting, each with its own key, variable and flag."""

CONFIRM_DELAY: Final = Setting("ms", int, "delay of confirms in ms", minimum=0, maximum=CONFIRM_DELAY_MS_MAX)
QUEUE_PATTERN: Final = Setting("queue", str, "pattern for the queue's name")


def effective(config: Config) -> str:
    """Return all settings as TOML, one a line, in the order of the documentation, without secrets.

    Users, queues and overrides are left out: the definitions contain declared objects.
    """
    told = {each.name for each in fields(config) if each.repr}
    lines = [_line(name, getattr(config.flow, name)) for name in FLOW_SETTINGS]
    for name in CONFIG_SETTINGS:
        lines.append(_line(name, getattr(config, name)) if name in told else f"# {name} is not shown")
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} is not set"
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"
