"""Links on which clients receive that outlive their sessions: sections 2.6.1, 2.6.13 and 3.5."""

from __future__ import annotations

import pytest

from amqp10broker.sessions.amqp10 import resumable_links
from tests.support.script import ScriptRunner, again, reattached

LINK = "name=mine source=/queues/q timeout=60"
SECOND = f"{LINK} rcv-settle-mode=second"


@pytest.fixture
def script() -> ScriptRunner:
    """Return a script with queue q of six messages, of which a client holds four."""
    return holding(SECOND)


def holding(attach: str, *settings: str, size: str = "") -> ScriptRunner:
    script = ScriptRunner()
    for command in (*settings, "queue q", f"publish q 6 {size}", "C> BEGIN", f"C> ATTACH h=1 {attach}"):
        script.do(command)
    (transfers,) = script.do("C> FLOW h=1 dc=0 cr=4")
    assert transfers.startswith("B> TRANSFER h=1 did=0..3 tag=0..3 ")
    return script


def count(script: ScriptRunner) -> tuple[int, int]:
    queue = script.world.queues["q"].queue
    return queue.ready, queue.unsettled


# --- what is resumed ------------------------------------------------------------------------------


def test_what_the_client_has_not_settled_is_resumed_in_its_order_before_what_is_new(
    script: ScriptRunner,
) -> None:
    """One delivery has an outcome, one is complete, one is partial, and one never arrived."""
    script.do("lose C")
    assert count(script) == (2, 4)
    answer = again(script, f"{SECOND} unsettled={{#2:received,#0:accepted,#1:null}}")
    assert "unsettled={#0:null,#1:null,#2:null,#3:null}" in answer
    # The decision is carried out, and what the client does not have is in its place again.
    assert count(script) == (3, 2)
    assert script.do("C> FLOW h=1 dc=0 cr=10") == [
        "B> TRANSFER h=1 did=0 tag=0 settled=true state=accepted resume=true body=",
        "B> TRANSFER h=1 did=1 tag=1 resume=true body=m1",
        "B> TRANSFER h=1 did=2 tag=2 state=received(0,0) resume=true body=m2",
        "B> TRANSFER h=1 did=3 tag=3 body=m3 first-acquirer=false",
        "B> TRANSFER h=1 did=4..5 tag=4..5 body=m4..m5 (2 frames)",
    ]
    script.do("C> DISPOSITION role=receiver first=1 last=5 settled=true state=accepted")
    assert count(script) == (0, 0)


@pytest.mark.parametrize(
    ("outcome", "left", "delivery"),
    [
        ("accepted", (5, 0), None),
        ("rejected", (5, 0), None),
        ("released", (6, 0), "body=m0 first-acquirer=false"),
        ("modified(failed)", (6, 0), "body=m0 first-acquirer=false delivery-count=1"),
    ],
)
def test_an_outcome_that_was_lost_is_carried_out(
    outcome: str, left: tuple[int, int], delivery: str | None
) -> None:
    """It is applied only once; no disposition had arrived (L12)."""
    script = holding(SECOND)
    reattached(script, f"{SECOND} unsettled={{#0:{outcome}}}")
    assert count(script) == left
    first, second, *_ = script.do_plainly("C> FLOW h=1 dc=0 cr=10")
    assert first == f"B> TRANSFER h=1 did=0 tag=0 settled=true state={outcome} resume=true body="
    if delivery is not None:
        assert second == f"B> TRANSFER h=1 did=1 tag=0 {delivery}"


def test_what_was_settled_before_is_not_resumed(script: ScriptRunner) -> None:
    """The broker's map shows the settlement to the client."""
    script.do("C> DISPOSITION role=receiver first=0 last=1 state=accepted")
    answer = reattached(script, f"{SECOND} unsettled={{#0:accepted,#1:accepted,#2:null,#3:null}}")
    assert "unsettled={#2:null,#3:null}" in answer
    assert count(script) == (2, 2)


