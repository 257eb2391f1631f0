"""Faults that are planted into the room `queues.quorum`, one at a time. Each must be caught.

Numbers are those of a list of 54 faults that the four tables share; letters are ours. Each is caught by a
scenario of its rule (`quorum_scenarios`), and by lives of a queue at random (`quorum_failover`) unless it is
too rare.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.raft_room import Patch


@dataclass(frozen=True)
class QuorumMutant:
    """A fault."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    scenario: str
    """Which fails."""
    rare: bool = False
    """Lives at random do not find it in some dozens of seeds, or never: all members, and what they are
    compared with, have the same fault."""


def _mutant(
    name: str, what: str, module: str, old: str, new: str, scenario: str, *, rare: bool = False
) -> QuorumMutant:
    return QuorumMutant(name, what, (Patch(module, old, new),), scenario, rare)


QUORUM_MUTANTS = (
    _mutant(
        "27_lanes_not_in_the_snapshot",
        "the number of a link is not in the snapshot",
        "snapshot",
        'for node, incarnation, *fields in state["lanes"]:',
        "for node, incarnation, *fields in ():",
        "letters_are_known_after_a_start",
    ),
    _mutant(
        "28_twice",
        "letters that come twice are carried out again",
        "node_links",
        "elif letters.first != link.last + 1:",
        "elif letters.first > link.last + 1:",
        "letters_that_come_twice_do_nothing",
    ),
    _mutant(
        "29_gap",
        "a gap in a link is accepted",
        "node_links",
        "elif letters.first != link.last + 1:",
        "elif letters.first <= link.last:",
        "letters_behind_a_gap_do_nothing",
    ),
    _mutant(
        "29_begins_late",
        "a link begins with any letter",
        "node_links",
        "if letters.first != 1 or letters.incarnation",
        "if letters.incarnation",
        "letters_behind_a_gap_do_nothing",
    ),
    _mutant(
        "31_seen_again",
        "what was seen is sent again",
        "consumers",
        "count = max(0, consumer.handed_out - seen)",
        "count = consumer.handed_out",
        "what_was_seen_is_not_sent_again",
    ),
    _mutant(
        "32_settled_forgotten",
        "what went out settled is not sent again",
        "consumers",
        "        if not keys:\n            return None, count\n        counts =",
        "        if not keys or consumer.settled:\n            return None, 0\n        counts =",
        "what_went_out_settled_is_sent_again",
    ),
    _mutant(
        "32_settled_let_go",
        "what went out settled is let go before it was seen",
        "consumers",
        "arrived = list(consumer.unsettled)[: len(consumer.unsettled) - on_its_way]",
        "arrived = list(consumer.unsettled)[: len(consumer.unsettled) - on_its_way * 0]",
        "what_went_out_settled_is_sent_again",
        rare=True,
    ),
    _mutant(
        "33_counts_lost",
        "counts of deliveries are not in the snapshot",
        "snapshot",
        "    messages.counts = {\n        index: kinds[number] for index, number in "
        "zip(arrays.next(), arrays.next(), strict=True)\n    }\n",
        "    arrays.next(), arrays.next()\n",
        "counts_survive",
    ),
    _mutant(
        "34_order_of_the_gone",
        "a follower has another order of what comes back from a node that is gone",
        "consumers",
        "held = sorted(item for each in lost if not each.settled for item in each.unsettled.items())",
        "held = [item for each in lost if not each.settled for item in each.unsettled.items()]\n"
        "        held.sort(reverse=self._messages.replaying)",
        "what_comes_back_has_one_order",
    ),
    _mutant(
        "34_order_of_the_suspects",
        "what comes back from a node that was away for long has no order",
        "consumers",
        "self._messages.decide(sorted(held), Verdict.REQUEUE)",
        "self._messages.decide(held, Verdict.REQUEUE)",
        "what_comes_back_has_one_order",
        rare=True,
    ),
    _mutant(
        "35_clock",
        "the leader's clock counts, also when it is behind",
        "queue",
        "if now_ms < self._messages.now_ms:",
        "if False:",
        "time_never_runs_back",
        rare=True,
    ),
    _mutant(
        "36_local_time",
        "time passes where the queue is asked, and not by the log",
        "queue",
        "                super()._answer(command.request, self.ready)\n            return\n",
        "                super()._answer(command.request, self.ready)\n            self.apply(TICK, now_ms)\n"
        "            return\n",
        "time_passes_by_the_log_alone",
        rare=True,
    ),
    _mutant(
        "37_at_once",
        "what a suspect holds comes back at once",
        "consumers",
        "if since is not None and since + limit <= now]",
        "if since is not None]",
        "a_node_that_is_not_heard_of_keeps_what_it_holds",
        rare=True,
    ),
    _mutant(
        "37_failed",
        "it comes back as from a failed delivery",
        "consumers",
        "self._messages.decide(sorted(held), Verdict.REQUEUE)",
        "self._messages.decide(sorted(held), Verdict.REQUEUE_FAILED)",
        "a_node_that_is_not_heard_of_keeps_what_it_holds",
        rare=True,
    ),
    _mutant(
        "38_all_starts",
        "the end of a node's old start takes the consumers of its new one",
        "queue",
        "consumer_ref.node == node and consumer_ref.incarnation <= incarnation",
        "consumer_ref.node == node",
        "an_older_start_takes_nothing_from_a_newer_one",
    ),
    _mutant(
        "38_all_links",
        "the end of a node's old start takes the link of its new one",
        "node_links",
        "if each[0] == node and each[1] <= incarnation]",
        "if each[0] == node]",
        "an_older_start_takes_nothing_from_a_newer_one",
    ),
    _mutant(
        "39_followers_forward",
        "dead letters are handed on by a follower, too",
        "messages",
        "if settings.dead_letter_exchange is not None and not self.replaying:",
        "if settings.dead_letter_exchange is not None:",
        "dead_letters_at_most_once_are_the_leaders",
    ),
    _mutant(
        "40_credit_twice",
        "a consumer's count of deliveries is not in the snapshot, so its credit counts twice",
        "snapshot",
        '    "delivery_count",\n',
        "",
        "credit_counts_once",
    ),
    _mutant(
        "41_epoch_not_in_the_snapshot",
        "a restored consumer has the epoch of before it gave back",
        "snapshot",
        '    "epoch",\n',
        "",
        "what_was_given_back_before_is_of_another_epoch",
    ),
    _mutant(
        "41_epoch_kept",
        "giving back keeps the old epoch",
        "consumers",
        "        consumer.epoch = command.epoch\n",
        "",
        "what_was_given_back_before_is_of_another_epoch",
    ),
    _mutant(
        "53_refusal_lost",
        "a refused publish is confirmed when its leader is lost",
        "queue",
        "                self._links.keep(publisher.reply_to, rejected)\n",
        "",
        "a_refused_publish_stays_refused",
    ),
    _mutant(
        "54_late_subscription",
        "a subscription of a node that is gone comes late, and stays",
        "node_links",
        " or letters.incarnation <= self.gone.get(letters.node, -1):",
        ":",
        "who_is_gone_comes_no_more",
    ),
    _mutant(
        "B1_answer_lost",
        "the answer to a purge is not kept",
        "queue",
        "        self._links.keep(request.reply_to, answer)\n",
        "",
        "an_answer_is_kept",
    ),
    _mutant(
        "B2_time_out_lost",
        "that a delivery timed out is not kept",
        "consumers",
        "        self._links.keep(consumer.ref.reply_to, timed_out)\n",
        "",
        "a_time_out_is_kept",
    ),
    _mutant(
        "B3_missed_is_seen",
        "what came and went meanwhile is not counted as missed",
        "consumers",
        "            return None, count\n",
        "            return None, 0\n",
        "a_time_out_is_kept",
        rare=True,
    ),
    _mutant(
        "B3_missed_before_others",
        "it is not, if there are others that came later",
        "consumers",
        "return deliver, count - len(keys)",
        "return deliver, 0",
        "a_time_out_is_kept",
        rare=True,
    ),
    _mutant(
        "B4_heard_of_nothing",
        "what was not heard is forgotten with what was",
        "node_links",
        "link.kept = [each for each in link.kept if each[0] > letters.heard]",
        "link.kept = []",
        "a_refused_publish_stays_refused",
        rare=True,
    ),
    _mutant(
        "B5_speaks_for_others",
        "a node speaks for sessions of another",
        "node_links",
        "return asker is not None and asker(command)[:2] == (node, incarnation)",
        "return asker is not None",
        "a_node_speaks_for_itself",
        rare=True,
    ),
    _mutant(
        "B6_suspects_served",
        "a node that is not heard of gets messages",
        "consumers",
        "(consumer.silent or consumer.suspended or consumer.cancelled)",
        "(consumer.silent or consumer.cancelled)",
        "a_node_that_is_back_goes_on",
        rare=True,
    ),
    _mutant(
        "B7_suspect_active",
        "a consumer whose node is not heard of becomes the active one",
        "consumer",
        "if self._is_able(consumer) and not consumer.suspended and",
        "if self._is_able(consumer) and",
        "one_that_is_not_heard_of_does_not_become_the_active_one",
        rare=True,
    ),
    _mutant(
        "B8_active_for_ever",
        "the active consumer stays, however long its node is away",
        "consumer",
        "consumer.cancelled or consumer.silent or consumer.given_up",
        "consumer.cancelled or consumer.silent",
        "the_active_consumer_stays_until_it_is_given_up",
        rare=True,
    ),
    _mutant(
        "B9_under_way",
        "dead letters that another leader had under way are not offered",
        "queue",
        "        self._messages.pending.begin_anew()\n",
        "",
        "dead_letters_are_offered_anew",
        rare=True,
    ),
)
