"""Endpoints of connections, their channels, sessions and consumers, and of how credit flows in their links.

Waits, and timelines of links, are an extension of RabbitMQ's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from amqp10broker.api.calls import NO_CONTENT, EndpointCall, described, listed, route
from amqp10broker.api.front import Tag
from amqp10broker.api.messages import (
    HttpResponse,
    bad_request,
    flag,
    integer,
    not_authorised,
    not_found,
    require,
)
from amqp10broker.api.samples import client_stats
from amqp10broker.errors import BadRequest
from amqp10broker.metadata.entry_codec import nearest
from amqp10broker.operations.snapshot import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    LinkView,
    SessionView,
    WaitView,
    document,
)

CLOSED_HERE: Final = "Closed via management plugin"
"""The client's reason without another one: RabbitMQ's words, which operators search for."""
NOT_ACTIVE: Final = "not-active"
"""The reason of a consumer that is not its queue's single active one (`sessions.diagnosis.wait_reasons`)."""
SETTLED: Final = 1
"""The snd-settle-mode of a link with deliveries that are sent settled."""
SETTLE_MODES: Final = ("unsettled", "settled", "mixed")
UNLIMITED: Final = "unlimited"
PROTOCOL_10: Final = "AMQP 1-0"
_PROTOCOLS: Final = {"AMQP 1.0": PROTOCOL_10}


@route("GET", "/connections", "/vhosts/{vhost}/connections")
async def list_connections(call: EndpointCall) -> HttpResponse:
    return await listed(call, await described(call, await _seen(call), partial(_connection, call)))


@route("GET", "/connections/{name}")
async def get_connection(call: EndpointCall) -> HttpResponse:
    return call.shown(_connection(call, await found_connection(call, call.values["name"])))


@route("DELETE", "/connections/{name}")
async def delete_connection(call: EndpointCall) -> HttpResponse:
    """Close a connection; the header X-Reason gives the client the reason."""
    await _close(call, await found_connection(call, call.values["name"]))
    return NO_CONTENT


@route("GET", "/connections/username/{user}")
async def list_of_user(call: EndpointCall) -> HttpResponse:
    keys = ("name", "node", "user", "vhost")
    shown = [_connection(call, each) for each in await _of_user(call)]
    return call.listed([{key: each[key] for key in keys} for each in shown])


@route("DELETE", "/connections/username/{user}")
async def delete_of_user(call: EndpointCall) -> HttpResponse:
    for each in await _of_user(call):
        await _close(call, each)
    return NO_CONTENT


@route("GET", "/connections/{name}/channels")
async def list_channels_of_connection(call: EndpointCall) -> HttpResponse:
    found = await found_connection(call, call.values["name"])
    return await listed(call, [_channel(call, found, each) for each in found.channels])


@route("GET", "/connections/{name}/sessions")
async def list_sessions(call: EndpointCall) -> HttpResponse:
    found = await found_connection(call, call.values["name"])
    if found.container_id is None:
        raise bad_request("connection does not use AMQP 1.0")
    return call.listed([_session(each) for each in found.sessions])


@route("GET", "/vhosts/{vhost}/channels", "/channels")
async def list_channels(call: EndpointCall) -> HttpResponse:
    found = list(_channels(await _seen(call)))
    return await listed(call, await described(call, found, lambda each: _channel(call, *each)))


@route("GET", "/channels/{name}")
async def get_channel(call: EndpointCall) -> HttpResponse:
    for connection, channel in _channels(await _seen(call)):
        if _channel_name(connection, channel) == call.values["name"]:
            consumers = [_consumer(call, connection, channel.number, each) for each in channel.consumers]
            shown = _channel(call, connection, channel)
            return call.shown({**shown, "consumer_details": consumers, "publishes": [], "deliveries": []})
    raise not_found()


@route("GET", "/consumers", "/consumers/{vhost}")
async def list_consumers(call: EndpointCall) -> HttpResponse:
    """List consumers of queues: all for monitoring users, else those of the user's own connections."""
    consumers = list(_consumers(await _seen(call)))
    shown = await described(call, consumers, lambda each: _consumer_object(call, *each))
    return await listed(call, shown, paged=False)


# --- which ----------------------------------------------------------------------------------------


async def _seen(call: EndpointCall) -> list[ConnectionView]:
    return _visible(call, await every_connection(call))


def _visible(call: EndpointCall, connections: Iterable[ConnectionView]) -> list[ConnectionView]:
    vhost = call.vhost().name if "vhost" in call.values else None
    mine = None if call.has(Tag.MONITORING) else call.user.name
    return [each for each in connections if mine in (None, each.user) and vhost in (None, each.vhost)]