def test_resumed_deliveries_need_credit_and_leave_the_rest_to_new_ones(script: ScriptRunner) -> None:
    """They are kept again as long as none of them is settled."""
    script.do("lose C")
    mine = "unsettled={#0:null,#1:null,#2:null,#3:null}"
    again(script, f"{SECOND} {mine}")
    assert script.do("C> FLOW h=1 dc=0 cr=2") == [
        "B> TRANSFER h=1 did=0..1 tag=0..1 resume=true body=m0..m1 (2 frames)"
    ]
    assert mine in reattached(script, f"{SECOND} {mine}")
    lines = script.do("C> FLOW h=1 dc=0 cr=5")
    assert lines == [
        "B> TRANSFER h=1 did=0..3 tag=0..3 resume=true body=m0..m3 (4 frames)",
        "B> TRANSFER h=1 did=4 tag=4 body=m4",
    ]


def test_deliveries_that_were_never_written_go_back(script: ScriptRunner) -> None:
    """They waited for the client's window, so that the client has nothing unsettled."""
    script.do("C> FLOW h=1 dc=4 cr=2 iw=0")
    script.do("lose C")
    assert count(script) == (2, 4)
    script.do("D> BEGIN")
    script.do("D> ATTACH h=1 source=/queues/q")
    (lines,) = script.do("D> FLOW h=1 dc=0 cr=10")
    assert lines.endswith("tag=4..5 body=m4..m5 (2 frames)")


def test_a_message_of_many_frames_is_resumed_from_its_beginning() -> None:
    """The client has one of its frames."""
    script = ScriptRunner()
    script.do("connect C max-frame-size=512")
    for command in ("queue q", "publish q 1 size=2000", "C> BEGIN", f"C> ATTACH h=1 {SECOND}"):
        script.do(command)
    script.do("C> FLOW h=1 dc=0 cr=1 iw=1")
    script.do("lose C")
    script.do("connect C max-frame-size=512")
    script.do("C> BEGIN")
    script.do(f"C> ATTACH h=1 {SECOND} unsettled={{#0:received}}")
    frames = script.do_plainly("C> FLOW h=1 dc=0 cr=1 iw=100")
    assert len(frames) == 5
    assert all("state=received(0,0) resume=true" in line for line in frames)
    assert "m0[2000]" in frames[-1]


def test_a_message_whose_content_is_not_kept_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user's bound is reached, so it is requeued and comes as a new delivery."""
    monkeypatch.setattr(resumable_links, "CONTENT_BYTES_MAX", 2_500)
    script = holding(SECOND, size="size=1000")
    reattached(script, f"{SECOND} unsettled={{#0:null,#1:null,#2:null,#3:null}}")
    lines = script.do_plainly("C> FLOW h=1 dc=0 cr=5")
    assert [line.partition(" body=")[0] for line in lines] == [
        "B> TRANSFER h=1 did=0 tag=0 resume=true",
        "B> TRANSFER h=1 did=1 tag=1 resume=true",
        "B> TRANSFER h=1 did=2 tag=2 settled=true resume=true aborted=true",
        "B> TRANSFER h=1 did=3 tag=3 settled=true resume=true aborted=true",
        "B> TRANSFER h=1 did=4 tag=2",
    ]


def test_with_an_incomplete_map_what_it_does_not_name_stays(script: ScriptRunner) -> None:
    """Nothing new is sent until the client attaches again with a complete map (L16)."""
    reattached(script, f"{SECOND} unsettled={{#0:accepted}} incomplete-unsettled=true")
    assert script.do("C> FLOW h=1 dc=0 cr=10") == [
        "B> TRANSFER h=1 did=0 tag=0 settled=true state=accepted resume=true body="
    ]
    assert count(script) == (2, 3)
    script.do("C> DETACH h=1")
    (answer,) = script.do(f"C> ATTACH h=1 {SECOND} unsettled={{#1:accepted,#2:accepted,#3:accepted}}")
    assert "unsettled={#1:null,#2:null,#3:null}" in answer
    assert count(script) == (2, 0)


