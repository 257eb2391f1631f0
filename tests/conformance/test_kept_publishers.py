"""Links on which clients send that outlive their sessions: sections 2.6.1, 2.6.13 and 3.5."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10.delivery import UNSETTLED_ENTRIES_MAX
from amqp10broker.routing.exchange import Binding
from amqp10broker.routing.exchange_types import Destination
from tests.support.declaring import bind
from tests.support.script import ScriptRunner, again, reattached

LINK = "name=mine target=/queues/q timeout=60"
SECOND = f"{LINK} rcv-settle-mode=second"


def begun(*settings: str) -> ScriptRunner:
    script = ScriptRunner()
    for command in (*settings, "queue q", "C> BEGIN"):
        script.do(command)
    return script


def ready(script: ScriptRunner) -> int:
    return script.world.queues["q"].queue.ready


@pytest.fixture
def script() -> ScriptRunner:
    return begun()


# --- what the map says ----------------------------------------------------------------------------


def test_the_map_tells_outcomes_that_were_lost(script: ScriptRunner) -> None:
    """Outcomes of 0 and 1 were sent, those of 2 and 3 fall while it is suspended, and 4 never came."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0..1")
    script.do("withhold q")
    script.do("C> TRANSFER h=1 did=2..3")
    script.do("lose C")
    script.do("confirm q 2")
    answer = again(script, f"{SECOND} unsettled={{#0:accepted,#1:null,#2:null,#3:null,#4:null}}")
    assert "unsettled={#0:accepted,#1:accepted,#2:accepted,#3:accepted}" in answer
    # Both know the outcome: no content, settled, and forgotten; none is taken twice.
    assert script.do("C> TRANSFER h=1 did=0 tag=0 resume=true settled=true") == []
    # The client knows it from the map alone and does not settle yet: it is told again.
    assert script.do("C> TRANSFER h=1 did=1 tag=1 resume=true") == [
        "B> DISPOSITION role=receiver first=1 state=accepted"
    ]
    script.do("C> DISPOSITION role=sender first=1 settled=true")
    assert ready(script) == 4
    answer = reattached(script, f"{SECOND} unsettled={{#0:null,#1:null,#2:null,#3:null}}")
    assert "unsettled={#2:accepted,#3:accepted}" in answer


def test_a_delivery_that_queues_have_is_not_taken_again_and_is_answered_when_they_speak(
    script: ScriptRunner,
) -> None:
    """Its content may come once more, in one frame or in several."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("withhold q")
    script.do("C> TRANSFER h=1 did=0..1")
    assert "unsettled={#0:null,#1:null}" in reattached(script, f"{SECOND} unsettled={{#0:null,#1:null}}")
    assert script.do("C> TRANSFER h=1 did=7 tag=0 resume=true") == []
    assert script.do("C> TRANSFER h=1 did=8 tag=1 resume=true part=1/2 ; TRANSFER h=1 part=2/2") == []
    assert script.do("confirm q 2") == ["B> DISPOSITION role=receiver first=7 last=8 state=accepted"]
    assert ready(script) == 2
    script.do("C> DISPOSITION role=sender first=7 last=8 settled=true")
    script.do("C> DETACH h=1")
    (answer, _) = script.do(f"C> ATTACH h=1 {SECOND} unsettled={{#0:null,#1:null}}")
    assert "unsettled={} " in answer


def test_what_several_queues_say_before_and_after_is_one_outcome(script: ScriptRunner) -> None:
    for command in ("queue r", "withhold q", "withhold r"):
        script.do(command)
    for name in ("q", "r"):
        bind(script.world.catalog, script.world.vhost, Binding("amq.fanout", Destination("queue", name)))
    attach = "name=mine target=/exchanges/amq.fanout timeout=60 rcv-settle-mode=second"
    script.do(f"C> ATTACH h=1 {attach}")
    script.do("C> TRANSFER h=1 did=0")
    script.do("confirm q 1")
    answer = reattached(script, f"{attach} unsettled={{#0:null}}")
    assert "unsettled={#0:null}" in answer
    script.do("C> TRANSFER h=1 did=3 tag=0 resume=true")
    assert script.do("confirm r 1") == ["B> DISPOSITION role=receiver first=3 state=accepted"]


def test_with_mode_first_what_was_told_last_is_in_the_map(script: ScriptRunner) -> None:
    """The last outcomes may be lost; older ones arrived, because the client got credit after them."""
    script.do("set max_link_credit 2")
    script.do(f"C> ATTACH h=1 {LINK}")
    for number in range(9):
        script.do(f"C> TRANSFER h=1 did={number}")
    answer = reattached(script, f"{LINK} unsettled={{#0:null,#7:null,#8:null,#9:null}}")
    assert "unsettled={#7:accepted,#8:accepted}" in answer
    script.do("C> TRANSFER h=1 did=0 tag=7 resume=true settled=true")
    told, _ = script.do("C> TRANSFER h=1 did=1 tag=8 resume=true")
    assert told == "B> DISPOSITION role=receiver first=1 settled=true state=accepted"
    assert ready(script) == 9


def test_with_mode_first_a_smaller_limit_forgets_nothing_that_may_be_on_its_way(script: ScriptRunner) -> None:
    """A limit lowered by hand or automatically does not apply to deliveries sent before."""
    script.do("set max_link_credit 10")
    script.do(f"C> ATTACH h=1 {LINK}")
    script.do("C> TRANSFER h=1 did=0..8")
    script.do("set max_link_credit 1")
    script.do("C> TRANSFER h=1 did=9")
    answer = reattached(script, f"{LINK} unsettled={{#0:null,#9:null}}")
    assert "unsettled={#0:accepted,#9:accepted}" in answer


def test_of_a_delivery_that_came_in_part_nothing_is_kept(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0 part=1/2 body=big size=900")
    assert "unsettled={} " in reattached(script, f"{SECOND} unsettled={{#0:null}}")
    assert ready(script) == 0


def test_a_client_gives_a_delivery_up_by_aborting_it(script: ScriptRunner) -> None:
    """A delivery missing in its map counts as settled."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0..2")
    assert "unsettled={#0:accepted,#1:accepted}" in reattached(
        script, f"{SECOND} unsettled={{#0:null,#1:null}}"
    )
    assert script.do("C> TRANSFER h=1 did=0 tag=0 resume=true aborted=true") == []
    answer = reattached(script, f"{SECOND} unsettled={{#0:null,#1:null,#2:null}}")
    assert "unsettled={#1:accepted}" in answer


