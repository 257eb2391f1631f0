"""What no attach may ask for, whatever its terminus."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.frames import FrameReader
from amqp10broker.protocols.amqp10.link import LinkAttaching
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, Source, Target
from amqp10broker.protocols.amqp10.session import Session


def serving_session() -> Session:
    session = Session(0, incoming_window=400, handle_max=255, frame_size_max=65_536)
    session.receive_begin(0, Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
    session.begin()
    session.take_output()
    return session


def written(session: Session) -> list[object]:
    groups = FrameReader().read(b"".join(session.take_output()))
    return [item for _, items in groups for item in items]


@pytest.mark.parametrize(
    "attach",
    [
        Attach(name="a", handle=3, role=False, snd_settle_mode=7, initial_delivery_count=0, target=Target()),
        Attach(name="a", handle=3, role=True, snd_settle_mode=3, source=Source(address="q")),
        Attach(name="a", handle=3, role=True, rcv_settle_mode=2, source=Source(address="q")),
        Attach(name="a", handle=3, role=False, target=Target()),
    ],
)
def test_an_attach_with_a_field_no_link_can_have_is_refused_and_the_session_lives(attach: Attach) -> None:
    """2.8.2, 2.8.3, 2.7.3: the terminus of the answer is null, and the detach says which field."""
    session = serving_session()
    assert session.receive([attach]) == []
    answer, detach = written(session)
    assert isinstance(answer, Attach)
    assert isinstance(detach, Detach)
    assert (answer.source if attach.role else answer.target) is None
    assert answer.snd_settle_mode in (0, 1, 2)
    assert answer.rcv_settle_mode in (0, 1)
    assert detach.handle == answer.handle
    assert detach.error is not None
    assert detach.error.condition == "amqp:invalid-field"
    assert not session.ended


@pytest.mark.parametrize(
    ("unsettled", "condition"),
    [
        ({b"x" * 33: None}, "amqp:resource-limit-exceeded"),
        (dict.fromkeys(at.to_bytes(2, "big") for at in range(5_000)), "amqp:resource-limit-exceeded"),
        ({b"tag": "no state"}, "amqp:invalid-field"),
    ],
)
def test_an_attach_with_an_unsettled_map_that_is_none_or_too_large_is_refused(
    unsettled: dict[bytes, object], condition: str
) -> None:
    """2.6.13, 2.8.4: and the session lives."""
    session = serving_session()
    attach = Attach(name="a", handle=3, role=True, source=Source(address="q"), unsettled=unsettled)
    assert session.receive([attach]) == []
    answer, detach = written(session)
    assert isinstance(answer, Attach)
    assert answer.source is None
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == condition
    assert not session.ended


@pytest.mark.parametrize("accepted", [True, False])
def test_an_unsettled_map_is_not_kept_as_long_as_its_link(accepted: bool) -> None:
    """A client with many links would fill the memory with them; once it is answered, it has said all."""
    session = serving_session()
    attach = Attach(name="a", handle=3, role=True, source=Source(address="q"), unsettled={b"tag": None})
    (event,) = session.receive([attach])
    assert isinstance(event, LinkAttaching)
    if accepted:
        session.links.accept(
            event.link, source=Source(address="q"), target=None, snd_settle_mode=0, rcv_settle_mode=0
        )
    else:
        session.links.refuse(event.link, AmqpLinkError(Condition.NOT_FOUND, "no queue 'q'"))
    answer = written(session)[0]
    assert isinstance(answer, Attach)
    assert answer.unsettled == ({} if accepted else None)
    assert event.link.remote_attach is not None
    assert event.link.remote_attach.unsettled is None