def test_a_map_of_ours_that_does_not_fit_a_frame_is_incomplete() -> None:
    script = ScriptRunner()
    script.do("connect C max-frame-size=512")
    for command in ("queue q", "publish q 101", "C> BEGIN", f"C> ATTACH h=1 {SECOND}"):
        script.do(command)
    script.do("C> FLOW h=1 dc=0 cr=100")
    script.do("lose C")
    script.do("connect C max-frame-size=512")
    script.do("C> BEGIN")
    tags = ",".join(f"#{number}:accepted" for number in range(99))
    answer = script.do(f"C> ATTACH h=1 {SECOND} unsettled={{{tags}}}")[0]
    assert "incomplete-unsettled=true" in answer
    # All that the client names is resumed; the one that it does not name stays, and nothing new comes.
    (lines,) = script.do("C> FLOW h=1 dc=0 cr=200")
    assert lines.startswith("B> TRANSFER h=1 did=0..98 tag=0..98 settled=true state=accepted resume=true ")
    assert count(script) == (1, 1)
    script.do("C> DETACH h=1")
    assert "unsettled={#99:null} " in script.do(f"C> ATTACH h=1 {SECOND} unsettled={{}}")[0]
    assert script.do("C> FLOW h=1 dc=0 cr=200") == [
        "B> TRANSFER h=1 did=99 tag=99 body=m99 first-acquirer=false",
        "B> TRANSFER h=1 did=100 tag=100 body=m100",
    ]


# --- what happens meanwhile -----------------------------------------------------------------------


def test_other_consumers_do_not_see_what_a_suspended_link_holds(script: ScriptRunner) -> None:
    """A time-out gives it back with the default outcome (L20)."""
    script.do("lose C")
    script.do("D> BEGIN")
    script.do("D> ATTACH h=1 source=/queues/q")
    (lines,) = script.do("D> FLOW h=1 dc=0 cr=10")
    assert lines.endswith("tag=4..5 body=m4..m5 (2 frames)")
    script.do("pass 59")
    assert count(script) == (0, 6)
    (lines,) = script.do("pass 1")
    assert lines == "B>D TRANSFER h=1 did=2..5 tag=0..3 body=m0..m3 first-acquirer=false (4 frames)"
    assert len(script.world.resumable_links) == 0
    assert "unsettled={} " in again(script, f"{SECOND} unsettled={{#0:null}}")


def test_the_default_outcome_is_that_of_the_source() -> None:
    script = holding(f"{SECOND} default-outcome=modified(failed)")
    script.do("lose C")
    script.do("pass 60")
    script.do("D> BEGIN")
    script.do("D> ATTACH h=1 source=/queues/q")
    assert "delivery-count=1" in script.do("D> FLOW h=1 dc=0 cr=1")[0]


@pytest.mark.parametrize(
    ("policy", "ends"), [("link-detach", "detach"), ("session-end", "end"), ("connection-close", "close")]
)
def test_the_timer_starts_when_the_expiry_policy_says(policy: str, ends: str) -> None:
    script = holding(f"{SECOND} expiry-policy={policy}")
    for step, command in (("detach", "C> DETACH h=1"), ("end", "C> END"), ("close", "C> CLOSE")):
        script.do(command)
        if step == ends:
            break
        script.do("pass 1000")
    script.do("pass 59")
    assert count(script) == (2, 4)
    script.do("pass 1")
    assert count(script) == (6, 0)


def test_a_queue_that_is_deleted_ends_the_link(script: ScriptRunner) -> None:
    script.do("lose C")
    script.do("delete q")
    assert len(script.world.resumable_links) == 0
    assert script.world.boxes == {}


@pytest.mark.parametrize("end", ["C> DETACH h=1 closed=true", "delete q"])
def test_a_link_that_is_closed_or_whose_queue_goes_is_not_kept(script: ScriptRunner, end: str) -> None:
    script.do(end)
    assert len(script.world.resumable_links) == 0
    assert count(script)[1] == 0