def test_without_a_map_nothing_is_resumed(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    assert "unsettled" not in reattached(script, SECOND)
    assert "unsettled={} " in reattached(script, f"{SECOND} unsettled={{#0:null}}")


def test_a_map_that_does_not_fit_a_frame_is_incomplete() -> None:
    """2.6.13: the rest comes when the link is attached again."""
    script = begun("connect C max-frame-size=512 container=client-C")
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0..99")
    script.do("lose C")
    tags = ",".join(f"#{number}:null" for number in range(100))
    script.do("connect C max-frame-size=512 container=client-C")
    script.do("C> BEGIN")
    answer = script.do(f"C> ATTACH h=1 {SECOND} unsettled={{{tags}}}")[0]
    assert "incomplete-unsettled=true" in answer
    assert "#0:accepted" in answer
    assert "#99:accepted" not in answer
    shown = answer.count(":accepted")
    rest = ",".join(f"#{number}:null" for number in range(shown, 100))
    script.do(f"C> TRANSFER h=1 did=0..{shown - 1} resume=true settled=true ; DETACH h=1")
    answer = script.do(f"C> ATTACH h=1 {SECOND} unsettled={{{rest}}}")[0]
    assert f"#{shown}:accepted" in answer


# --- how long -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "ends"), [("link-detach", "detach"), ("session-end", "end"), ("connection-close", "close")]
)
def test_the_timer_starts_when_the_expiry_policy_says(policy: str, ends: str) -> None:
    """L4: until then time does not count."""
    script = begun()
    attach = f"{SECOND} expiry-policy={policy} unsettled={{#0:null}}"
    script.do(f"C> ATTACH h=1 {SECOND} expiry-policy={policy}")
    script.do("C> TRANSFER h=1 did=0")
    for step, command in (("detach", "C> DETACH h=1"), ("end", "C> END"), ("close", "C> CLOSE")):
        script.do(command)
        if step == ends:
            break
        script.do("pass 1000")
    script.do("pass 59")
    assert [kept.key.name for kept in script.world.resumable_links] == ["mine"]
    script.do("pass 1")
    assert list(script.world.resumable_links) == []
    assert "unsettled={} " in again(script, attach, "D")


def test_never_is_granted_where_there_is_no_largest_timeout() -> None:
    script = begun("config suspended_link_timeout_max_s 0")
    script.do(f"C> ATTACH h=1 {SECOND} expiry-policy=never")
    script.do("C> TRANSFER h=1 did=0")
    script.do("lose C")
    script.do("pass 1000000")
    assert "unsettled={#0:accepted}" in again(script, f"{SECOND} unsettled={{#0:null}}")


@pytest.mark.parametrize("end", ["C> DETACH h=1 closed=true", "delete q", "C> TRANSFER h=1 did=1 tag=0"])
def test_a_link_that_is_closed_or_fails_is_not_kept(script: ScriptRunner, end: str) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    script.do(end)
    assert len(script.world.resumable_links) == 0


def test_who_asks_for_nothing_has_nothing_kept(script: ScriptRunner) -> None:
    script.do("C> ATTACH h=1 name=mine target=/queues/q rcv-settle-mode=second")
    script.do("C> TRANSFER h=1 did=0")
    script.do("C> DETACH h=1")
    assert len(script.world.resumable_links) == 0


# --- whose ----------------------------------------------------------------------------------------


