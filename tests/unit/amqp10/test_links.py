"""What no attach may ask for, whatever its terminus."""

from __future__ import annotations

import pytest

from amqp10broker.amqp10.frames import FrameReader
from amqp10broker.amqp10.performatives import Attach, Begin, Detach, Source, Target
from amqp10broker.amqp10.session import Session


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
