"""The rules of Raft, its log, and bytes of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.layout import BadBytes
from amqp10broker.raft import leader, messages
from amqp10broker.raft.core import ELECTION_MS, ELECTION_SPREAD_MS, YIELD_MS
from amqp10broker.raft.leader import LogView
from tests.support.raft_modules import raft_modules
from tests.support.raft_script import ScriptRunner

LEADING = """
group 1 2 3
time-out 1
run
"""


class Stage(ScriptRunner):
    """A group in some state."""

    def __init__(self, text: str = "") -> None:
        super().__init__(raft_modules())
        self.play(text)

    def play(self, text: str) -> list[str]:
        out: list[str] = []
        for line in text.strip().splitlines():
            out = self.output(line.strip())
            assert not [each for each in out if "BROKEN" in each], (line, out)
        return out

    def raft(self, me: int) -> Any:
        return self.group.nodes[me].raft

    def sent(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.group.network if isinstance(message, kind)]


# -- what is to be done, and tickets


def test_a_ticket_that_was_not_handed_out_is_a_fault_of_the_shell() -> None:
    """Such a ticket would make nothing durable."""
    with pytest.raises(AssertionError, match="ticket 9 was not handed out"):
        Stage("group 1").raft(1).persisted(9, 0)


# -- commit


def test_news_of_what_is_committed_may_wait_for_an_entry() -> None:
    """With `commit_wait_ms` followers get it with the next proposal, or when that time is over."""
    stage = Stage(LEADING)
    leader_of_it = stage.raft(1)
    leader_of_it.commit_wait_ms = 20
    stage.play("propose 1 a\nrun")
    assert [stage.raft(me).hard.commit for me in (1, 2, 3)] == [3, 2, 2]
    stage.play("propose 1 b\nrun")
    assert [stage.raft(me).hard.commit for me in (1, 2, 3)] == [4, 3, 3]
    assert leader_of_it.deadline == stage.group.now + 20
    stage.play("wait 20\nrun")
    assert [stage.raft(me).hard.commit for me in (1, 2, 3)] == [4, 4, 4]
    assert leader_of_it.deadline is None


def test_among_entries_that_follow_each_other_news_is_told_by_them_alone() -> None:
    """A single alarm is enough: it is set anew when it is due, not for each entry."""
    stage = Stage(LEADING)
    leader_of_it = stage.raft(1)
    leader_of_it.commit_wait_ms = 20
    dues = set()
    for index in range(30):
        stage.play(f"propose 1 {index}")
        appends = stage.sent(messages.Append)
        assert len(appends) == 2
        assert all(append.runs for append in appends)
        stage.play("run")
        dues.add(leader_of_it.deadline)
        stage.play("wait 2")
    assert len(dues) <= 5
    stage.play("wait 20\nrun")
    assert [stage.raft(me).hard.commit for me in (1, 2, 3)] == [32, 32, 32]


# -- elections


def test_a_late_answer_of_the_same_term_counts() -> None:
    """Otherwise no election is won where a round takes longer than the time-out."""
    stage = Stage("group 1 2 3\ntime-out 1\nkeep 1 2")
    (old,) = stage.sent(messages.PreVoteAnswer)
    stage.play("drop * *\ntime-out 1")
    stage.raft(1).step(old, 0)
    assert stage.raft(1).status.role is messages.Role.CANDIDATE


def test_an_answer_to_the_question_of_an_earlier_term_does_not_count() -> None:
    stage = Stage("group 1 2 3\ntime-out 1\nkeep 1 2")
    (old,) = stage.sent(messages.PreVoteAnswer)
    stage.play("drop * *\nsay 2 1 newer term 5\ntime-out 1")
    assert stage.raft(1).status.term == 5
    stage.raft(1).step(old, 0)
    assert stage.raft(1).status.role is messages.Role.PRE_CANDIDATE
    (new, _) = stage.sent(messages.PreVote)
    stage.raft(1).step(messages.PreVoteAnswer(2, 1, 5, new.token, True), 0)
    assert stage.raft(1).status.role is messages.Role.CANDIDATE


def test_a_refusal_takes_the_place_of_an_earlier_grant() -> None:
    """The voter has heard of a leader since its grant."""
    stage = Stage("group 1 2 3 4 5\ntime-out 1")
    raft = stage.raft(1)
    (question, *_) = stage.sent(messages.PreVote)
    raft.step(messages.PreVoteAnswer(2, 1, 0, question.token, True), 0)
    raft.step(messages.PreVoteAnswer(2, 1, 0, question.token, False), 0)
    raft.step(messages.PreVoteAnswer(3, 1, 0, question.token, True), 0)
    assert raft.status.role is messages.Role.PRE_CANDIDATE


def test_a_candidate_that_nobody_has_refused_asks_again_in_its_term() -> None:
    """Another term would make the votes void that are on their way."""
    stage = Stage("group 1 2 3\ntime-out 1\ndeliver 1 2\ndeliver 2 1\ndurable 1\ndrop * *")
    assert stage.play("time-out 1") == ["-> 1 to 2 Vote term 1, log 1/0", "-> 1 to 3 Vote term 1, log 1/0"]
    stage.play("drop * *")
    stage.raft(1).step(messages.VoteAnswer(2, 1, 1, False), stage.group.now)
    stage.play("time-out 1")
    assert stage.raft(1).status.role is messages.Role.PRE_CANDIDATE


def test_a_member_that_voted_for_another_before_its_start_lets_that_one_stand_first() -> None:
    """After the start of a whole cluster each group gets its former leader, without colliding votes."""
    stage = Stage("group 1 2 3\nhard 1: 4 1 1\nhard 2: 4 1 1\nhard 3: 4 1 1\nshow")
    first, *others = (stage.raft(me).deadline for me in (1, 2, 3))
    assert first <= ELECTION_MS + ELECTION_SPREAD_MS
    assert min(others) >= ELECTION_MS + YIELD_MS


def test_an_election_in_vain_is_followed_by_another_later() -> None:
    """A round has a time-out, which grows, so attempts of many members do not collide forever."""
    stage = Stage("group 1 2 3")
    waits = []
    for _ in range(40):
        stage.play("time-out 1\ndrop * *")
        waits.append(stage.raft(1).deadline - stage.group.now)
    assert min(waits) >= 50
    assert 350 < max(waits) <= 50 + 300 * 16


def test_a_member_that_can_ask_nobody_awaits_nothing() -> None:
    """Ten thousand groups without majority cost nothing; a member begins when another node is heard."""
    stage = Stage("group 1 2 3\npart 1 2 3\ntime-out 1")
    assert stage.raft(1).deadline is None
    stage.play("hear 1 3")
    assert stage.raft(1).deadline is not None


@pytest.mark.parametrize(
    ("index", "term", "answer"), [(9, 2, "no"), (3, 3, "no"), (4, 3, "yes"), (2, 4, "yes")]
)
def test_a_vote_is_for_a_log_that_is_as_new(index: int, term: int, answer: str) -> None:
    """The last entry's term counts first, then the length (the paper, section 5.4.1); pre-votes too."""
    stage = Stage("group 1 2 3\nlog 2: 1 1 3\nhard 2: 5 0 1")
    stage.raft(2).step(messages.PreVote(1, 2, 5, index, term, 1), 0)
    assert [message.granted for message in stage.raft(2).ready(0).messages] == [answer == "yes"]
    stage.raft(2).step(messages.Vote(1, 2, 6, index, term), 0)
    assert (stage.raft(2).hard.vote == 1) == (answer == "yes")


