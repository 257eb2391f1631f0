"""Plays the client of an AMQP 1.0 connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from amqp10broker.observe.frames.reader import FrameSplitter, TracedFrame
from amqp10broker.protocols import serial
from amqp10broker.protocols.amqp10.frames import FRAME_HEADER_BYTES, HEARTBEAT, TYPE_SASL, encode_frame
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Role,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.preface import AMQP_10_HEADER, SASL_HEADER, Protocol
from amqp10broker.tools.replay.differences import Difference, DifferenceKind, other_end, otherwise
from amqp10broker.tools.replay.ledger10 import Ledger10, LedgerLink, LedgerSession, error_text, within
from amqp10broker.tools.replay.player import Player, ReplayLogin
from amqp10broker.tools.replay.script import RecordedConnection, Step

_STRUCTURE: Final = (Open, Begin, Attach, Detach, End, Close)
_SENT_WITHOUT: Final = "messages of transactions are sent without them"


class Player10(Player):
    def __init__(self, part: RecordedConnection, login: ReplayLogin) -> None:
        super().__init__(part, login)
        self.reader = FrameSplitter(Protocol.AMQP_10)
        self.ready = False
        self._was = Ledger10()
        self._now = Ledger10()
        self._sessions: dict[LedgerSession, LedgerSession] = {}
        self._links: dict[LedgerLink, LedgerLink] = {}
        self._given_up: set[LedgerLink | LedgerSession | Ledger10] = set()
        self._unsent: dict[LedgerLink, set[int]] = {}
        self._closing = False
        self.controls, self._lengths = _look_through(part)

    @property
    def answers(self) -> int:
        return self._now.answers

    def start(self) -> None:
        self.write(SASL_HEADER)

    def heartbeat_s(self) -> float:
        opened = self._now.opened
        return 0.0 if opened is None else (opened.idle_time_out or 0) / 2000

    def beat(self) -> None:
        self.write(HEARTBEAT)

    # --- frames of the broker -----------------------------------------------------------------------

    def hear(self, step: Step) -> None:
        self._was.came(step.frame.channel, step.frame.body)

    def take(self, frame: TracedFrame) -> None:
        body = frame.body
        match body:
            case SaslMechanisms():
                self._log_in(body)
            case SaslOutcome() if body.code == SaslCode.OK:
                self.write(AMQP_10_HEADER)
                self.ready = True
            case SaslOutcome():
                self.refused = True
                self.over = f"the broker refused the user '{self.login.user}'"
            case None:
                if frame.channel < 0 and frame.data not in (SASL_HEADER, AMQP_10_HEADER):
                    self.over = f"the broker does not speak AMQP 1.0: {frame.said}"
            case _:
                self._now.came(frame.channel, body)
                self._answer(frame.channel, body)

    def _log_in(self, offered: SaslMechanisms) -> None:
        login = self.login
        mechanism = "PLAIN" if login.user else "ANONYMOUS"
        if mechanism not in offered.sasl_server_mechanisms:
            self.refused = True
            self.over = (
                f"the broker offers no login by {mechanism}, only {', '.join(offered.sasl_server_mechanisms)}"
            )
            return
        response = b"\0" + login.user.encode() + b"\0" + login.password.encode() if login.user else b"replay"
        init = SaslInit(mechanism=Symbol(mechanism), initial_response=response)
        self.write(encode_frame(0, init.encode(), TYPE_SASL))

    def _answer(self, channel: int, body: Any) -> None:
        # A detach, end or close of the broker is answered at once; the recorded answer is omitted then.
        match body:
            case Close():
                if not self._now.closing:
                    self._say(0, Close())
                    why = f"the broker closed the connection with {error_text(body.error) or 'no error'}"
                    if body.error is not None and body.error.description:
                        why = f"{why}: {body.error.description}"
                    self.over = None if self.broker_closes(Close) else why
                self.closed = True
            case End():
                session = next((each for each in self._now.sessions.values() if each.gone), None)
                if session is not None:
                    self._say(session.channel, End())
            case Detach():
                for session in self._now.sessions.values():
                    for handle, link in list(session.links.items()):
                        if link.gone:
                            self._say(session.channel, Detach(handle=handle, closed=body.closed))
            case _:
                pass

    # --- conditions ---------------------------------------------------------------------------------

    def waits_for(self, step: Step) -> str | None:
        body, channel = step.frame.body, step.frame.channel
        if isinstance(body, Open):
            return None if self.ready else "the login"
        if self._was.opened is not None and self._now.opened is None:
            return "the broker's open"
        if isinstance(body, Close):
            return self.still_owed()
        was = self._was.sessions.get(channel)
        if was is None or isinstance(body, Begin):
            return None
        now = self._sessions.get(was)
        if now is None or now.gone:
            return None
        if was.begun and not now.begun and was not in self._given_up:
            return f"the answer to begin on channel {channel}"
        match body:
            case End():
                return self._session_owes(was, now)
            case Detach() | Flow() | Transfer() if body.handle is not None:
                link = was.links.get(body.handle)
                return None if link is None else self._link_lacks(step, link, now)
            case Disposition():
                return self._settling_lacks(was, now, body)
            case _:
                pass
        return None

    def _link_lacks(self, step: Step, was: LedgerLink, session: LedgerSession) -> str | None:
        now, body = self._links.get(was), step.frame.body
        if now is None or now.gone:
            return None
        if was.attached and not now.attached and was not in self._given_up:
            return f"the attach of {was}"
        match body:
            case Detach():
                return self._link_owes(was, now)
            case Flow():
                if was.sends or was in self._given_up or body.delivery_count is None:
                    return None
                counted = min(serial.diff(body.delivery_count, was.base), was.whole)
                return f"delivery {now.whole + 1} of {was}" if now.whole < counted else None
            case Transfer():
                begins = self._lengths[step.index][0] == 0
                if begins and now.begun >= now.limit:
                    return None if now in self._given_up else f"credit for {was}"
                if session.window_left < 1 and session not in self._given_up:
                    return f"the incoming-window of the {session}"
            case _:
                pass
        return None

    def _settling_lacks(self, was: LedgerSession, now: LedgerSession, body: Disposition) -> str | None:
        if body.role is Role.SENDER:
            return None
        for number in within(was.got, body.first, body.last):
            link, place = was.got[number]
            other = self._links.get(link)
            if other is None or other.gone or link in self._given_up:
                continue
            if other.whole <= place:
                return f"delivery {place + 1} of {link}"
        return None

    def _link_owes(self, was: LedgerLink, now: LedgerLink | None) -> str | None:
        if now is None or was in self._given_up or (now.gone and not was.gone):
            return None
        if was.attached and not now.attached:
            return f"the attach of {was}"
        if not was.sends and now.whole < was.whole:
            return f"delivery {now.whole + 1} of {was}"
        if now.drained < was.drained:
            return f"the answer to a drain of {was}"
        unsent = self._unsent.get(was)
        owed = len(was.outcomes) if unsent is None else sum(each not in unsent for each in was.outcomes)
        if len(now.outcomes) < owed:
            return f"{owed - len(now.outcomes)} outcomes of {was}"
        if was.gone and was.error is not None and not now.gone:
            return f"the broker's detach of {was}"
        return None

    def _session_owes(self, was: LedgerSession, now: LedgerSession | None) -> str | None:
        if now is None or now.gone or was in self._given_up:
            return None
        if was.begun and not now.begun:
            return f"the answer to begin on channel {was.channel}"
        for link in was.all_links:
            owed = self._link_owes(link, self._links.get(link))
            if owed is not None:
                return owed
        if was.gone and was.error is not None:
            return f"the broker's end of the {was}"
        return None

    def still_owed(self) -> str | None:
        if self._was in self._given_up or self.over is not None:
            return None
        if self._was.opened is not None and self._now.opened is None:
            return "the broker's open"
        for session in self._was.all_sessions:
            owed = self._session_owes(session, self._sessions.get(session))
            if owed is not None:
                return owed
        if self._was.error is not None and self._now.error is None:
            return "the broker's close"
        return None

    def give_up(self, step: Step) -> None:
        body = step.frame.body
        was = self._was.sessions.get(step.frame.channel)
        if was is None or isinstance(body, Open | Begin | Close):
            if isinstance(body, Open) or self._now.opened is None:
                self.lost("the broker does not answer")
            self._given_up.add(self._was)
            return
        now = self._sessions.get(was)
        match body:
            case End():
                self._given_up |= {was, *was.all_links}
            case Disposition():
                self._given_up |= {was.got[number][0] for number in within(was.got, body.first, body.last)}
            case Transfer() if now is not None and (link := was.links.get(body.handle)) is not None:
                other = self._links.get(link)
                if other is not None and other.begun >= other.limit:
                    self._given_up.add(other)
                elif now.window_left < 1:
                    self._given_up.add(now)
                self._given_up.add(link)
            case Detach() | Flow() if body.handle is not None and body.handle in was.links:
                self._given_up.add(was.links[body.handle])
        if now is not None and not now.begun:
            self._given_up.add(was)

    # --- frames of the client -----------------------------------------------------------------------

    def say(self, step: Step) -> None:
        body, channel, frame = step.frame.body, step.frame.channel, step.frame
        was = self._was.sessions.get(channel)
        now = None if was is None else self._sessions.get(was)
        began = self._was.sent(channel, body)
        if self.over is not None or (self._now.error is not None and isinstance(body, Close)):
            return
        match body:
            case Open():
                vhost = self.login.vhost
                if vhost is not None:
                    self._say(channel, replace(body, hostname=f"vhost:{vhost}"))
                else:
                    self._say_as_it_was(frame)
            case Close():
                self._say_as_it_was(frame)
            case Begin():
                assert isinstance(began, LedgerSession)
                self._sessions[began] = self._now.sent(channel, body)  # type: ignore[assignment]
                self._send(frame.data)
            case _ if was is None or now is None or now.gone:
                return
            case Attach():
                assert isinstance(began, LedgerLink)
                if began.left_out:
                    self.left_out[began.left_out] = None
                    return
                body = self._addressed(body)
                self._links[began] = self._now.sent(channel, body)  # type: ignore[assignment]
                self._send(encode_frame(channel, body.encode()))
            case End():
                self._say_as_it_was(frame)
            case Flow():
                self._flow(was, now, body)
            case Transfer():
                self._transfer(step, was, now, body)
            case Disposition():
                self._settle(was, now, body)
            case Detach():
                if body.handle in now.links:
                    self._say_as_it_was(frame)
            case _:
                pass

    def _addressed(self, body: Attach) -> Attach:
        # An attach to an address that the recorded broker chose must use the one chosen by this broker.
        chosen = {was.address: now.address for was, now in self._links.items() if was.dynamic and now.address}
        given: dict[str, Any] = {}
        for name in ("source", "target"):
            end = getattr(body, name)
            address = getattr(end, "address", None)
            if isinstance(address, str) and address in chosen:
                given[name] = replace(end, address=chosen[address])
        return replace(body, **given) if given else body

    def _flow(self, was: LedgerSession, now: LedgerSession, body: Flow) -> None:
        # With current counts; credit and windows as recorded.
        given: dict[str, Any] = {"next_outgoing_id": now.next_outgoing}
        if now.begun:
            given["next_incoming_id"] = now.next_incoming
        if body.handle is not None:
            link = was.links.get(body.handle)
            if link is None:
                # The broker detached it while the flow was in flight.
                return
            other = self._links.get(link)
            if other is None or other.gone:
                return
            if body.delivery_count is not None:
                counted = serial.diff(body.delivery_count, link.base)
                if not other.sends:
                    counted = min(counted, other.begun) if counted > 0 else counted
                    given["delivery_count"] = serial.add(other.base, counted)
                else:
                    given["delivery_count"] = serial.add(other.base, other.begun)
        self._say(now.channel, replace(body, **given))

    def _transfer(self, step: Step, was: LedgerSession, now: LedgerSession, body: Transfer) -> None:
        link = was.links.get(body.handle)
        other = None if link is None else self._links.get(link)
        if link is None or other is None or other.gone:
            return
        offset, whole = self._lengths[step.index]
        if (
            (offset == 0 and other.begun >= other.limit)
            or now.window_left < 1
            or body.handle not in now.links
        ):
            self._unsent.setdefault(link, set()).add(link.ids[-1])
        if link.ids[-1] in self._unsent.get(link, ()):
            return
        if isinstance(body.state, TransactionalState):
            self.left_out[_SENT_WITHOUT] = None
            body = replace(body, state=None)
        size = step.frame.payload_bytes
        room = self._now.frame_size_max - FRAME_HEADER_BYTES - len(body.encode())
        payload = content(offset, size, whole)
        for start in range(0, size or 1, room):
            last = start + room >= size
            piece = (
                replace(body, more=body.more or not last)
                if start == 0
                else Transfer(handle=body.handle, more=body.more or not last)
            )
            self._now.sent(now.channel, piece)
            self._send(encode_frame(now.channel, piece.encode() + payload[start : start + room]))

    def _settle(self, was: LedgerSession, now: LedgerSession, body: Disposition) -> None:
        if isinstance(body.state, TransactionalState):
            self.left_out[_SENT_WITHOUT] = None
            body = replace(body, state=body.state.outcome)
        if body.role is Role.SENDER:
            self._say(now.channel, body)
            return
        numbers: list[int] = []
        for number in within(was.got, body.first, body.last):
            link, place = was.got[number]
            other = self._links.get(link)
            if other is not None and not other.gone and other.whole > place:
                numbers.append(other.ids[place])
        for first, last in serial.ranges(numbers):
            self._say(now.channel, replace(body, first=first, last=None if first == last else last))

    def _say(self, channel: int, body: Any) -> None:
        self._now.sent(channel, body)
        self._send(encode_frame(channel, body.encode()))

    def _say_as_it_was(self, frame: TracedFrame) -> None:
        self._now.sent(frame.channel, frame.body)
        self._send(frame.data)

    def _send(self, data: bytes) -> None:
        self.played += 1
        self.write(data)

    def close(self) -> None:
        if not self._now.closing and self.over is None and self._now.opened is not None:
            self._now.sent(0, Close())
            self.write(encode_frame(0, Close().encode()))

    # --- differences --------------------------------------------------------------------------------

    def differences(self) -> Iterator[Difference]:
        was, now = self._was, self._now
        yield from self.ends()
        if self.over is None and (said := other_end(was.error or None, now.error or None)):
            yield self.difference(DifferenceKind.ERROR, "", said)
        for session in was.all_sessions:
            other = self._sessions.get(session)
            if other is None:
                continue
            if said := other_end(session.error, other.error):
                yield self.difference(DifferenceKind.ERROR, session, said)
            if session.begun and other.begun and session.window != other.window:
                said = f"incoming-window {session.window} in the recording, {other.window} now"
                yield self.difference(DifferenceKind.CREDIT, session, said)
            for link in session.all_links:
                if link in self._links:
                    yield from self._of_link(link, self._links[link])

    def _of_link(self, was: LedgerLink, now: LedgerLink) -> Iterator[Difference]:
        if said := other_end(was.error, now.error):
            yield self.difference(DifferenceKind.ERROR, was, said)
        if was.attached and not now.attached:
            yield self.difference(DifferenceKind.MISSING, was, "the broker did not attach it")
        unsent = self._unsent.get(was, ())
        if unsent:
            said = f"{len(unsent)} of {was.begun} messages were not sent: no credit or window came for them"
            yield self.difference(DifferenceKind.CREDIT, was, said)
        if None not in (was.first_credit, now.first_credit) and was.first_credit != now.first_credit:
            said = f"credit {was.first_credit} at first in the recording, {now.first_credit} now"
            yield self.difference(DifferenceKind.CREDIT, was, said)
        for said in otherwise(was.outcomes, now.outcomes, "message"):
            yield self.difference(DifferenceKind.OUTCOME, was, said)
        if self.over is not None or now.error is not None:
            return  # the lost connection explains what is missing
        missing = sum(1 for each in was.outcomes if each not in now.outcomes and each not in unsent)
        if missing:
            yield self.difference(
                DifferenceKind.MISSING, was, f"{missing} of {len(was.outcomes)} outcomes did not come"
            )
        if not was.sends and now.whole < was.whole:
            said = f"{was.whole - now.whole} of {was.whole} messages did not come"
            yield self.difference(DifferenceKind.MISSING, was, said)
        if now.drained < was.drained:
            said = f"{was.drained - now.drained} of {was.drained} drains were not answered"
            yield self.difference(DifferenceKind.MISSING, was, said)


def content(offset: int, size: int, whole: int) -> bytes:
    """Return a part of a message of a recorded length: a data section of zeros. `whole`: length of the
    message; less than four bytes cannot be a message.
    """
    if whole > 260:
        head = b"\x00\x53\x75\xb0" + (whole - 8).to_bytes(4, "big")
    elif whole > 4:
        head = b"\x00\x53\x75\xa0" + bytes((whole - 5,))
    else:
        head = b"\x00\x53\x77\x40"[:whole]
    return head[offset : offset + size] + bytes(max(0, min(size, offset + size - len(head))))


def _look_through(part: RecordedConnection) -> tuple[list[tuple[int, bool]], dict[int, tuple[int, int]]]:
    # Returns the frames that begin or end something, and for each transfer its offset in its message and the
    # length of the message.
    ledger = Ledger10()
    controls: list[tuple[int, bool]] = []
    lengths: dict[int, tuple[int, int]] = {}
    parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step in part.steps:
        body, channel = step.frame.body, step.frame.channel
        if not step.sent:
            before = ledger.answers
            ledger.came(channel, body)
            if ledger.answers > before:
                controls.append((step.index, False))
            continue
        ledger.sent(channel, body)
        if isinstance(body, _STRUCTURE):
            controls.append((step.index, True))
        if isinstance(body, Transfer):
            pieces = parts.setdefault((channel, body.handle), [])
            pieces.append((step.index, step.frame.payload_bytes))
            if not body.more or body.aborted:
                _measure(parts.pop((channel, body.handle)), lengths)
    for pieces in parts.values():
        _measure(pieces, lengths)
    return controls, lengths


def _measure(pieces: list[tuple[int, int]], lengths: dict[int, tuple[int, int]]) -> None:
    whole = sum(size for _, size in pieces)
    offset = 0
    for index, size in pieces:
        lengths[index] = (offset, whole)
        offset += size
