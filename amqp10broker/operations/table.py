"""The table of operations for all front ends.

Each has a name, arguments with types, ranges and defaults, the required permission, and a help text.
`operations` has the functions; this table imports little of the broker, so that the command line can make
its options from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.operations.arguments import Argument, Kind
from amqp10broker.routing.registry import EXCHANGE_TYPES


class FaultKind(StrEnum):
    """The kinds of faults that a broker in test mode injects (docs/testing.md)."""

    REJECT_PUBLISHES = "reject-publishes"
    HOLD_CONFIRMS = "hold-confirms"
    REDELIVER = "redeliver"
    PAUSE_QUEUE = "pause-queue"
    LIMIT_CREDIT = "limit-credit"
    HOLD_BYTES = "hold-bytes"
    RESET_AFTER = "reset-after"
    REFUSE_ATTACHES = "refuse-attaches"
    DETACH = "detach"
    END = "end"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    noun: str
    arguments: tuple[Argument, ...]
    permission: str
    help: str
    changes: bool = True

    @property
    def in_vhost(self) -> bool:
        """Whether its names are in the caller's virtual host, which must exist."""
        return self.noun in ("queue", "exchange", "binding", "policy")


_NAME: Final = Argument("name", Kind.TEXT, "its name")
_ARGUMENTS: Final = Argument("arguments", Kind.TABLE, "x-arguments", {})
_IF_UNUSED: Final = Argument("if_unused", Kind.FLAG, "only if nobody uses it", False)
_IF_EMPTY: Final = Argument("if_empty", Kind.FLAG, "only without ready messages", False)
_DURABLE: Final = Argument("durable", Kind.FLAG, "it survives a restart", True)
_ENDS: Final = (
    Argument("source", Kind.TEXT, "the exchange where messages come from"),
    Argument("destination_queue", Kind.TEXT, "name of the bound queue", None),
    Argument("destination_exchange", Kind.TEXT, "name of the bound exchange, instead of a queue", None),
    Argument("binding_key", Kind.TEXT, "routing key or pattern", ""),
)
_USER: Final = Argument("user", Kind.TEXT, "name of the user")
_VHOST: Final = Argument("vhost", Kind.TEXT, "name of the virtual host; the caller's own if not given", None)
_PASSWORD: Final = Argument("password", Kind.TEXT, "none: nobody can log in with one", None, secret=True)
_REGULAR: Final = "regular expression; '.*' allows everything, '' nothing"
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
ALARMS: Final = ("memory", "disk")
FLOW_SETTINGS: Final = ("max_link_credit", "max_incoming_window", "max_queue_credit")
_POLICY: Final = (
    _NAME,
    Argument("pattern", Kind.TEXT, "regular expression, found anywhere in the name"),
    Argument("definition", Kind.TABLE, 'settings as JSON: {"max-length": 1000}'),
    Argument("priority", Kind.INTEGER, "of several that match, the highest counts", 0),
    Argument("apply_to", Kind.TEXT, "which of those whose name matches", "all", choices=APPLY_TO),
)
_ADMINISTRATOR: Final = "the tag administrator"
MEMBERSHIPS: Final = ("promotable", "voter", "non_voter")
_NODE: Final = Argument("node", Kind.TEXT, "name of the node; what stands behind an @ does not matter")
_MEMBERSHIP: Final = Argument(
    "membership",
    Kind.TEXT,
    "a promotable member votes when it has caught up",
    "promotable",
    choices=MEMBERSHIPS,
)
_WITHIN: Final = Argument("timeout", Kind.INTEGER, "seconds that it may take", 5, bounds=(1, 600))
_STRATEGY: Final = Argument(
    "strategy", Kind.TEXT, "even: only queues with an even number of members", choices=("all", "even")
)
_PATTERNS: Final = (
    Argument("vhost_pattern", Kind.TEXT, "regular expression, found anywhere in the name", ".*"),
    Argument("queue_pattern", Kind.TEXT, "regular expression, found anywhere in the name", ".*"),
)
_WATCH: Final = Argument("watch", Kind.INTEGER, "the number that watch-link gave")
_CLIENTS_NODE: Final = Argument(
    "node", Kind.TEXT, "to which the client is connected; this one if not given", None
)
_OF_USER: Final = Argument("user", Kind.TEXT, "only if it is of a connection of this user", None)
_ERRORS_ONLY: Final = Argument("errors_only", Kind.FLAG, "leave out what went well", False)