def test_one_vote_a_term_over_crashes() -> None:
    stage = Stage("group 1 2 3\nhard 2: 4 3 1")
    stage.raft(2).step(messages.Vote(1, 2, 4, 9, 9), 0)
    stage.raft(2).step(messages.Vote(3, 2, 4, 9, 9), 0)
    answers = {message.to: message.granted for message in stage.raft(2).ready(0).messages}
    assert answers == {1: False, 3: True}


# -- appends


def test_a_follower_gets_a_window_of_messages() -> None:
    """256 are under way; the next is sent when one is answered."""
    stage = Stage(LEADING)
    for number in range(leader.WINDOW_MESSAGES + 5):
        stage.play(f"propose 1 {number}")
    assert (
        len([message for message in stage.sent(messages.Append) if message.to == 2]) == leader.WINDOW_MESSAGES
    )
    first = stage.sent(messages.Append)[0]
    stage.play("drop * *")
    stage.raft(1).step(messages.AppendAnswer(2, 1, 1, first.runs[-1].last, 2), 0)
    (append,) = [message for message in stage.raft(1).ready(0).messages if message.to == 2]
    assert [run.payloads for run in append.runs] == [(b"256",), (b"257",), (b"258",), (b"259",), (b"260",)]


def test_a_follower_gets_a_window_of_bytes() -> None:
    stage = Stage(LEADING)
    stage.raft(1).propose([b"x" * (1 << 18)] * 60)
    stage.group.nodes[1].turn()
    sizes = [sum(run.size for run in m.runs) for m in stage.sent(messages.Append) if m.to == 2]
    assert sizes == [leader.MESSAGE_BYTES] * 8