async def every_connection(call: EndpointCall) -> list[ConnectionView]:
    return [*await call.broker_api.connections(), *await call.broker_api.connections_elsewhere()]


async def found_connection(call: EndpointCall, name: str) -> ConnectionView:
    for look in (call.broker_api.connections, call.broker_api.connections_elsewhere):
        for each in _visible(call, await look()):
            if _name(each) == name:
                return each
    raise not_found()


async def _of_user(call: EndpointCall) -> list[ConnectionView]:
    user = call.values["user"]
    if user != call.user.name and not call.has(Tag.ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    return [each for each in await every_connection(call) if each.user == user]


async def _close(call: EndpointCall, connection: ConnectionView) -> None:
    if connection.user != call.user.name and not call.has(Tag.ADMINISTRATOR):
        raise not_authorised("User not authorised to access object")
    reason = call.request.headers.get("x-reason") or CLOSED_HERE
    await call.administer("close-connection", id=connection.id, reason=reason, node=connection.node or None)


def _channels(connections: list[ConnectionView]) -> Iterator[tuple[ConnectionView, ChannelView]]:
    for connection in connections:
        for channel in connection.channels:
            yield connection, channel


def consumers_of(call: EndpointCall, connections: Iterable[ConnectionView]) -> Iterator[dict[str, Any]]:
    for each in _consumers(connections):
        yield _consumer_object(call, *each)


_Consumer: TypeAlias = (
    tuple[ConnectionView, ChannelView, ConsumerView] | tuple[ConnectionView, SessionView, LinkView]
)


def _consumers(connections: Iterable[ConnectionView]) -> Iterator[_Consumer]:
    for connection in connections:
        for channel in connection.channels:
            for consumer in channel.consumers:
                yield connection, channel, consumer
        for session in connection.sessions:
            for link in session.links:
                if link.role == "receiver" and link.queue is not None:
                    yield connection, session, link


def _consumer_object(
    call: EndpointCall,
    connection: ConnectionView,
    part: ChannelView | SessionView,
    consumer: ConsumerView | LinkView,
) -> dict[str, Any]:
    if isinstance(part, ChannelView) and isinstance(consumer, ConsumerView):
        return _consumer(call, connection, part.number, consumer)
    assert isinstance(part, SessionView)
    assert isinstance(consumer, LinkView)
    return _receiver(connection, part, consumer)


def peer_details(connection: ConnectionView) -> dict[str, Any]:
    peer_host, peer_port = _address(connection.peer)
    return {"name": _name(connection), "peer_host": peer_host, "peer_port": peer_port}


# --- as objects -----------------------------------------------------------------------------------


def name_of(peer: str, local: str) -> str:
    """Name a connection by the addresses of both ends, as RabbitMQ does; `local` may be empty."""
    return f"{peer} -> {local}" if local else peer


def _name(connection: ConnectionView) -> str:
    return name_of(connection.peer, connection.origin.local)


def _node(call: EndpointCall, connection: ConnectionView) -> str:
    return connection.node or call.broker_api.node_name


def _connection(call: EndpointCall, connection: ConnectionView) -> dict[str, Any]:
    origin = connection.origin
    host, port = _address(origin.local)
    peer_host, peer_port = _address(connection.peer)
    properties = nearest(origin.properties)
    shown: dict[str, Any] = {
        "name": _name(connection),
        "node": _node(call, connection),
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.vhost,
        "protocol": _PROTOCOLS.get(connection.protocol, connection.protocol),
        "state": "running" if connection.state == "opened" else connection.state,
        "type": "network",
        "host": host,
        "port": port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "channels": len(connection.channels) + len(connection.sessions),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": (connection.idle_timeout_ms or 0) // 1000,
        "auth_mechanism": origin.mechanism,
        "connected_at": origin.connected_at_ms,
        "client_properties": properties,
        "ssl": origin.tls,
        "transport": origin.transport,
        **dict.fromkeys(_OF_TLS, ""),
        "send_pend": connection.writer_waiting_bytes,
    }
    if call.with_stats:
        octets = {"recv_oct": connection.bytes_in, "send_oct": connection.bytes_out}
        shown |= call.rated("connection", connection.node, str(connection.id), data_rates=octets)[
            "data_rates"
        ]
    if isinstance(properties.get("connection_name"), str):
        shown["user_provided_name"] = properties["connection_name"]
    if connection.container_id is not None:
        shown["container_id"] = connection.container_id
        shown.setdefault("user_provided_name", connection.container_id)
    return shown


_OF_TLS: Final = (
    *("ssl_protocol", "ssl_cipher", "ssl_hash", "ssl_key_exchange"),
    *("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "peer_cert_serial_number"),
)


def _session(session: SessionView) -> dict[str, Any]:
    return {
        "channel_number": session.channel,
        "handle_max": session.handle_max,
        "next_incoming_id": session.next_incoming_id or 0,
        "incoming_window": session.incoming_window,
        "next_outgoing_id": session.next_outgoing_id,
        "remote_incoming_window": session.remote_incoming_window,
        "remote_outgoing_window": session.remote_outgoing_window,
        "outgoing_unsettled_deliveries": session.unsettled_out,
        "incoming_links": [_incoming(each) for each in session.links if each.role == "sender"],
        "outgoing_links": [_outgoing(each) for each in session.links if each.role == "receiver"],
        # This is an extension of RabbitMQ's API.
        "transactions": [document(each) for each in session.transactions],
    }


def _incoming(link: LinkView) -> dict[str, Any]:
    return {
        "handle": link.handle or 0,
        "link_name": link.name,
        "target_address": link.address or "",
        "snd_settle_mode": SETTLE_MODES[link.snd_settle_mode],
        "max_message_size": link.max_message_size or UNLIMITED,
        "delivery_count": link.delivery_count or 0,
        "credit": link.credit,
        "unconfirmed_messages": link.unsettled,
        **_waits(link.wait),
    }


def _outgoing(link: LinkView) -> dict[str, Any]:
    return {
        "handle": link.handle or 0,
        "link_name": link.name,
        "source_address": link.address or "",
        "queue_name": link.queue or "",
        "send_settled": link.snd_settle_mode == SETTLED,
        "max_message_size": link.max_message_size or UNLIMITED,
        "delivery_count": link.delivery_count or 0,
        "credit": link.credit,
        "queue_credit": link.queue_credit,
        "unsettled": link.unsettled,
        **_waits(link.wait),
    }


def _waits(wait: WaitView) -> Mapping[str, Any]:
    # This is an extension of RabbitMQ's API: why a link, channel or consumer waits.
    return {"waits": wait.waits, "waits_why": wait.waits_why, "waits_for_s": wait.waits_for_s}


def _channel_name(connection: ConnectionView, channel: ChannelView) -> str:
    return f"{_name(connection)} ({channel.number})"


def _channel(call: EndpointCall, connection: ConnectionView, channel: ChannelView) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": _channel_name(connection, channel),
        "number": channel.number,
        "node": _node(call, connection),
        "vhost": connection.vhost,
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "state": channel.state,
        "connection_details": peer_details(connection),
        "confirm": channel.confirm,
        "transactional": channel.transactional,
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "messages_unacknowledged": channel.unacknowledged,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "reader_credit": channel.reader_credit,
        **_waits(channel.wait),
    }
    if call.with_stats:
        stats = client_stats({name: value or 0 for name, value in channel.counters.items()})
        key = ("channel", connection.node, str(connection.id), str(channel.number))
        found = call.rated(*key, msg_rates=stats)
        if stats:
            shown["message_stats"] = found["msg_rates"]
        shown |= call.idle(*key, seen=stats)
    return shown


def _consumer(
    call: EndpointCall, connection: ConnectionView, number: int, consumer: ConsumerView
) -> dict[str, Any]:
    peer_host, peer_port = _address(connection.peer)
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": consumer.queue, "vhost": connection.vhost},
        "channel_details": {
            "connection_name": _name(connection),
            "name": f"{_name(connection)} ({number})",
            "node": _node(call, connection),
            "number": number,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "user": connection.user,
        },
        "ack_required": not consumer.no_ack,
        "active": consumer.wait.waits != NOT_ACTIVE,
        "activity_status": "waiting" if consumer.wait.waits == NOT_ACTIVE else "up",
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "consumer_timeout": consumer.timeout_ms or 0,
        "arguments": nearest(consumer.arguments),
        "messages_unacknowledged": consumer.unacknowledged,
        "messages_unsent": consumer.unsent,
        **_waits(consumer.wait),
    }


