"""A client of the HTTP API over a stream in memory, so that Trio's test clock may jump."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
import trio
from trio.testing import memory_stream_pair

from amqp10broker.api.live import Difference
from amqp10broker.auth.login import Peer
from amqp10broker.metadata.users import Permission
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http.http_listener import HttpListener
from tests.support.declaring import add_user, set_permission

PEER = "127.0.0.1:50000"


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpUser:
    """One connection, logged in anew with each request."""

    def __init__(self, stream: trio.abc.Stream, login: str, prefix: str = "/api") -> None:
        self._stream = stream
        self._prefix = prefix
        self._login = base64.b64encode(login.encode()).decode()
        self._engine = h11.Connection(h11.CLIENT)

    async def ask(
        self, method: str, path: str, body: Any = None, announced: int | None = None, **headers: str
    ) -> Heard:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = [("host", "broker"), ("content-length", str(len(data) if announced is None else announced))]
        if self._login:
            sent.append(("authorization", f"Basic {self._login}"))
        sent += [(name.replace("_", "-"), value) for name, value in headers.items()]
        engine = self._engine
        out = engine.send(h11.Request(method=method, target=f"{self._prefix}{path}", headers=sent)) or b""
        if data:
            out += engine.send(h11.Data(data=data)) or b""
        if announced is None:
            out += engine.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(out)
        status, heard, got = 0, {}, b""
        while True:
            event = engine.next_event()
            if event is h11.NEED_DATA:
                engine.receive_data(await self._stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                heard = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                got += event.data
            elif isinstance(event, h11.EndOfMessage):
                if engine.our_state is h11.DONE and engine.their_state is h11.DONE:
                    engine.start_next_cycle()
                return Heard(status, heard, got)
            else:
                raise AssertionError(f"the broker closed the connection: {event}")

    async def follow(self, path: str) -> Events:
        """Subscribe to events, which arrive until this connection ends."""
        sent = [("host", "broker"), ("authorization", f"Basic {self._login}")]
        engine = self._engine
        out = engine.send(h11.Request(method="GET", target=f"{self._prefix}{path}", headers=sent)) or b""
        await self._stream.send_all(out + (engine.send(h11.EndOfMessage()) or b""))
        return Events(self._stream, engine)

    async def get(self, path: str, **headers: str) -> Any:
        heard = await self.ask("GET", path, **headers)
        assert heard.status == 200, heard
        return heard.json

    async def put(self, path: str, body: Any = None) -> int:
        return (await self.ask("PUT", path, {} if body is None else body)).status

    async def delete(self, path: str) -> int:
        return (await self.ask("DELETE", path)).status


class Events:
    """Server-sent events, put together at each path as they come."""

    def __init__(self, stream: trio.abc.Stream, engine: h11.Connection) -> None:
        self._stream = stream
        self._engine = engine
        self._text = ""
        self.values: dict[int, Any] = {}
        self.comments = 0

    async def next(self) -> tuple[str, Any]:
        """Return the next event's name and data; ``("end", None)`` at the end."""
        while True:
            block, found, rest = self._text.partition("\n\n")
            if found:
                self._text = rest
                if block.startswith(":"):
                    self.comments += 1
                    continue
                name, data = (line.partition(": ")[2] for line in block.split("\n"))
                return name, self._heard(name, json.loads(data))
            event = self._engine.next_event()
            if event is h11.NEED_DATA:
                self._engine.receive_data(await self._stream.receive_some(65536))
            elif isinstance(event, h11.Data):
                self._text += bytes(event.data).decode()
            elif isinstance(event, h11.Response):
                assert event.status_code == 200, event
                assert (b"content-type", b"text/event-stream") in event.headers
            else:
                return "end", None

    def _heard(self, name: str, data: Any) -> Any:
        if name == "whole":
            self.values[data["id"]] = data["value"]
        elif name == "delta":
            self.values[data["id"]] = applied(self.values[data["id"]], data["change"])
        return data


def add_login(broker: Broker, login: str, *tags: str, vhosts: Collection[str] = ()) -> None:
    name, _, password = login.partition(":")
    add_user(broker.catalog, name, broker.passwords.make(password), tags=tags)
    for vhost in vhosts:
        set_permission(broker.catalog, name, vhost, Permission())


@asynccontextmanager
async def http_user(
    broker: Broker,
    login: str = "guest:guest",
    *,
    origin: Peer | None = None,
    listener: HttpListener | None = None,
    prefix: str = "/api",
) -> AsyncIterator[HttpUser]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            (listener or broker.http).serve_stream,
            broker,
            theirs,
            PEER,
            origin or Peer(loopback=True, address="127.0.0.1"),
        )
        async with ours:
            yield HttpUser(ours, login, prefix)
        nursery.cancel_scope.cancel()


def applied(value: Any, change: Difference) -> Any:
    """Return the value with a difference applied, as the page does, without changing it."""
    if "to" in change:
        return change["to"]
    if "rows" in change:
        rows = (
            list(value)
            if "order" not in change
            else [each[0] if isinstance(each, list) else value[each] for each in change["order"]]
        )
        for place, inner in change["rows"].items():
            rows[int(place)] = applied(rows[int(place)], inner)
        return rows
    made = {name: each for name, each in value.items() if name not in change["gone"]}
    for name, inner in change["members"].items():
        made[name] = applied(value.get(name), inner)
    return made