def test_entries_behind_what_is_committed_are_taken_from_an_old_message() -> None:
    """The message begins before the follower's commit index, where all agrees, perhaps in a snapshot."""
    stage = Stage(LEADING + "propose 1 a b\nrun\ncompact 2")
    old = (messages.run_of(3, 1, messages.Kind.COMMAND, (b"a", b"b", b"c")),)
    stage.raft(2).step(messages.Append(1, 2, 1, 2, 1, 2, old), 0)
    assert stage.raft(2).ready(0).entries == (messages.run_of(5, 1, messages.Kind.COMMAND, (b"c",)),)


def test_what_is_not_committed_is_bounded() -> None:
    """A leader without majority must not fill its memory; one proposal is always taken."""
    stage = Stage(LEADING)
    member = stage.raft(1)
    size = leader.UNCOMMITTED_BYTES_MAX
    member.propose([b"x" * (size + 1)])
    with pytest.raises(messages.Full, match=f"{size + 1} bytes are proposed and not committed"):
        member.propose([b"a"])
    stage.group.nodes[1].turn()
    stage.play("quiet\nrun\nloud")
    assert stage.play("propose 1 a")[0] == "1 writes 4/1 a"


# -- members, transfer, snapshots


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("add 2", "2 is a member already"),
        ("promote 2", "2 is no learner; add it first"),
        ("remove 7", "7 is no member"),
        ("promote 4", "4 has not caught up; wait for it"),
    ],
)
def test_a_change_that_cannot_be_is_refused(change: str, why: str) -> None:
    stage = Stage(LEADING + "change 1 add 4\ndurable 1\ndeliver 1 2\ndurable 2\ndeliver 2 1")
    assert stage.play(f"change 1 {change}") == [f"refused: ChangeRefused: {why}"]


@pytest.mark.parametrize(
    ("to", "why"), [(1, "1 is the leader"), (9, "9 is no voter"), (3, "3 cannot be reached")]
)
def test_a_transfer_goes_to_another_voter_that_is_reached(to: int, why: str) -> None:
    stage = Stage(LEADING + "suspect 1 3")
    assert stage.play(f"transfer 1 {to}") == [f"refused: ChangeRefused: {why}"]


def test_what_has_no_answer_is_sent_again_less_and_less_often() -> None:
    """A node that is slower than the first time-out would be given more to do than it can."""
    stage = Stage(LEADING)
    stage.play("propose 1 a\ndeliver 1 2\ndeliver 2 1\ndeliver 1 2\ndeliver 2 1\ndrop * *")
    waits = []
    for _ in range(6):
        waits.append(stage.raft(1).deadline - stage.group.now)
        stage.play("time-out 1\ndrop * *")
    first, *others = waits
    assert first == leader.RETRY_MS, "it may only be late"
    assert others == [leader.RETRY_MS << doubled for doubled in (0, 1, 2, 2, 2)]
    stage.play("time-out 1\nrun")
    stage.play("propose 1 b")
    assert stage.raft(1).deadline - stage.group.now == leader.RETRY_MS, "all have answered since"


def test_a_follower_that_has_not_answered_yet_is_no_reason_for_a_snapshot() -> None:
    """A new leader that gets a pre-vote request probes on from its position, not from the start."""
    stage = Stage(LEADING + "propose 1 a\nrun\ncrash 1\npart 1 2 3\ntime-out 2")
    stage.play(
        "deliver 2 3\ndeliver 3 2\ndurable 2\ndeliver 2 3\ndurable 3\ndeliver 3 2\ndrop 2 3\ntime-out 3"
    )
    assert stage.play("deliver 3 2")[-1] == "-> 2 to 3 Append term 2, behind 3/1, commit 3: 4/2 empty"


def test_a_snapshot_that_could_not_be_sent_is_asked_for_again() -> None:
    stage = Stage(LEADING)
    member = stage.raft(1)
    stage.play("part 1 3\npropose 1 a\nrun\ncompact 1")
    member.heard(3, stage.group.now)
    assert member.ready(stage.group.now).snapshots_to == (3,)
    member.snapshot_done(3, None)
    assert member.ready(stage.group.now) is None
    for _ in range(2):
        stage.group.now = member.deadline
        member.tick(stage.group.now)
        ready = member.ready(stage.group.now)
    assert ready.snapshots_to == (3,)


def test_a_snapshot_cannot_cover_what_is_not_applied() -> None:
    """It would remove entries that other members may need."""
    with pytest.raises(AssertionError):
        Stage(LEADING).raft(1).compact(3)


class Entries:
    """A store that has entries one by one, from index 1 on."""

    def __init__(self, terms: Sequence[int] = ()) -> None:
        self.terms = terms

    def read(self, first: int, last: int, size: int, /) -> Sequence[messages.Run]:
        return [run(index, self.terms[index - 1]) for index in range(first, last + 1)]