def _receiver(connection: ConnectionView, session: SessionView, link: LinkView) -> dict[str, Any]:
    waiting = link.wait.waits == NOT_ACTIVE
    return {
        "consumer_tag": str(link.handle or 0),
        "queue": {"name": link.queue, "vhost": connection.vhost},
        "channel_details": {},
        # This is an extension of RabbitMQ's API: the location of the link.
        "link_details": {
            "connection_name": _name(connection),
            "channel_number": session.channel,
            "link_name": link.name,
        },
        "ack_required": link.snd_settle_mode != SETTLED,
        "active": not waiting,
        "activity_status": "waiting" if waiting else "up",
        "exclusive": False,
        "prefetch_count": 0,
        "consumer_timeout": 0,
        "arguments": {},
        "messages_unacknowledged": link.unsettled,
        "messages_unsent": link.pending,
        **_waits(link.wait),
    }


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


_CHOICES: Final = ("queue", "link", "reason", "node")
_NUMBERS: Final = ("connection", "longer", "limit")
_COUNTS: Final = (
    *("connections", "links", "consumers", "channels"),
    *("waiting", "links_waiting", "consumers_waiting", "channels_waiting", "reasons", "idle_reasons"),
)
STEPS: Final = 1_000
STEPS_MAX: Final = 5_000
"""The default and the maximum number of steps of an answer."""