@pytest.mark.parametrize(
    "attach",
    [
        f"{LINK} snd-settle-mode=settled",
        f"{LINK} distribution-mode=copy",
        "name=mine source=dynamic timeout=60",
        "name=mine source=/queues/q",
    ],
)
def test_a_link_of_which_nothing_can_be_kept_is_granted_nothing(attach: str) -> None:
    """Nothing is kept for presettled links, browsers, dynamic queues or without a request (L14, L23)."""
    script = ScriptRunner()
    for command in ("queue q", "C> BEGIN", f"C> ATTACH h=1 {attach}", "C> DETACH h=1"):
        script.do(command)
    assert len(script.world.resumable_links) == 0


def test_more_than_a_map_can_name_goes_back_when_the_link_is_suspended() -> None:
    """The oldest 4 096 stay (L22)."""
    script = ScriptRunner()
    for command in ("queue q", "publish q 4100", "C> BEGIN", f"C> ATTACH h=1 {SECOND}"):
        script.do(command)
    script.do("C> FLOW h=1 dc=0 cr=5000")
    assert count(script) == (0, 4_100)
    script.do("lose C")
    assert count(script) == (4, 4_096)


# --- whose ----------------------------------------------------------------------------------------


def test_another_connection_of_the_container_takes_a_kept_link_over(script: ScriptRunner) -> None:
    """Unsettled deliveries move too; the earlier end is detached and settles nothing any more (2.6.1)."""
    script.do("C> FLOW h=1 dc=4 cr=0")
    script.do("connect D container=client-C")
    script.do("D> BEGIN")
    lines = script.do(f"D> ATTACH h=1 {SECOND} unsettled={{#0:null,#1:null}}")
    (stolen,) = [line for line in lines if line.startswith("B> DETACH")]
    assert stolen.startswith("B> DETACH h=1 closed=true error=amqp:link:stolen ")
    assert "unsettled={#0:null,#1:null,#2:null,#3:null}" in lines[-1]
    script.do("C> DISPOSITION role=receiver first=0 last=3 settled=true state=accepted")
    assert count(script) == (4, 2)
    lines = script.do("D> FLOW h=1 dc=0 cr=3")
    assert lines[0] == "B>D TRANSFER h=1 did=0..1 tag=0..1 resume=true body=m0..m1 (2 frames)"
    assert lines[1] == "B>D TRANSFER h=1 did=2 tag=2 body=m2 first-acquirer=false"


def test_letters_of_the_queue_to_the_end_before_do_not_count_for_the_next(script: ScriptRunner) -> None:
    """A delivery and an answer were on their way when the link was taken over."""
    script.do("mute q")
    script.do("C> FLOW h=1 dc=4 cr=2")
    script.do("connect D container=client-C")
    script.do("D> BEGIN")
    script.do(f"D> ATTACH h=1 {SECOND} unsettled={{#0:accepted,#1:accepted,#2:accepted,#3:accepted}}")
    script.do("D> FLOW h=1 dc=0 cr=20")
    lines = script.do("speak q")
    assert lines[-1].endswith("tag=4..5 body=m4..m5 (2 frames)")
    assert count(script) == (0, 2)
    (lines,) = script.do("publish q 2")
    assert lines.endswith("tag=6..7 body=m6..m7 (2 frames)")


def test_another_source_begins_anew(script: ScriptRunner) -> None:
    """Unsettled deliveries of the old source are requeued (L8)."""
    script.do("queue r")
    assert "unsettled={} " in reattached(script, "name=mine source=/queues/r timeout=60 unsettled={#0:null}")
    assert count(script) == (6, 0)


def test_without_a_map_nothing_is_resumed(script: ScriptRunner) -> None:
    assert "unsettled" not in reattached(script, SECOND)
    assert count(script) == (6, 0)
    assert len(script.world.resumable_links) == 1


def test_a_null_source_is_the_source_as_it_was(script: ScriptRunner) -> None:
    answer = reattached(
        script, "name=mine role=receiver source=null rcv-settle-mode=second unsettled={#0:accepted}"
    )
    assert "source=/queues/q unsettled={#0:null,#1:null,#2:null,#3:null}" in answer
    assert count(script) == (5, 0)