def run(first: int, term: int, count: int = 1, size: int = 4) -> messages.Run:
    return messages.run_of(first, term, messages.Kind.COMMAND, (b"x" * size,) * count)


def log(*terms: int) -> LogView:
    """Return a durable log of entries of these terms, from index 1 on."""
    stretches = tuple((index, term) for index, term in enumerate(terms, 1))
    stored = messages.Stored(
        messages.Point(0, 0, messages.Configuration((1,))), messages.Hard(0, None, 0), len(terms), stretches
    )
    return LogView(stored, Entries(terms))


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(-1, 14))
def test_a_stretch_of_terms_says_what_a_list_says(steps: list[int], index: int) -> None:
    terms = [sum(steps[: count + 1]) + 1 for count in range(len(steps))]
    view = log(*terms)
    expected = 0 if index == 0 else terms[index - 1] if 1 <= index <= len(terms) else None
    assert view.term(index) == expected
    assert view.last_term == (terms[-1] if terms else 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=10), st.integers(0, 12), st.integers(0, 12))
def test_agreement_is_the_last_entry_of_no_newer_term(steps: list[int], index: int, term: int) -> None:
    """So a leader skips a whole term at a time (the paper, end of section 5.3)."""
    terms = [0, *(sum(steps[: count + 1]) + 1 for count in range(len(steps)))]
    at = min(index, len(terms) - 1)
    while at and terms[at] > term:
        at -= 1
    assert log(*terms[1:]).agreement(index, term) == at


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 1), min_size=1, max_size=8)
)
def test_a_conflict_is_the_first_entry_that_differs(ours: list[int], theirs: list[int]) -> None:
    """A missing entry is a conflict; None if all agree."""
    mine = [sum(ours[: count + 1]) + 1 for count in range(len(ours))]
    other = [sum(theirs[: count + 1]) + 1 for count in range(len(theirs))]
    runs = []
    for index, term in enumerate(other, 1):
        if runs and runs[-1].term == term:
            runs[-1] = run(runs[-1].first, term, len(runs[-1].payloads) + 1)
        else:
            runs.append(run(index, term))
    differing = [i for i, term in enumerate(other, 1) if i > len(mine) or mine[i - 1] != term]
    assert log(*mine).conflict(runs) == (differing[0] if differing else None)


def test_entries_are_handed_out_once_and_durable_by_ticket() -> None:
    """Entries that are not durable are kept; durable ones are read from the store."""
    view = log(1)
    view.append(run(2, 1, 2))
    assert view.hand_out() == (run(2, 1, 2),)
    assert view.hand_out() == ()
    ticket = view.issue()
    view.append(run(4, 1))
    assert view.hand_out() == (run(4, 1),)
    assert view.stable == 1
    view.persist(ticket)
    assert view.stable == 3
    assert view.entries(4, 100) == (run(4, 1),)


def test_entries_are_cut_to_a_size_and_one_comes_always() -> None:
    view = log()
    view.append(run(1, 1, 4))
    view.append(run(5, 1, 2))
    assert view.entries(1, 1) == (run(1, 1),)
    assert view.entries(2, 8) == (run(2, 1, 2),)
    assert view.entries(3, 12) == (run(3, 1, 2), run(5, 1))
    assert view.entries(7, 12) == ()


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ((messages.run_of(5, 3, messages.Kind.COMMAND, (b"x",)),), "an entry of term 3 behind one of 4"),
        ((messages.run_of(5, 9, messages.Kind.COMMAND, (b"x",)),), "from a leader of 6"),
        ((messages.run_of(5, 6, messages.Kind.CONFIG, (b"x",)),), "malformed Configuration"),
        ((messages.run_of(7, 6, messages.Kind.COMMAND, (b"x",)),), "entry 7 behind entry 4"),
        ((messages.Run(5, 6, messages.Kind.COMMAND, (), 0),), "a run without entries"),
    ],
)
def test_entries_that_no_leader_has_are_refused(runs: tuple[messages.Run, ...], what: str) -> None:
    """Terms never fall in a log, and a configuration is readable: a member need not check again."""
    with pytest.raises(BadBytes, match=what):
        messages.MESSAGE.decode(messages.MESSAGE.encode(messages.Append(1, 2, 6, 4, 4, 0, runs)))


def test_a_configuration_in_another_order_is_refused() -> None:
    with pytest.raises(BadBytes, match="ascending"):
        messages.CONFIG.decode(messages.CONFIG.encode(messages.Configuration((2, 1))))
    with pytest.raises(BadBytes, match="stand twice"):
        messages.CONFIG.decode(messages.CONFIG.encode(messages.Configuration((1,), (1,))))