def test_another_connection_of_the_container_takes_a_kept_link_over(script: ScriptRunner) -> None:
    """The earlier end is detached, and unsettled deliveries go with the link (2.6.1)."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    script.do("connect D container=client-C")
    script.do("D> BEGIN")
    lines = script.do(f"D> ATTACH h=1 {SECOND} unsettled={{#0:null}}")
    (stolen,) = [line for line in lines if line.startswith("B> DETACH")]
    assert stolen.startswith("B> DETACH h=1 closed=true error=amqp:link:stolen ")
    (answer,) = [line for line in lines if line.startswith("B>D ATTACH")]
    assert "unsettled={#0:accepted}" in answer
    # What C still sends on its old end is for nobody.
    script.do("C> TRANSFER h=1 did=1")
    assert ready(script) == 1


def test_a_link_of_another_container_is_another_link(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    script.do("lose C")
    script.do("connect D container=other")
    script.do("D> BEGIN")
    assert "unsettled={} " in script.do(f"D> ATTACH h=1 {SECOND} unsettled={{#0:null}}")[0]


def test_within_a_session_it_is_taken_over_as_well(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    stolen, answer, _ = script.do(f"C> ATTACH h=2 {SECOND} unsettled={{#0:null}}")
    assert stolen.startswith("B> DETACH h=1 closed=true error=amqp:link:stolen ")
    assert "unsettled={#0:accepted}" in answer


def test_a_null_target_is_the_target_as_it_was(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    script.do("C> DETACH h=1")
    answer = script.do(
        "C> ATTACH h=1 name=mine role=sender target=null rcv-settle-mode=second unsettled={#0:null}"
    )[0]
    assert "target=/queues/q unsettled={#0:accepted}" in answer


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (2, 2)])
def test_a_user_may_have_so_many(most: int, kept: int) -> None:
    script = begun(f"config suspended_links_max {most}")
    for number in range(3):
        answer = script.do(f"C> ATTACH h={number} name=link{number} target=/queues/q timeout=60")[0]
        assert "B> ATTACH" in answer
    script.do("lose C")
    assert len(script.world.resumable_links) == kept
    script.do("pass 60")
    assert len(script.world.resumable_links) == 0


def test_a_tag_that_is_in_use_ends_the_link(script: ScriptRunner) -> None:
    """2.6.12: a tag is unique among the unsettled deliveries of a link."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    script.do("C> TRANSFER h=1 did=0")
    (detach,) = script.do("C> TRANSFER h=1 did=1 tag=0")
    assert detach.startswith("B> DETACH h=1 closed=true error=amqp:not-allowed ")
    assert ready(script) == 1


def test_a_tag_that_is_settled_may_be_used_again(script: ScriptRunner) -> None:
    script.do(f"C> ATTACH h=1 {LINK}")
    script.do("C> TRANSFER h=1 did=0")
    assert script.do("C> TRANSFER h=1 did=1 tag=0") == [
        "B> DISPOSITION role=receiver first=1 settled=true state=accepted"
    ]
    assert ready(script) == 2


def test_a_client_that_never_settles_is_detached(script: ScriptRunner) -> None:
    """It may leave 4 096 deliveries unsettled, beside two grants of credit."""
    script.do(f"C> ATTACH h=1 {SECOND}")
    lines = []
    for start in range(0, 4_600, 100):
        lines = script.do(f"C> TRANSFER h=1 did={start}..{start + 99}")
        if any("DETACH" in line for line in lines):
            break
    assert any("closed=true error=amqp:resource-limit-exceeded " in line for line in lines)
    assert ready(script) == 4_400


def grown(script: ScriptRunner, turns: int) -> tuple[int, int]:
    """Use automatic credit on a kept link; return the number of deliveries and the credit's limit."""
    script.do(f"C> ATTACH h=1 {LINK}")
    service = script.world.clients["C"].sessions[0].service
    (publisher,) = service.publishers
    sent = 0
    for _ in range(turns):
        service.moment.ms += 50
        credit = publisher.link.credit.link_credit
        script.do(f"C> TRANSFER h=1 did={sent}..{sent + credit - 1}")
        sent += credit
    return sent, publisher.link.credit.limit


def test_outcomes_of_as_many_as_were_granted_are_kept_when_automatic_credit_has_shrunk() -> None:
    """They may not have reached the client, which got its credit before."""
    script = begun("set max_link_credit auto", "set max_incoming_window auto")
    sent, limit = grown(script, 12)
    assert limit >= 680
    script.do("alarm memory on")
    script.do("alarm memory off")
    (publisher,) = script.world.clients["C"].sessions[0].service.publishers
    assert publisher.link.credit.limit == 170
    script.do(f"C> TRANSFER h=1 did={sent}")
    script.do("lose C")
    old = sent - limit
    answer = again(script, f"{LINK} unsettled={{#{old}:null}}")
    assert f"unsettled={{#{old}:accepted}}" in answer


def test_automatic_credit_of_a_kept_link_stays_below_what_an_unsettled_map_may_have() -> None:
    """A client that has sent all that was granted can always come back with it."""
    script = begun("set max_link_credit auto", "set max_incoming_window auto")
    _, limit = grown(script, 60)
    assert limit + limit // 2 <= UNSETTLED_ENTRIES_MAX
    assert limit >= 2_000
