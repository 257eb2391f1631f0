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


SIGNING_KEYS_FORM: Final = "must be ID=FILE, or several with commas between"
SCOPE_ALIASES_FORM: Final = "must be ALIAS=SCOPE SCOPE, or several with commas between"


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
        LINK_CREDIT, "messages a publisher may send on one link before it is granted more", word=AUTO
    )
    max_incoming_window: int | str = number(
        INCOMING_WINDOW,
        "transfer frames a client may send on one session before the window is re-opened",
        word=AUTO,
    )
    max_queue_credit: int | str = number(
        QUEUE_CREDIT,
        "messages that a session requests from a queue at one time for one consumer; of a quorum queue "
        "up to 8 times as many, if it reads",
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

    address: str | None = text(None, "pattern for the address as the client attached it")
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

    host: str = text("localhost", "address to listen on, or a name: all addresses of it")
    port: int = number(5672, "TCP port to listen on; 0 takes any free port", within=(0, 65_535))

    flow: FlowSettings = field(default_factory=FlowSettings)
    overrides: tuple[FlowOverride, ...] = ()
    """Later ones take precedence, setting by setting."""
    auto_credit_max: int = number(
        16_384, "the most that max_link_credit, and max_queue_credit, become when they are auto"
    )
    auto_window_max: int = number(65_536, "the most that max_incoming_window becomes likewise")
    auto_credit_max_bytes: int = number(
        8 * _MIB,
        "max_link_credit in bytes: as many messages as that, by the size of those that came, or the default",
    )

    max_message_size_bytes: int = number(
        16 * _MIB, "biggest message that is accepted, in bytes", within=(1, 512 * _MIB)
    )
    unfinished_bytes_max: int = number(
        128 * _MIB,
        "bytes one connection may have sent of messages it has not finished; twice the biggest it always may",
    )
    unfinished_bytes_max_per_node: int = number(
        1024 * _MIB, "the same of all connections of this node; those of one user may have half of it"
    )
    max_frame_size_bytes: int = number(
        131_072,
        "biggest frame that is accepted, in bytes",
        within=(512, UINT_MAX),
        zero_means=f"the biggest there is, {UINT_MAX}",
    )
    session_max_per_connection: int = number(64, "sessions that one connection may have", within=(1, 65_536))
    link_max_per_session: int = number(256, "links that one session may have")
    transactions_max_per_connection: int = number(
        256, "transactions of AMQP 1.0 that one connection may have open", within=(1, 65_536)
    )
    transaction_max_messages: int = number(
        100_000, "messages that one transaction of AMQP 1.0 may post; with more it is rolled back"
    )
    transaction_max_bytes: int = number(
        64 * _MIB, "bytes of messages that one transaction of AMQP 1.0 may post; likewise"
    )
    transaction_timeout_ms: int = number(
        300_000,
        "a transaction of AMQP 1.0 that is open so many ms after the first it has done is rolled back",
        zero_means="no limit",
    )
    suspended_links_max: int = number(
        1_000,
        "links of AMQP 1.0 that one user may have which are kept when they are suspended; further ones end "
        "as they are detached",
        within=(1, 1_000_000),
        zero_means="none is kept",
    )
    suspended_link_timeout_max_s: int = number(
        3_600,
        "longest time for which a suspended link is kept, in seconds; clients that ask for more get this",
        zero_means="as long as clients ask for, expiry-policy never included",
    )
    connection_max: int = number(
        10_000, "connections at one time; further ones are closed", within=(1, 1_000_000)
    )
    channel_max: int = number(
        2_047,
        "channels that one AMQP 0-9-1 connection may have; the highest channel number",
        within=(1, 65_535),
    )
    consumer_max_per_channel: int = number(
        0, "consumers that one AMQP 0-9-1 channel may have", zero_means="no limit"
    )
    credit_flow_initial: int = number(
        400, "AMQP 0-9-1: messages a reader may give a channel, and a channel a queue, ahead"
    )
    credit_flow_more_after: int = number(
        200,
        "AMQP 0-9-1: messages handled after which a channel or queue takes as many more, at most all it may",
    )
    selector_scan_max: int = number(
        1_000,
        "messages that selecting and browsing consumers examine in one turn of their queue",
        within=(1, 1_000_000),
    )
    emulate: str | None = text(
        None,
        "version of RabbitMQ that clients see in behaviour and name: 3.13, 4.0, 4.2 or 4.3; default: the "
        "behaviour of 4.2 with what 4.3 adds, and the name of 4.3",
        reads=version_of,
        form=EMULATE_FORM,
    )
    permit_global_qos: bool | None = switch(
        None,
        "AMQP 0-9-1: basic.qos with global=true limits the channel; if not, it counts as global=false; "
        "default: as in the emulated version",
    )
    permit_transient_nonexcl_queues: bool | None = switch(
        None, "queues may be neither durable nor exclusive; default: as in the emulated version"
    )
    permit_amqp_address_v1: bool | None = switch(
        None, "AMQP 1.0: a bare name is the address of a queue; default: as in the emulated version"
    )
    permit_queue_master_locator: bool | None = switch(
        None, "queues may have the argument x-queue-master-locator; default: as in the emulated version"
    )
    idle_timeout_ms: int = number(
        60_000,
        "silence after which a client is taken for dead, in ms",
        within=(1_000, UINT_MAX),
        zero_means="never",
    )
    handshake_timeout_ms: int = number(
        10_000, "time from accepting a connection to its open frame, in ms", within=(1, _HOUR_MS)
    )
    auth_failure_delay_ms: int = number(
        1_000, "wait before a failed login is answered, in ms", within=(0, 60_000)
    )
    shutdown_timeout_ms: int = number(
        10_000, "time that clients have to end in order when the broker stops, in ms", within=(0, _HOUR_MS)
    )
    writer_buffer_bytes: int = number(
        65_536,
        "transfer bytes of one session that may wait in the connection's writer",
        within=(1, 1024 * _MIB),
    )

    data_dir: str | None = text(
        None, "folder for everything that is durable, made if it is not there; without it all is in memory"
    )
    vm_memory_high_watermark: str = text(
        "0.6",
        "memory of this process above which publishers are held back: a share of what it may use (0.6), or "
        "an amount (512MB, 1GiB)",
        reads=memory_watermark,
        form=MEMORY_FORM,
    )
    disk_free_limit: str | None = text(
        None,
        "free space on the data folder's disk below which publishers are held back: an amount, or a multiple "
        "of memory ('mem_relative 1.5')",
        reads=disk_limit,
        form=DISK_FORM,
    )

    record: str | None = text(
        None, "folder to record flow events into, made if it is not there; needs pyarrow (extra 'record')"
    )
    record_every: int = number(
        50, "ms between two looks at everything while flow events are recorded", within=(10, 1_000)
    )
    record_run: str | None = text(
        None,
        "name of the run that is recorded; if the folder has one of this name, as after a restart, it "
        "becomes NAME-2, NAME-3, ...",
    )

    users: tuple[User, ...] = DEFAULT_USERS
    loopback_users: tuple[str, ...] = ("guest",)
    """Names that may log in from this machine only."""
    anonymous_login_user: str = text(
        "guest", "user that SASL ANONYMOUS logs in as; empty turns ANONYMOUS off", may_be_empty=True
    )

    password_hash_export: str = text(
        "none",
        "what is kept of a password that is set beside its argon2id, so that RabbitMQ can take an export: "
        "nothing (none), or a salted SHA-256, from which it can be guessed faster",
        choices=("none", "sha256"),
    )
    auth_backends: str = text(
        "internal",
        "authentication backends, tried in this order: users with passwords (internal), tokens (oauth2)",
        choices=("internal", "oauth2", "oauth2,internal", "internal,oauth2"),
    )
    oauth2_resource_server_id: str | None = text(
        None, "this broker's name at the authority: audience of tokens, and what their scopes begin with"
    )
    oauth2_scope_prefix: str | None = text(
        None, "what scopes begin with; empty: nothing; default: the name and a full stop", may_be_empty=True
    )
    oauth2_additional_scopes_key: str = text(
        "",
        "claims with scopes beside 'scope', with commas between: roles,realm_access.roles",
        may_be_empty=True,
    )
    oauth2_scope_aliases: str = text(
        "",
        "what stands for scopes: admin=rabbitmq.tag:administrator rabbitmq.read:*/*,other=...",
        reads=scope_aliases,
        form=SCOPE_ALIASES_FORM,
    )
    oauth2_preferred_username_claims: str = text(
        "preferred_username,sub,client_id", "claims that may have the user's name, the best first"
    )
    oauth2_issuer: str | None = text(None, "the issuer that a token must have: its claim 'iss'")
    oauth2_verify_aud: bool = switch(True, "a token must name oauth2_resource_server_id in its claim 'aud'")
    oauth2_require_exp: bool = switch(True, "a token must say when it ends")
    oauth2_leeway_ms: int = number(
        0, "by how much the authority's clock may differ, in ms", within=(0, 600_000)
    )
    oauth2_algorithms: str = text(
        "RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512,Ed25519,EdDSA",
        "signatures that are accepted; HS256, HS384 and HS512 must be named",
    )
    oauth2_default_key: str | None = text(
        None, "file with the key of tokens that name none: a public one as PEM, or the secret of HS256"
    )
    oauth2_signing_keys: str = text(
        "", "files with keys by their id: ID=FILE,ID=FILE", reads=signing_keys, form=SIGNING_KEYS_FORM
    )
    oauth2_jwks_uri: str | None = text(None, "where the authority's key set is: https://...")
    oauth2_jwks_ca_file: str | None = text(
        None, "PEM file with the authorities of that server's certificate; default: the system's"
    )
    oauth2_jwks_interval_ms: int = number(
        10_000, "least time between two looks at the key set, in ms", within=(1_000, _HOUR_MS)
    )

    plain_needs_tls: bool = switch(
        False, "offer SASL PLAIN and AMQPLAIN on TLS connections only; SCRAM-SHA-256 is offered always"
    )

    tls_certificate: str | None = text(
        None, "PEM file with our certificate and those up to its root; given: TLS is spoken on tls_port"
    )
    tls_port: int = number(5671, "TCP port for TLS; 0 takes any free port", within=(0, 65_535))
    tls_key: str | None = text(None, "PEM file with our private key; default: in tls_certificate")
    tls_key_password: str | None = text(
        None, "password of the private key; as an option it is seen in the process list", secret=True
    )
    tls_ca: str | None = text(None, "PEM file with the authorities of clients' certificates")
    tls_verify: str = text(
        "none", "what is asked of a client's certificate", choices=("none", "optional", "required")
    )
    tls_minimum_version: str = text("1.2", "oldest version of TLS to speak", choices=("1.2", "1.3"))
    tls_user_from: str = text(
        "common_name",
        "part of a client's certificate that is the user name for SASL EXTERNAL",
        choices=("common_name", "distinguished_name", "san_dns", "san_email", "san_uri"),
    )

    http: bool = switch(True, "serve the HTTP API where http_port says")
    http_port: int | None = number(
        None, "TCP port of the HTTP API; 0 takes any free port", within=(0, 65_535)
    )
    http_optional: bool = switch(
        False, "the broker starts without the HTTP API if its port is taken, or its extra is not installed"
    )
    http_host: str | None = text(None, "address or name to listen on for HTTP; default: host")
    http_tls: bool = switch(False, "speak HTTPS on http_port, with tls_certificate")
    http_path_prefix: str = text("", "path in front of /api, such as /broker", may_be_empty=True)
    http_cors_origins: str = text(
        "",
        "origins of pages that may use the HTTP API, with commas between them: https://host:port, or * for "
        "all, without a login",
        may_be_empty=True,
    )
    collect_statistics_interval_ms: int = number(
        5_000,
        "time between two looks at what has rates, while HTTP clients ask for them, in ms",
        within=(100, 600_000),
    )
    http_body_bytes_max: int = number(
        20_000_000, "biggest body of an HTTP request, in bytes", within=(1_000, 1024 * _MIB)
    )
    http_connection_max: int = number(
        1_000, "HTTP connections at one time; further ones are closed", within=(1, 100_000)
    )

    websocket: bool = switch(True, "AMQP over WebSocket at http_port, at any path")
    websocket_on_port: bool = switch(
        False, "AMQP over WebSocket at port and tls_port too, for clients that begin with GET"
    )
    websocket_origins: str = text(
        "*",
        "origins of pages that may connect over WebSocket, with commas between them: https://host:port, or * "
        "for all",
    )

    prometheus: bool = switch(True, "serve metrics for Prometheus at prometheus_port, without a login")
    prometheus_port: int | None = number(
        None, "TCP port of metrics, on http_host; 0 takes any free port", within=(0, 65_535)
    )
    prometheus_optional: bool = switch(
        False, "the broker starts without that port if it is taken, or the extra is not installed"
    )

    otel_endpoint: str | None = text(
        None,
        "where a receiver takes OpenTelemetry's OTLP over HTTP: http://127.0.0.1:4318; needs extra 'otel'",
    )
    otel_traces: bool = switch(True, "send traces of messages to otel_endpoint")
    otel_metrics: bool = switch(True, "send metrics to otel_endpoint")
    otel_service_name: str = text("amqp10broker", "service.name in what is sent to otel_endpoint")
    otel_traces_sampler_ratio: str = text(
        "0",
        "share of the published messages without a trace of their own that begin one: 0 to 1",
        reads=share,
        form=SHARE_FORM,
    )
    otel_metrics_interval_ms: int = number(
        60_000,
        "time between two times that metrics are sent to otel_endpoint, in ms",
        within=(1_000, _HOUR_MS),
    )

    default_vhost: str = text("/", "virtual host of AMQP 1.0 clients that name none")
    default_queue_type: str = text(
        "classic", "type of queues that are declared without one", choices=("classic", "quorum", "stream")
    )
    classic_confirm: str = text(
        "synced",
        "when persistent messages of durable classic queues are confirmed, if no policy or argument says: "
        "when they are synced, or when they are written, up to 0.2 s before",
        choices=("synced", "written"),
    )
    quorum_relaxed_checks_on_redeclaration: bool = switch(
        False, "a quorum queue may be declared again as a classic one by programs that cannot be changed"
    )
    dead_letter_prefetch: int = number(
        32, "dead messages of a quorum queue on their way at a time, at least once", within=(1, 65_535)
    )
    journal_file_bytes: int = number(
        32 * 1024**2,
        "bytes of a file of the journal; on a small disk files are smaller",
        within=(1024**2, 512 * 1024**2),
    )
    quorum_initial_group_size: int = number(
        3,
        "members of a quorum queue in a cluster, if x-quorum-initial-group-size does not say",
        within=(1, 255),
    )
    queue_leader_locator: str = text(
        "client-local",
        "where the leader of a new queue is in a cluster, if no policy or argument says: at the client's "
        "node, or where the fewest are",
        choices=("client-local", "balanced"),
    )
    quorum_reconciliation: bool = switch(
        False, "quorum queues get members by themselves until they have as many as they should"
    )
    quorum_reconciliation_target_group_size: int = number(
        0,
        "members that each quorum queue should have, if no policy or argument says more",
        within=(1, 255),
        zero_means="as policies and arguments say",
    )
    quorum_reconciliation_auto_remove: bool = switch(
        False, "members of quorum queues on nodes that were forgotten are removed"
    )
    quorum_reconciliation_interval_ms: int = number(
        3_600_000, "time between two looks at the members of quorum queues, in ms", within=(10, 24 * _HOUR_MS)
    )
    quorum_reconciliation_trigger_interval_ms: int = number(
        10_000,
        "time from what may change them (a node is up or forgotten, a queue declared, a policy set) to the "
        "next look, in ms",
        within=(10, _HOUR_MS),
    )
    definitions: str | None = text(
        None, "JSON file with users, virtual hosts, queues, exchanges as RabbitMQ exports them, read at start"
    )
    queues: tuple[QueueDeclaration, ...] = ()
    declare_on_attach: bool = switch(
        True, "a bare queue name as address declares a durable classic queue, as in RabbitMQ 4.0"
    )

    container_id: str = text(
        "",
        "name that the broker gives itself; empty: node_name or amqp10broker, @ and the host name",
        may_be_empty=True,
    )
    log_level: str = text(
        "info", "least serious log entry to write", choices=("debug", "info", "warning", "error", "critical")
    )
    log_format: str = text("console", "log for people or for programs", choices=("console", "json"))
    record_frames: str | None = text(
        None, "folder to record every frame into, as JSON without contents: for 'frames' and 'lint'"
    )
    trace_frames: bool = switch(False, "write every frame that is received and sent to the log")
    admin_socket: str | None = text(
        None,
        "path of the Unix socket for status and set; empty: none; default: a private directory",
        may_be_empty=True,
    )
    ready_file: str | None = text(
        None, "file that has the ports as JSON while clients can connect: for programs that start a broker"
    )

    node_name: str | None = text(
        None, "name of this node, unique in its cluster; given: it is one of a cluster, see cluster_nodes"
    )
    cluster_port: int = number(
        0, "TCP port for the other nodes of the cluster", within=(1, 65_535), zero_means="20000 above port"
    )
    cluster_nodes: str | None = text(
        None,
        "nodes of the cluster as NAME=HOST:PORT,... with their cluster ports; the first founds it, others "
        "join; a node that is in a cluster goes to the members that it knows",
    )
    cluster_target_size: int = number(
        0,
        "nodes that make the cluster whole; the founder declares the queues of its configuration then",
        within=(1, 255),
        zero_means="as many as cluster_nodes has",
    )
    cluster_secret_file: str | None = text(
        None, "file with the secret that the nodes share, readable by its owner only"
    )
    cluster_suspect_ms: int = number(
        1_000, "silence after which another node is taken for dead, in ms", within=(200, 60_000)
    )
    cluster_decide_ms: int = number(
        30_000,
        "time within which a majority of the nodes must agree on a change of what is declared, and a queue "
        "have a leader for a client that asks it, in ms; then that is refused",
        within=(1_000, 600_000),
    )
    cluster_plaintext: bool = switch(
        False, "nodes on other machines are spoken to without TLS: whoever is between can read all"
    )
    cluster_tls_cert_file: str | None = text(
        None, "PEM file with this node's certificate; given: nodes speak TLS and demand one of each other"
    )
    cluster_tls_key_file: str | None = text(
        None, "PEM file with its private key; default: in cluster_tls_cert_file"
    )
    cluster_tls_ca_file: str | None = text(None, "PEM file with the authorities of the nodes' certificates")
    discard_my_data: bool = switch(
        False, "a node with data of its own that joins a cluster loses it; without this it is refused"
    )

    rules: Rules = field(init=False, repr=False, compare=False)
    """The broker's behaviour where versions of RabbitMQ differ, by `emulate` and the permits."""

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