def _limits(**keys: str) -> Argument:
    by_name = {name.replace("_", "-"): what for name, what in keys.items()}
    return Argument("limits", Kind.TABLE, "by name; a negative number lifts one", keys=by_name)


_TABLE: Final = (
    Operation(
        "get-queue", "queue",
        (_NAME, Argument("for_use", Kind.FLAG, "refused if another connection has it for itself", False)),
        "any permission on the queue", "What a queue is and how full it is.", changes=False,
    ),
    Operation(
        "declare-queue", "queue",
        (_NAME, _DURABLE, Argument("exclusive", Kind.FLAG, "for this connection only", False),
         Argument("auto_delete", Kind.FLAG, "it goes with its last consumer", False),
         _ARGUMENTS),
        "configure on the queue; with a dead-letter exchange also read on it and write on that exchange",
        "Make a queue, unless it is there and as asked for.",
    ),
    Operation(
        "delete-queue", "queue", (_NAME, _IF_UNUSED, _IF_EMPTY),
        "configure on the queue", "Delete a queue with its messages.",
    ),
    Operation(
        "purge-queue", "queue", (_NAME,),
        "read on the queue", "Drop the ready messages of a queue.",
    ),
    Operation(
        "list-queues", "queue",
        (Argument("online", Kind.FLAG, "only queues whose leader, or node, can be reached", False),
         Argument("offline", Kind.FLAG, "only the others", False),
         Argument("local", Kind.FLAG, "only queues that this node leads, or has", False),
         Argument("names", Kind.TEXTS, "only queues of these names, repeatable", ()),
         Argument("counts", Kind.FLAG, "how many messages and consumers they have", True)),
        "any permission on each", "List queues of a virtual host.", changes=False,
    ),
    Operation(
        "declare-exchange", "exchange",
        (_NAME, Argument("type", Kind.TEXT, "an installed one", "direct", known=EXCHANGE_TYPES),
         _DURABLE, Argument("auto_delete", Kind.FLAG, "it goes with its last binding", False),
         Argument("internal", Kind.FLAG, "clients cannot publish to it", False),
         _ARGUMENTS),
        "configure on the exchange; with an alternate exchange also read on it and write on that one",
        "Make an exchange, unless it is there and as asked for.",
    ),
    Operation(
        "delete-exchange", "exchange", (_NAME, _IF_UNUSED),
        "configure on the exchange", "Delete an exchange with its bindings.",
    ),
    Operation(
        "get-exchange", "exchange", (_NAME,),
        "any permission on the exchange", "What an exchange is.", changes=False,
    ),
    Operation(
        "list-exchanges", "exchange", (),
        "any permission on each", "List exchanges of a virtual host.", changes=False,
    ),
    Operation(
        "bind", "binding", (*_ENDS, _ARGUMENTS),
        "write on the destination, read on the source, and its topic permission",
        "Bind a queue or an exchange to an exchange.",
    ),
    Operation(
        "unbind", "binding", (*_ENDS, _ARGUMENTS),
        "write on the destination, read on the source, and its topic permission", "Undo a bind.",
    ),
    Operation(
        "unbind-by-segment", "binding", (Argument("segment", Kind.TEXT, "the last part of its location"),),
        "write on the destination, read on the source, and its topic permission",
        "Undo the bind that a location names.",
    ),
    Operation(
        "get-bindings", "binding", _ENDS,
        "write on the destination, read on the source",
        "Bindings between an exchange and a destination with one key.", changes=False,
    ),
    Operation(
        "list-bindings", "binding", (),
        "any permission on the source or the destination of each", "List bindings of a virtual host.",
        changes=False,
    ),
    Operation(
        "add-user", "user",
        (_USER, _PASSWORD,
         Argument("tags", Kind.TEXTS, "administrator, monitoring, impersonator or another, repeatable", ())),
        _ADMINISTRATOR, "Add a user, who may do nothing yet.",
    ),
    Operation(
        "put-user", "user",
        (_USER, Argument("entry", Kind.TABLE, "as in a definitions document: password or password_hash, "
                         "hashing_algorithm, tags, limits", {})),
        _ADMINISTRATOR, "Add a user, or replace all that is known of it but its permissions.",
    ),
    Operation(
        "change-password", "user",
        (_USER, _PASSWORD), _ADMINISTRATOR, "Give a user another password.",
    ),
    Operation(
        "delete-user", "user", (_USER,), _ADMINISTRATOR,
        "Delete a user and its permissions, and close its connections.",
    ),
    Operation(
        "set-tags", "user",
        (_USER, Argument("tags", Kind.TEXTS, "all that the user has from now on")),
        _ADMINISTRATOR, "Give a user other tags.",
    ),
    Operation(
        "list-users", "user", (), _ADMINISTRATOR, "List users.", changes=False,
    ),
    Operation(
        "set-permissions", "permission",
        (_USER, _VHOST, Argument("configure", Kind.TEXT, f"names to declare and delete: {_REGULAR}"),
         Argument("write", Kind.TEXT, "names to publish to and bind"),
         Argument("read", Kind.TEXT, "names to consume from and bind to")),
        _ADMINISTRATOR, "Say what a user may do in a virtual host.",
    ),
    Operation(
        "clear-permissions", "permission", (_USER, _VHOST), _ADMINISTRATOR,
        "Let a user enter a virtual host no more.",
    ),
    Operation(
        "list-permissions", "permission", (_VHOST,), _ADMINISTRATOR,
        "List who may do what in a virtual host.", changes=False,
    ),
    Operation(
        "set-topic-permissions", "permission",
        (_USER, _VHOST, Argument("exchange", Kind.TEXT, "a topic exchange; it need not be there yet"),
         Argument("write", Kind.TEXT, f"routing keys to publish with: {_REGULAR}"),
         Argument("read", Kind.TEXT, "routing keys to bind with")),
        _ADMINISTRATOR, "Restrict a user's routing keys at a topic exchange.",
    ),
    Operation(
        "clear-topic-permissions", "permission",
        (_USER, _VHOST, Argument("exchange", Kind.TEXT, "without it those on all exchanges", None)),
        _ADMINISTRATOR, "Lift the restriction of a user's routing keys.",
    ),
    Operation(
        "list-topic-permissions", "permission", (_VHOST,), _ADMINISTRATOR,
        "List whose routing keys are restricted in a virtual host.", changes=False,
    ),
    Operation(
        "add-vhost", "vhost",
        (_NAME, Argument("description", Kind.TEXT, "for people", ""),
         Argument("tags", Kind.TEXTS, "for people, repeatable", ()),
         Argument("default_queue_type", Kind.TEXT, "of queues that are declared without a type", None,
                  choices=QUEUE_TYPES)),
        _ADMINISTRATOR, "Add a virtual host, which nobody may enter yet.",
    ),
    Operation(
        "put-vhost", "vhost",
        (_NAME, Argument("entry", Kind.TABLE, "as in a definitions document: description, tags, "
                         "default_queue_type, metadata", {})),
        _ADMINISTRATOR, "Add a virtual host, or change what is said of it.",
    ),
    Operation(
        "delete-vhost", "vhost", (_NAME,), _ADMINISTRATOR,
        "Delete a virtual host with all that is in it, and close its connections.",
    ),
    Operation(
        "list-vhosts", "vhost", (),
        "a permission in each, or the tag administrator", "List virtual hosts.", changes=False,
    ),
    Operation(
        "set-policy", "policy", _POLICY, _ADMINISTRATOR,
        "Set a policy: settings for all queues or exchanges whose name matches.",
    ),
    Operation(
        "clear-policy", "policy", (_NAME,), _ADMINISTRATOR, "Forget a policy.",
    ),
    Operation(
        "list-policies", "policy", (), _ADMINISTRATOR,
        "List policies of a virtual host.", changes=False,
    ),
    Operation(
        "set-operator-policy", "policy", _POLICY, _ADMINISTRATOR,
        "Set an operator policy: bounds of what policies and arguments set.",
    ),
    Operation(
        "clear-operator-policy", "policy", (_NAME,), _ADMINISTRATOR,
        "Forget an operator policy.",
    ),
    Operation(
        "list-operator-policies", "policy", (), _ADMINISTRATOR,
        "List operator policies of a virtual host.", changes=False,
    ),
    Operation(
        "clear-parameter", "parameter",
        (Argument("component", Kind.TEXT, "the plugin's name of its kind"), _NAME), _ADMINISTRATOR,
        "Forget what definitions of RabbitMQ said for a plugin.",
    ),
    Operation(
        "set-global-parameter", "parameter",
        (_NAME, Argument("value", Kind.ANY, "any JSON value")), _ADMINISTRATOR,
        "Keep a value of the whole broker, whatever it is, for people and their tools.",
    ),
    Operation(
        "clear-global-parameter", "parameter", (_NAME,), _ADMINISTRATOR, "Forget such a value.",
    ),
    Operation(
        "set-vhost-limits", "vhost",
        (_VHOST, _limits(max_connections="connections that may be open to it",
                         max_queues="queues that it may have")),
        _ADMINISTRATOR, "Limit connections and queues of a virtual host.",
    ),
    Operation(
        "set-user-limits", "user",
        (_USER, _limits(max_connections="connections that the user may have open",
                        max_channels="channels of AMQP 0-9-1 and sessions of AMQP 1.0 that the user may have "
                                     "open")),
        _ADMINISTRATOR, "Limit connections and channels of a user.",
    ),
    Operation(
        "export-definitions", "definitions", (), _ADMINISTRATOR,
        "Everything that is declared, as one document.", changes=False,
    ),
    Operation(
        "import-definitions", "definitions",
        (Argument("document", Kind.ANY, "as exported, parsed"),),
        _ADMINISTRATOR, "Declare what a document says; what cannot be is left out and named.",
    ),
    Operation(
        "status", "status",
        (Argument("choose", Kind.TABLE, "what of connections and queues, see service.survey.Selection", {}),),
        _ADMINISTRATOR, "What the broker is doing, and why its links wait.", changes=False,
    ),
    Operation(
        "connections", "connection",
        (Argument("where", Kind.TEXT, "to which node: this one, others that run, or any", "here",
                  choices=("here", "elsewhere", "everywhere")),
         Argument("after", Kind.INTEGER, "only those here with greater numbers", 0),
         Argument("limit", Kind.INTEGER, "so many of those here", None, bounds=(1, 1_000_000))),
        _ADMINISTRATOR, "Connections, with their channels, sessions, links and consumers.", changes=False,
    ),
    Operation(
        "waiting", "waiting",
        (Argument("connection", Kind.INTEGER, "one connection, by its number", None),
         Argument("user", Kind.TEXT, "connections of a user", None),
         Argument("queue", Kind.TEXT, "links and consumers of a queue; * and ? mean any", None),
         Argument("link", Kind.TEXT, "links and consumer tags of that name; likewise", None),
         Argument("reason", Kind.TEXT, "a code, or no-credit for all such", None),
         Argument("longer", Kind.INTEGER, "seconds that it has waited at least", None,
                  bounds=(0, 31_536_000)),
         Argument("idle", Kind.FLAG, "also what has nothing to do; it stands last", False),
         Argument("limit", Kind.INTEGER, "so many, the worst ones", None, bounds=(1, 1_000_000)),
         Argument("node", Kind.TEXT, "of this node alone; '' is the one that is asked, and means it "
                  "where a connection is given", None),
         Argument("queues", Kind.FLAG, "also count queues, and those of this node that are full", True)),
        _ADMINISTRATOR, "Show what waits, the longest first: why, for how long, and what to do.",
        changes=False,
    ),
    Operation(
        "set", "setting",
        (Argument("name", Kind.TEXT, "which", choices=FLOW_SETTINGS),
         Argument("value", Kind.INTEGER, "from now on", bounds=(1, 4294967295), word="auto")),
        _ADMINISTRATOR, "Change a flow control setting of a running broker.", changes=False,
    ),
    Operation(
        "set-limit", "limit",
        (Argument("name", Kind.TEXT, "vm_memory_high_watermark or disk_free_limit"),
         Argument("value", Kind.TEXT, "as in the configuration: 0.6, 512MB, mem_relative 1.5")),
        _ADMINISTRATOR, "Change where an alarm begins.", changes=False,
    ),
    Operation(
        "alarm", "alarm",
        (Argument("name", Kind.TEXT, "which resource", choices=ALARMS),
         Argument("on", Kind.FLAG, "raise it, or take that back")),
        _ADMINISTRATOR, "Raise an alarm of a running broker by hand, or take that back.", changes=False,
    ),
    Operation(
        "close-connection", "connection",
        (Argument("id", Kind.INTEGER, "its number, see list-connections"),
         Argument("reason", Kind.TEXT, "what the client is told", ""),
         Argument("node", Kind.TEXT, "to which it is connected; this one if not given", None)),
        _ADMINISTRATOR, "Close a client's connection.", changes=False,
    ),
    Operation(
        "list-suspended-links", "link", (_CLIENTS_NODE,), _ADMINISTRATOR,
        "List links of AMQP 1.0 that are kept though their clients have gone.", changes=False,
    ),
    Operation(
        "end-suspended-link", "link",
        (Argument("link", Kind.INTEGER, "its number, see list-suspended-links"), _CLIENTS_NODE),
        _ADMINISTRATOR, "End a suspended link before its time: what it holds gets its default outcome.",
        changes=False,
    ),
    Operation(
        "record-start", "recording",
        (Argument("folder", Kind.TEXT, "where to, made if it is not there"),
         Argument("every", Kind.INTEGER, "milliseconds between two looks; none: as configured", None),
         Argument("run", Kind.TEXT,
                  "name of the run (default: one with the time); if the folder has a run of this name, it "
                  "becomes NAME-2, NAME-3, ...", None)),
        _ADMINISTRATOR, "Begin to record.", changes=False,
    ),
    Operation(
        "record-stop", "recording", (), _ADMINISTRATOR, "End the recording; its files are complete then.",
        changes=False,
    ),
    Operation(
        "record-status", "recording", (), _ADMINISTRATOR,
        "Show how the recording goes, or how the last one failed.",
        changes=False,
    ),
    Operation(
        "trace", "trace",
        (Argument("what", Kind.TEXT,
                  "a connection's number, a user, an address of a client or of links, or everything"),
         Argument("on", Kind.FLAG, "begin, or end what was begun"),
         Argument("file", Kind.TEXT, "into which the broker writes; none: lines follow the answer", None),
         Argument("frames", Kind.FLAG, "for 'frames' and 'lint': as JSON, without contents", False)),
        _ADMINISTRATOR, "Show the frames of some connections.", changes=False,
    ),
    Operation(
        "watches", "watch",
        (Argument("node", Kind.TEXT, "of this node alone; '' is the one that is asked", None),),
        _ADMINISTRATOR, "Links, channels and consumers whose frames are recorded.", changes=False,
    ),
    Operation(
        "watch-link", "watch",
        (Argument("connection", Kind.INTEGER, "number of its connection, see list-links"),
         Argument("link", Kind.TEXT, "its name; of AMQP 0-9-1 a consumer's tag, or none for a channel", None),
         Argument("channel", Kind.INTEGER, "of its session, if the connection has several; or the channel",
                  None),
         Argument("role", Kind.TEXT, "of the client, if it has two links of that name", None,
                  choices=("sender", "receiver")),
         _CLIENTS_NODE),
        _ADMINISTRATOR, "Record the frames of a link, channel or consumer, for its timeline.", changes=False,
    ),
    Operation(
        "unwatch-link", "watch", (_WATCH, _CLIENTS_NODE, _OF_USER), _ADMINISTRATOR,
        "Record frames no more, unless others look, too.", changes=False,
    ),
    Operation(
        "follow-links", "watch",
        (_VHOST, Argument("on", Kind.FLAG, "begin, or tell what is watched by now; or end it", True)),
        _ADMINISTRATOR, "Watch every link and channel of a virtual host from its beginning on.",
        changes=False,
    ),
    Operation(
        "inject-fault", "fault",
        (Argument("kind", Kind.TEXT, "what is done wrong", choices=tuple(FaultKind)), _VHOST,
         Argument("queue", Kind.TEXT, "only for this queue, or address of links; * and ? mean any", None),
         Argument("client", Kind.TEXT, "only for clients of this container-id or connection name", None),
         Argument("link", Kind.TEXT, "only for links of this name", None),
         Argument("count", Kind.INTEGER, "messages, attaches, credits or frames; see docs/testing.md", None,
                  bounds=(0, 4294967295)),
         Argument("condition", Kind.TEXT, "that clients of AMQP 1.0 are told", "amqp:internal-error"),
         Argument("code", Kind.INTEGER, "that clients of AMQP 0-9-1 are told", 541),
         Argument("text", Kind.TEXT, "that both are told", "a fault on request")),
        _ADMINISTRATOR, "Commit a fault, in a broker in test mode.", changes=False,
    ),
    Operation(
        "lift-fault", "fault", (Argument("fault", Kind.INTEGER, "its number"),),
        _ADMINISTRATOR, "Commit a fault no more.", changes=False,
    ),
    Operation(
        "list-faults", "fault", (), _ADMINISTRATOR, "List faults that are committed.", changes=False,
    ),
    Operation(
        "timeline", "watch",
        (_WATCH,
         Argument("since", Kind.INTEGER, "the first step that is told, the 'next' of the last answer; none: "
                  "the oldest", None),
         Argument("limit", Kind.INTEGER, "so many steps at most", 1000, bounds=(1, 5000)),
         Argument("frames", Kind.FLAG, "with the frame of each step, not curves alone", True),
         _CLIENTS_NODE, _OF_USER),
        _ADMINISTRATOR, "Tell each frame of what is watched, and what it did to credit, windows, prefetch.",
        changes=False,
    ),
    Operation(
        "add-member", "queue", (_NAME, _NODE, _MEMBERSHIP, _WITHIN), _ADMINISTRATOR,
        "Add a member to a quorum queue, on a node.",
    ),
    Operation(
        "delete-member", "queue", (_NAME, _NODE, _WITHIN), _ADMINISTRATOR,
        "Remove the member of a quorum queue on a node, with its data.",
    ),
    Operation(
        "transfer-leadership", "queue", (_NAME, _NODE), _ADMINISTRATOR,
        "Have the member of a quorum queue on a node lead it.",
    ),
    Operation(
        "force-shrink-member-to-current-member", "queue", (_NAME,), _ADMINISTRATOR,
        "Make this node's member of a quorum queue the only one; what only lost members have is lost.",
    ),
    Operation(
        "quorum-status", "queue", (_NAME,), _ADMINISTRATOR,
        "Show how each member of a quorum queue stands.", changes=False,
    ),
    Operation(
        "stream-status", "stream", (_NAME,), _ADMINISTRATOR,
        "Show how a stream stands on its node.", changes=False,
    ),
    Operation(
        "add-replica", "stream", (_NAME, _NODE), _ADMINISTRATOR,
        "Have a replica of a stream on a node: refused but on its own, for a stream stays on its node.",
        changes=False,
    ),
    Operation(
        "delete-replica", "stream", (_NAME, _NODE), _ADMINISTRATOR,
        "Have no replica of a stream on a node: refused on its own, where the only one is.", changes=False,
    ),
    Operation(
        "restart-stream", "stream",
        (_NAME, Argument("preferred_leader", Kind.TEXT, "name of the node that shall lead it", None)),
        _ADMINISTRATOR, "Have a stream led anew: by its node, as before.", changes=False,
    ),
    Operation(
        "grow", "members", (_NODE, _STRATEGY, *_PATTERNS, _MEMBERSHIP, _ERRORS_ONLY), _ADMINISTRATOR,
        "Add a member on a node to all quorum queues that have none there.",
    ),
    Operation(
        "grow-to-count", "members",
        (Argument("count", Kind.INTEGER, "members that each shall have", bounds=(1, 255)),
         _STRATEGY, *_PATTERNS, _MEMBERSHIP, _ERRORS_ONLY),
        _ADMINISTRATOR, "Add members to all quorum queues that have fewer than so many.",
    ),
    Operation(
        "shrink", "members", (_NODE, _ERRORS_ONLY), _ADMINISTRATOR,
        "Remove the members of all quorum queues on a node, which need not run.",
    ),
    Operation(
        "force-all-queues-shrink-member-to-current-member", "members", (*_PATTERNS, _ERRORS_ONLY),
        _ADMINISTRATOR,
        "Make this node's members of quorum queues the only ones; what only lost members have is lost.",
    ),
    Operation(
        "rebalance", "members",
        (Argument("kind", Kind.TEXT, "leaders of what", choices=("all", "quorum", "stream")), *_PATTERNS),
        _ADMINISTRATOR, "Hand leaderships over until no node has more than its share.",
    ),
    Operation(
        "check-if-node-is-quorum-critical", "node", (), _ADMINISTRATOR,
        "Fail if a quorum queue, or the metadata, would lose its majority without this node.", changes=False,
    ),
    Operation(
        "await-online-quorum-plus-one", "node",
        (Argument("timeout", Kind.INTEGER, "seconds to wait", 120, bounds=(0, 3_600)),),
        _ADMINISTRATOR, "Wait until the node can be stopped and nothing loses its majority.", changes=False,
    ),
    Operation(
        "check-for-quorum-queues-without-an-elected-leader", "node",
        (Argument("pattern", Kind.TEXT, "regular expression, found anywhere in names of queues"),
         _VHOST, Argument("across_all_vhosts", Kind.FLAG, "queues of all virtual hosts", False)),
        _ADMINISTRATOR, "Fail if a quorum queue has no leader.", changes=False,
    ),
    Operation(
        "check-if-new-quorum-queue-replicas-have-finished-initial-sync", "node", (), _ADMINISTRATOR,
        "Fail if a member on this node is still to catch up.", changes=False,
    ),
    Operation(
        "drain", "node", (), _ADMINISTRATOR,
        "Take the node out of service: no clients, no leaders.",
    ),
    Operation(
        "revive", "node", (), _ADMINISTRATOR, "Take the node back into service.",
    ),
    Operation(
        "cluster-status", "cluster", (), _ADMINISTRATOR,
        "Show the members of the cluster, which of them run, and where they listen.", changes=False,
    ),
    Operation(
        "list-listeners", "node", (), _ADMINISTRATOR, "List where this node listens.", changes=False,
    ),
    Operation(
        "await-online-nodes", "cluster",
        (Argument("count", Kind.INTEGER, "members that shall run", bounds=(1, 255)),
         Argument("timeout", Kind.INTEGER, "seconds to wait", 300, bounds=(0, 3_600))),
        _ADMINISTRATOR, "Wait until so many members of the cluster run.", changes=False,
    ),
    Operation(
        "has-reached-target-cluster-size", "cluster", (), _ADMINISTRATOR,
        "Fail if fewer nodes run than make the cluster whole.", changes=False,
    ),
    Operation(
        "metadata-store-status", "cluster", (), _ADMINISTRATOR,
        "Show how each member of the group that has the metadata stands.", changes=False,
    ),
    Operation(
        "set-cluster-name", "cluster", (_NAME,), _ADMINISTRATOR, "Give the cluster another name.",
    ),
    Operation(
        "forget-cluster-node", "cluster", (_NODE,), _ADMINISTRATOR,
        "Take a node that does not run out of the cluster, for good.",
    ),
    Operation(
        "join-cluster", "cluster",
        (Argument("node", Kind.TEXT, "a node of it: a name that --cluster-nodes has, or NAME=HOST:PORT"),),
        _ADMINISTRATOR,
        "Have this node, which is alone, join a cluster; its own data is gone then, and clients are closed.",
    ),
    Operation(
        "reset", "cluster", (), _ADMINISTRATOR,
        "Have this node leave its cluster and lose all its data; its process ends.",
    ),
    Operation(
        "force-reset", "cluster", (), _ADMINISTRATOR,
        "Have this node lose all its data; its process ends, and others must forget the node.",
    ),
    Operation(
        "doctor", "node",
        (Argument("by_itself", Kind.FLAG, "do not ask the other nodes of the cluster", False),),
        _ADMINISTRATOR, "Say what of this node is not as it should be in production.", changes=False,
    ),
    Operation(
        "list-alarms", "node", (), _ADMINISTRATOR, "List alarms that are on, by node.", changes=False,
    ),
)  # fmt: skip

OPERATIONS: Final[Mapping[str, Operation]] = {operation.name: operation for operation in _TABLE}