@route("GET", "/waiting")
async def get_waiting(call: EndpointCall) -> HttpResponse:
    """List the waits at all nodes, the longest first: cause, start, and remedy."""
    query = call.request.query
    chosen: dict[str, Any] = {name: query.get(name) for name in _CHOICES}
    chosen |= {name: integer(query, name, 0) if name in query else None for name in _NUMBERS}
    chosen |= {"idle": flag(query, "idle", False), "user": _whose(call, query.get("user")), "queues": False}
    found = await call.administer("waiting", **chosen)
    counted = found["summary"]
    return HttpResponse.of_json(
        {
            "summary": {name: counted[name] for name in _COUNTS},
            "waiting": list(map(_waiting, found["waiting"])),
            "unreached": found["unreached"],
        }
    )


def _whose(call: EndpointCall, user: str | None) -> str | None:
    if call.has(Tag.MONITORING):
        return user
    if user not in (None, call.user.name):
        raise not_authorised("Not monitor user")
    return call.user.name


def _waiting(waiting: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in waiting.items() if name != "local"}
    return {**shown, "connection_name": name_of(waiting["peer"], waiting["local"])}


# --- timelines ------------------------------------------------------------------------------------


@route("GET", "/timelines")
async def list_timelines(call: EndpointCall) -> HttpResponse:
    """List recorded links and channels: all for monitoring users, else those of the user's connections."""
    user = _only(call)
    found = await call.administer("watches", node=call.request.query.get("node"))
    return call.listed([each for each in found if user in (None, each["user"])])


@route("POST", "/timelines")
async def post_timeline(call: EndpointCall) -> HttpResponse:
    given = call.body
    require(given, "connection")
    name = given["connection"]
    if not isinstance(name, str):
        raise BadRequest("connection", "'connection' must be the name of a connection, see /connections")
    found = await found_connection(call, name)
    channel = integer(given, "channel", 0) if given.get("channel") is not None else None
    link, role = given.get("link"), given.get("role")
    begun = await call.administer(
        "watch-link",
        connection=found.id,
        link=link,
        channel=channel,
        role=role,
        node=found.node or None,
    )
    answer = HttpResponse.of_json(begun, status=HTTPStatus.CREATED)
    where = f"timelines/{begun['watch']}"
    if found.node:
        where += f"?node={quote(found.node, safe='')}"
    return answer.with_headers(("location", where))


@route("GET", "/timelines/{watch}", onward=("next", "since"))
async def get_timeline(call: EndpointCall) -> HttpResponse:
    query = call.request.query
    frames = flag(query, "frames", True)
    since = integer(query, "since", 0) if "since" in query else None
    limit = integer(query, "limit", STEPS)
    if not 1 <= limit <= STEPS_MAX:
        raise BadRequest("limit", f"limit must be 1 to {STEPS_MAX} steps, not {limit}")
    found = await call.administer("timeline", **_which(call), since=since, limit=limit, frames=frames)
    user = found["watched"]["user"]
    if since is not None:
        del found["watched"]
    if frames and not (user == call.user.name or call.has(Tag.ADMINISTRATOR)):
        found["steps"] = [
            {**step, "frame": step["frame"].partition(" ")[0], "bytes": ""} for step in found["steps"]
        ]
    return HttpResponse.of_json(found)


@route("DELETE", "/timelines/{watch}")
async def delete_timeline(call: EndpointCall) -> HttpResponse:
    """Stop watching; recording ends with the last watcher."""
    await call.administer("unwatch-link", **_which(call))
    return NO_CONTENT


def _only(call: EndpointCall) -> str | None:
    return None if call.has(Tag.MONITORING) else call.user.name


def _which(call: EndpointCall) -> dict[str, Any]:
    watch = integer(call.values, "watch", 0)
    return {"watch": watch, "node": call.request.query.get("node"), "user": _only(call)}
