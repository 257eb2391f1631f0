"""Part 2, sections 2.7 (performatives) and 2.8 (definitions), field by field, at the broker."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.serial import add, diff, ranges
from tests.support.script import ScriptRunner

LAST = 4_294_967_295
PUBLISHER = ("queue q", "C> BEGIN", "C> ATTACH h=0 target=/queues/q")
CONSUMER = ("queue q", "publish q 4", "C> BEGIN", "C> ATTACH h=1 source=/queues/q")


def after(*commands: str) -> ScriptRunner:
    script = ScriptRunner()
    for command in commands:
        script.do(command)
    return script


# --- 2.7.3 attach --------------------------------------------------------------------------------


def test_attach_of_the_sender_end_has_initial_delivery_count() -> None:
    """initial-delivery-count "MUST NOT be null if role is sender"."""
    script = after("queue q", "C> BEGIN")
    (line,) = script.do("C> ATTACH h=1 source=/queues/q")
    assert "idc=0" in line


def test_attach_of_the_receiver_end_has_none() -> None:
    """initial-delivery-count "is ignored if the role is receiver"."""
    script = after("queue q", "C> BEGIN")
    line, _ = script.do("C> ATTACH h=1 target=/queues/q")
    assert "idc=" not in line


@pytest.mark.parametrize("mode", ["unsettled", "settled", "mixed"])
@pytest.mark.parametrize("terminus", ["source", "target"])
def test_the_senders_settle_mode_is_agreed_to(mode: str, terminus: str) -> None:
    """ "The sender SHOULD respect the receiver's desired settlement mode if the receiver initiates"; a
    sending client chooses its own. mixed is the default and is not shown.
    """
    script = after("queue q", "C> BEGIN")
    line = script.do(f"C> ATTACH h=1 {terminus}=/queues/q snd-settle-mode={mode}")[0]
    assert (f"snd-settle-mode={mode}" in line) == (mode != "mixed")


@pytest.mark.parametrize("mode", ["first", "second"])
@pytest.mark.parametrize("terminus", ["source", "target"])
def test_the_receivers_settle_mode_is_agreed_to(mode: str, terminus: str) -> None:
    """ "The receiver SHOULD respect the sender's desired settlement mode if the sender initiates"."""
    script = after("queue q", "C> BEGIN")
    line = script.do(f"C> ATTACH h=1 {terminus}=/queues/q rcv-settle-mode={mode}")[0]
    assert (f"rcv-settle-mode={mode}" in line) == (mode != "first")


# --- 2.7.4 flow ----------------------------------------------------------------------------------


def test_echo_of_a_flow_with_a_handle_gets_the_links_state() -> None:
    """2.7.4: with a handle the flow has the link's state, and every flow has the session's as well."""
    script = after(*CONSUMER)
    (line,) = script.do("C> FLOW h=1 dc=0 cr=0 echo=true")
    assert line == "B> FLOW nii=0 iw=400 noi=0 h=1 dc=0 cr=0 available=4"


# --- 2.7.5 transfer ------------------------------------------------------------------------------


def test_transfer_on_the_handle_of_a_receiver_ends_the_session() -> None:
    """2.8.17 errant-link: a receiving end may not send."""
    script = after(*CONSUMER)
    assert script.do("C> TRANSFER h=1")[0].startswith("B> END error=amqp:session:errant-link")


def test_the_first_transfer_must_have_a_delivery_tag() -> None:
    """ "This field MUST be specified for the first transfer of a multi-transfer message"."""
    script = after(*PUBLISHER)
    assert script.do("C> TRANSFER h=0 did=0 tag=none")[0].startswith(
        "B> DETACH h=0 closed=true error=amqp:invalid-field"
    )


def test_continuations_may_leave_delivery_id_and_tag_out() -> None:
    """ "On continuation transfers the delivery-id MAY be omitted"; the tag "can only be omitted for
    continuation transfers"."""
    script = after(*PUBLISHER)
    assert script.do("C> TRANSFER h=0 part=1/2 size=500") == []
    assert len(script.do("C> TRANSFER h=0 part=2/2 size=500")) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("did=9 tag=none", "delivery-id of continuation transfer (9)"),
        ("did=none tag=9", "delivery-tag of continuation transfer"),
        ("did=none message-format=9", "message-format of continuation transfer (9)"),
        ("did=none settled=true", "field 'settled' of continuation transfer (true)"),
    ],
)
def test_continuations_must_not_contradict_the_first_transfer(fields: str, words: str) -> None:
    """ "It is an error if the delivery-id on a continuation transfer differs from the delivery-id on the
    first transfer of a delivery"; the same for delivery-tag and message-format; settled may not change
    its interpreted value."""
    script = after(*PUBLISHER)
    script.do("C> TRANSFER h=0 did=0 part=1/2 size=500")
    (line,) = script.do(f"C> TRANSFER h=0 part=2/2 size=500 body=big {fields}")
    assert line.startswith("B> DETACH h=0 closed=true error=amqp:invalid-field")
    assert words in line


