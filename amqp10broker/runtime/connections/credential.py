"""The identity of a connection and its lifetime: unlimited with a password, until expiry with a token."""

from __future__ import annotations

import trio

from amqp10broker.auth.grants import CatalogGrants
from amqp10broker.auth.login import Challenge, Mechanism, Peer, Success
from amqp10broker.auth.token_scopes import TokenGrants
from amqp10broker.runtime.context import ConnectionContext


class Credential:
    def __init__(self, node_context: ConnectionContext, origin: Peer) -> None:
        self.grants: CatalogGrants | TokenGrants = CatalogGrants(node_context.catalog.users, "")
        self._node_context = node_context
        self._origin = origin
        self._renewed = trio.Event()

    @property
    def is_token(self) -> bool:
        """Whether it is a token, and the client may bring others."""
        return isinstance(self.grants, TokenGrants)

    def take(self, success: Success) -> None:
        """The client has logged in."""
        self.grants = success.token or CatalogGrants(self._node_context.catalog.users, success.user)

    async def over(self) -> None:
        """Wait until the token ends, or the last that the client has brought."""
        while True:
            self._renewed = trio.Event()
            ends = None if isinstance(self.grants, CatalogGrants) else self.grants.expires_at
            if ends is None:
                await self._renewed.wait()
                continue
            # Authorities cut `exp` to whole seconds, so the present second is not cut either, as in RabbitMQ:
            # a token that ends in three seconds lasts so long.
            clock = self._node_context.clock
            ends_ms = int(ends * 1000) + clock.now_ms() % 1000
            with trio.move_on_at(clock.trio_time(ends_ms)) as limit:
                await self._renewed.wait()
            if limit.cancelled_caught:
                return

    async def renew(self, token: bytes) -> str | None:
        """Go on with another token. Returns None if it was taken, else why not, for the log. The old one
        counts to its end then.
        """
        grants = self.grants
        assert isinstance(grants, TokenGrants), "a password needs no renewal"
        node_context = self._node_context
        authentication = node_context.authenticator.begin(self._origin)
        step = authentication.start(Mechanism.PLAIN.value, b"\0\0" + token)
        answer = await node_context.logins.settle(authentication, step, self._origin.address)
        if not isinstance(answer, Success):
            return "it is no answer" if isinstance(answer, Challenge) else answer.reason
        if answer.token is None or answer.user != grants.user:
            return f"it is of user '{answer.user}', not of '{grants.user}'"
        grants.renew(answer.token)
        self._renewed.set()
        return None
