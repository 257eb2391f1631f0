"""Faults that are planted into the room `raft`, one at a time. Each must be caught.

Each is caught by an interaction script, and by the simulation unless it is too rare for that at random.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.raft_room import Patch


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    patches: tuple[Patch, ...]
    script: str
    """The interaction script that has another trace, or breaks an invariant."""
    rare: bool = False
    """The simulation does not find it in some hundred seeds."""
    seed: int = 0
    """The simulation finds it soon with this one: choose another when it no longer does."""


def _core(old: str, new: str) -> Patch:
    return Patch("core", old, new)


def _leader(old: str, new: str) -> Patch:
    return Patch("leader", old, new)


MUTANTS = (
    Mutant(
        "01_vote_before_durable",
        "a vote is answered before it is durable",
        (
            _core(
                "        self._late.append(answer)\n\n    def _on_vote_answer",
                "        self.outbox.append(answer)\n\n    def _on_vote_answer",
            ),
        ),
        "vote_only_when_durable",
    ),
    Mutant(
        "01_own_vote_before_durable",
        "votes are asked for before the own one is durable",
        (_core("self._late.append(Vote(self.me", "self.outbox.append(Vote(self.me"),),
        "vote_only_when_durable",
    ),
    Mutant(
        "02_vote_kept",
        "the vote is not reset when the term grows",
        (_core("            self.vote = None\n", ""),),
        "check_quorum",
    ),
    Mutant(
        "02_vote_reset",
        "the vote is reset although the term does not grow",
        (
            _core(
                "        if term > self.term:\n            self.term = term",
                "        if True:\n            self.term = term",
            ),
        ),
        "election",
    ),
    Mutant(
        "03_older_term_by_counting",
        "an entry of an older term is committed by counting (figure 8)",
        (_leader(" or index < self.first:", ":"),),
        "commit_of_older_terms",
    ),
    Mutant(
        "04_append_answered_early",
        "an append is answered before it is durable",
        (_core("self._late.append(AppendAnswer(", "self.outbox.append(AppendAnswer("),),
        "answer_only_when_durable",
    ),
    Mutant(
        "05_leader_counts_itself_early",
        "the leader counts itself before its write is durable",
        (_leader("log.stable if voter == member.me", "log.last if voter == member.me"),),
        "leaders_own_write",
    ),
    Mutant(
        "06_late_ticket_counts",
        "the ticket of entries that were cut off makes those durable that took their place",
        (
            Patch(
                "leader",
                "deque((ticket, min(until, last)) for ticket, until in self._tickets)",
                "deque((ticket, min(until, 1 << 60)) for ticket, until in self._tickets)",
            ),
        ),
        "aba_race",
        rare=True,
    ),
    Mutant(
        "07_truncates_what_agrees",
        "entries are cut off although term and index agree",
        (
            _core(
                "first = log.conflict(append.runs)", "first = append.runs[0].first if append.runs else None"
            ),
        ),
        "truncation_of_what_agrees",
    ),
    Mutant(
        "08_no_truncation",
        "a conflict does not cut off what is there",
        (
            _core(
                "        if first is not None:\n            if first <= log.last:\n"
                "                self.truncate(first)\n",
                "        if first is not None:\n            first = max(first, log.last + 1)\n",
            ),
        ),
        "figure_7",
    ),
    Mutant(
        "09_prev_term_not_compared",
        "the term in front of the entries is not compared",
        (
            _core(
                "elif log.term(append.prev_index) == append.prev_term:",
                "elif log.term(append.prev_index) is not None:",
            ),
        ),
        "previous_term",
        rare=True,
    ),
    Mutant(
        "10_commit_beyond_match",
        "the commit index of an append counts beyond what matches",
        (_core("min(append.commit, match))", "min(append.commit, log.last))"),),
        "commit_beyond_match",
        rare=True,
    ),
    Mutant(
        "14_length_only",
        "logs are compared by length only",
        (
            Patch(
                "leader", "(last_term, last_index) >= (self.last_term, self.last)", "last_index >= self.last"
            ),
        ),
        "length_and_term",
        rare=True,
    ),
    Mutant(
        "15_pre_vote_raises_term",
        "a pre-vote raises the term",
        (
            _core(
                "        self._asked_ms = now_ms\n",
                "        self._asked_ms = now_ms\n"
                "        self.term += 1\n        self.vote = None\n        self._hard_due = True\n",
            ),
        ),
        "pre_vote_behind_a_cut",
    ),
    Mutant(
        "16_pre_vote_while_leader_is_heard",
        "a pre-vote is granted while the leader is heard",
        (_core("            self.leader is None\n            and question", "            question"),),
        "pre_vote_behind_a_cut",
    ),
    Mutant(
        "17_no_check_quorum",
        "a leader without majority goes on",
        (
            _leader(
                "            return False\n        if self.transfer",
                "            pass\n        if self.transfer",
            ),
        ),
        "check_quorum",
    ),
    Mutant(
        "18_learner_campaigns",
        "a learner stands for election",
        (
            Patch(
                "leader",
                "return self.votes or self.me in self.configs.at(self.commit).voters",
                "return self.me in (*self.configs.latest.members, *self.configs.at(self.commit).voters)",
            ),
        ),
        "learner_is_told_to_stand",
        seed=295,
    ),
    Mutant(
        "18_learner_counts_in_elections",
        "an election asks learners, and counts their votes",
        (
            Patch("core", "        if member in self.config.voters:\n", "        if True:\n"),
            _core(
                "        for voter in self.configs.latest.voters:\n            if voter != self.me:\n"
                "                self._late.append(Vote",
                "        for voter in self.configs.latest.members:\n            if voter != self.me:\n"
                "                self._late.append(Vote",
            ),
        ),
        "removal_that_is_not_committed",
        seed=429,
    ),
    Mutant(
        "18_learner_counts_for_commit",
        "a learner counts for the majority of a commit",
        (
            _leader(
                "        voters = member.configs.latest.voters\n        matches",
                "        voters = member.configs.latest.members\n        matches",
            ),
        ),
        "joiner",
    ),
    Mutant(
        "19_change_before_own_term",
        "a change is begun before an entry of the own term is committed",
        (
            _leader(
                "        self._must_take()\n        member = self._member\n        if member.configs.index",
                "        member = self._member\n        if member.configs.index",
            ),
        ),
        "membership_bug",
    ),
    Mutant(
        "20_two_changes",
        "a change is begun before the last one is committed",
        (_leader("if member.configs.index > member.commit:", "if member.configs.index > member.log.last:"),),
        "two_changes",
    ),
    Mutant(
        "21_not_undone",
        "a configuration is not undone by a truncation",
        (Patch("leader", "while self._entries[-1][0] >= first:", "while False:"),),
        "configuration_undone",
        rare=True,
    ),
    Mutant(
        "21_when_committed",
        "a configuration is in force only when it is committed",
        (
            Patch(
                "leader",
                "        return self._entries[-1][1]\n",
                "        return self.at(self.committed())\n",
            ),
            Patch("leader", '    __slots__ = ("_entries",)\n', ""),
            Patch(
                "leader",
                "        self.suspected: frozenset",
                "        self.configs.committed = lambda: max(self.commit, stored.point.index)\n"
                "        self.suspected: frozenset",
            ),
        ),
        "configuration_at_once",
    ),
    Mutant(
        "22_latest_configuration",
        "a snapshot carries the latest configuration, not that at its index",
        (
            _core(
                "return Point(index, term, self.configs.at(index))", "return Point(index, term, self.config)"
            ),
        ),
        "removal_that_is_not_committed",
    ),
    Mutant(
        "22_no_configuration",
        "the configuration of a snapshot is not taken over",
        (
            _core(
                "self.configs.restore(point.index, point.config)",
                "self.configs.restore(point.index, self.configs.latest)",
            ),
        ),
        "snapshot_configuration",
    ),
    Mutant(
        "24_log_kept",
        "the log behind a snapshot of another term is kept",
        (_core("if self.log.term(point.index) != point.term:", "if point.index > self.log.last:"),),
        "snapshot_over_another_log",
        rare=True,
    ),
    Mutant(
        "25_removed_leader_counts_itself",
        "a removed leader goes on counting itself",
        (
            _leader(
                "        voters = member.configs.latest.voters\n        matches",
                "        voters = tuple({*member.configs.latest.voters, member.me})\n        matches",
            ),
        ),
        "removed_leader_hands_on",
    ),
    Mutant(
        "26_proposals_after_timeout_now",
        "proposals are taken while the leadership is handed over",
        (_leader("if self.transfer is not None or self.leaving:", "if self.leaving:"),),
        "transfer_that_fails",
    ),
    Mutant(
        "26_transfer_to_lagging",
        "a member that lags is told to stand for election",
        (_leader("if peer is not None and peer.match == self._member.log.last:", "if peer is not None:"),),
        "transfer",
    ),
    Mutant(
        "C_nothing_is_sent_again",
        "what was lost is not sent again",
        (_leader("            self._retry()\n", ""),),
        "lagging_commit",
    ),
    Mutant(
        "D_old_words_of_a_suspected_leader",
        "a leader whose node is suspected is followed, and no time runs",
        (_core("        if sender in self.suspected:", "        if False:"),),
        "old_words_of_a_suspected_leader",
        rare=True,
    ),
    Mutant(
        "E_not_told_that_it_leads_no_more",
        "a member goes on following one that asks for pre-votes",
        (_core("if self.leader == question.sender and question.term >= self.term:", "if False:"),),
        "removed_leader_is_not_followed",
        rare=True,
    ),
    Mutant(
        "F_removed_by_an_uncommitted_change",
        "a member whose removal is not committed never stands for election",
        (
            Patch(
                "leader",
                "return self.votes or self.me in self.configs.at(self.commit).voters",
                "return self.votes",
            ),
        ),
        "removal_that_is_not_committed",
        rare=True,
    ),
    Mutant(
        "G_learner_does_not_ask",
        "a learner that has suspected its leader by mistake does not ask which member leads",
        (
            _core(
                "        if alone and not self.reaches_majority:",
                "        if not self.may_campaign or (alone and not self.reaches_majority):",
            ),
        ),
        "learner_suspects_by_mistake",
        rare=True,
    ),
)