@pytest.mark.parametrize(
    "fields", ["did=0 tag=0", "did=0 tag=none", "did=none tag=0", "did=none message-format=0"]
)
def test_continuations_may_repeat_the_first_transfer(fields: str) -> None:
    script = after(*PUBLISHER)
    script.do("C> TRANSFER h=0 did=0 part=1/2 size=500")
    assert script.do(f"C> TRANSFER h=0 part=2/2 size=500 body=big {fields}") == [
        "B> DISPOSITION role=receiver first=0 settled=true state=accepted"
    ]


@pytest.mark.parametrize(("size", "taken"), [(0, True), (1, True), (32, True), (33, False), (200, False)])
def test_a_delivery_tag_has_up_to_32_bytes(size: int, taken: bool) -> None:
    """2.8.7: "A delivery-tag can be up to 32 octets of binary data"."""
    script = after(*PUBLISHER)
    (line,) = script.do(f"C> TRANSFER h=0 tag=0x{'ab' * size}")
    assert line.startswith(
        "B> DISPOSITION" if taken else "B> DETACH h=0 closed=true error=amqp:invalid-field"
    )


def test_a_tag_that_is_in_use_on_a_link_that_is_not_kept_mixes_nothing_up() -> None:
    """2.6.12: tags MUST be unique; dispositions on such a link refer to delivery-ids instead."""
    script = after(*PUBLISHER, "withhold q")
    assert script.do("C> TRANSFER h=0 did=0 tag=0x07 body=a") == []
    assert script.do("C> TRANSFER h=0 did=1 tag=0x07 body=b") == []
    for number in range(2):
        assert script.do("confirm q 1") == [
            f"B> DISPOSITION role=receiver first={number} settled=true state=accepted"
        ]


def test_a_delivery_id_may_be_used_again_when_it_is_settled() -> None:
    script = after(*PUBLISHER)
    for _ in range(3):
        assert len(script.do("C> TRANSFER h=0 did=5")) == 1


def test_batchable_is_taken_of_transfers_and_dispositions() -> None:
    """2.7.5, 2.7.6: "If true, then the issuer is hinting that there is no need for the peer to urgently
    communicate updated delivery state"; the hint does not change any answer.
    """
    script = after(*PUBLISHER)
    assert script.do("C> TRANSFER h=0 did=0 batchable=true") == [
        "B> DISPOSITION role=receiver first=0 settled=true state=accepted"
    ]
    script.do("C> ATTACH h=1 source=/queues/q")
    assert len(script.do("C> FLOW h=1 dc=0 cr=1")) == 1
    assert script.do("C> DISPOSITION role=receiver first=0 settled=true batchable=true state=accepted") == []
    assert script.do("count q") == ["= ready=0 unsettled=0"]


def test_messages_in_front_of_one_that_is_too_large_are_taken() -> None:
    """The fault of one delivery does not undo the deliveries in front of it, also in one read."""
    script = after("config max_message_size_bytes 100", *PUBLISHER, "C> ATTACH h=1 target=/queues/q")
    script.do(
        "C> TRANSFER h=0 did=300..301 size=20 ; TRANSFER h=0 did=302 size=200 ; TRANSFER h=0 did=303 size=20"
    )
    assert script.do("count q") == ["= ready=2 unsettled=0"]


# --- 2.7.6 disposition ---------------------------------------------------------------------------


def test_last_unset_means_first() -> None:
    """ "If not set, this is taken to be the same as first"."""
    script = after(
        *CONSUMER, "C> FLOW h=1 dc=0 cr=4", "C> DISPOSITION role=receiver first=2 settled=true state=accepted"
    )
    assert script.do("count q") == ["= ready=0 unsettled=3"]


@pytest.mark.rabbitmq("serial_number_SUITE", "test_in_range")
@pytest.mark.parametrize(
    "span", ["first=0 last=4294967295", "first=2147483648 last=1", "first=4294967290 last=3"]
)
def test_a_range_costs_no_more_than_the_deliveries_it_finds(span: str) -> None:
    """2.8.10: ranges go by serial numbers; a hostile one must not be walked number by number."""
    script = after(*CONSUMER, "C> FLOW h=1 dc=0 cr=4")
    assert len(script.do(f"C> DISPOSITION role=receiver {span} settled=true state=accepted")) == 0


def test_both_roles_are_understood() -> None:
    """2.7.6: role states which end of the deliveries sends it."""
    script = after(*CONSUMER, "C> FLOW h=1 dc=0 cr=1")
    # As sender the client speaks of what it sent: delivery 0 of ours is another one.
    assert script.do("C> DISPOSITION role=sender first=0 settled=true state=accepted") == []
    assert script.do("count q") == ["= ready=3 unsettled=1"]


# --- 2.8.10 --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("serial_number_SUITE", "test_compare")
def test_serial_numbers_follow_rfc_1982() -> None:
    """Each is "a 32-bit RFC 1982 serial number"."""
    assert add(LAST, 1) == 0
    assert diff(0, LAST) == 1
    assert diff(LAST, 0) == -1
    assert diff(0, 2**31 - 1) < 0
    assert ranges([LAST - 1, LAST, 0, 3]) == [(LAST - 1, 0), (3, 3)]
    assert ranges([]) == []
    assert ranges([5, 3, 4, 9]) == [(3, 5), (9, 9)]
