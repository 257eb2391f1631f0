"""Faults that are planted into what is built on the room `raft`, one at a time. Each must be caught.

Numbers are those of a list of 54 faults that the four tables share; each is a change of one
function or two, and the test that it names must fail with it.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

from amqp10broker.cluster import bootstrap
from amqp10broker.cluster.hello import Acquaintances
from amqp10broker.cluster.proposals import Proposals
from amqp10broker.cluster.remote_queue.link_server import LinkServer
from amqp10broker.cluster.system import System
from amqp10broker.cluster.transactions import SystemMachine
from amqp10broker.metadata import node_requests
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.queues.quorum.journal_bodies import JournalBodies
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.state_transfer import Snapshots
from amqp10broker.raft.groups import Member
from tests.support.system_group import World
from tests.unit.cluster import test_cluster_bootstrap as forming
from tests.unit.cluster import test_hello as hello
from tests.unit.cluster import test_link_server as links
from tests.unit.cluster import test_system as system
from tests.unit.queues import test_quorum_members as members
from tests.unit.queues import test_quorum_versions as versions

Test = Callable[..., None]


@dataclass(frozen=True)
class Patch:
    """Text of one function that is replaced by other text."""

    function: Any
    old: str
    new: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Put it in, wherever the function is known already."""
        source = textwrap.dedent(inspect.getsource(self.function))
        assert self.old in source, f"{self.function.__qualname__} has no {self.old!r}"
        module = sys.modules[self.function.__module__]
        found: dict[str, Any] = {}
        changed = textwrap.indent(source.replace(self.old, self.new), "    ")
        name = self.function.__name__
        text = f"from __future__ import annotations\ndef made(__class__):\n{changed}\n    return {name}\n"
        exec(text, module.__dict__, found)
        planted = found["made"](object)
        assert isinstance(planted, FunctionType)
        patch.setattr(self.function, "__code__", planted.__code__)


@dataclass(frozen=True)
class MemberMutant:
    """A fault.

    Attributes:
        number: in the table.
        what: the fault.
        patches: that make it.
        test: fails with it.
    """

    number: str
    what: str
    patches: tuple[Patch, ...]
    test: Test

    @property
    def caught_by(self) -> str:
        """The test's name for the page."""
        return f"{self.test.__module__.split('.')[-1]}.py::{self.test.__name__}"

    def run(self, patch: pytest.MonkeyPatch) -> None:
        """Run the test; it fails if the fault is caught."""
        known: dict[str, Callable[[], object]] = {"monkeypatch": lambda: patch, "world": lambda: World(1)}
        self.test(**{name: known[name]() for name in inspect.signature(self.test).parameters})


def _one(number: str, what: str, function: Any, old: str, new: str, test: Test) -> MemberMutant:
    return MemberMutant(number, what, (Patch(function, old, new),), test)


MEMBER_MUTANTS = (
    _one(
        "11",
        "the leader applies what is not committed",
        QuorumInLog.flush,
        "self._apply_next(self._committed, now_ms)",
        "self._apply_next(store.last if self._leads else self._committed, now_ms)",
        members.test_without_a_majority_nothing_is_confirmed_and_the_leader_stops,
    ),
    _one(
        "11",
        "the commit index that comes with entries is kept beside them, and taken as given",
        QuorumStore.write,
        "replace(ready.hard, commit=self._point.index)",
        "ready.hard",
        members.test_what_is_said_to_be_committed_with_entries_is_not_taken_for_what_they_replace,
    ),
    _one(
        "12",
        "a follower tells effects",
        QuorumQueue.follow,
        "self._messages.replaying = True",
        "pass",
        members.test_followers_tell_nothing,
    ),
    _one(
        "12",
        "a leader that was deposed goes on telling effects",
        QuorumInLog._follow,
        "self.queue.follow()",
        "pass",
        members.test_a_leader_that_was_deposed_tells_nothing,
    ),
    _one(
        "13",
        "effects are told before the entry of the leader's own term is committed",
        Member._do,
        "ready.status.role is Role.LEADER and ready.status.open",
        "ready.status.role is Role.LEADER",
        members.test_who_leads_has_applied_all_that_was_confirmed_before,
    ),
    _one(
        "22",
        "a state does not say of the configuration that it was changed",
        QuorumStore._applied,
        "decode_config(entry.payload) if entry.kind is Kind.CONFIG else self._point.config",
        "self._point.config",
        members.test_a_state_has_the_configuration_of_its_place,
    ),
    MemberMutant(
        "23",
        "that a state is installed is written before the messages that it consists of",
        (
            Patch(
                QuorumStore.stage,
                "self._find_staged(transfer, self._append_staged(transfer, [messages]), messages)",
                'self.__dict__.setdefault("_late", []).append((transfer, messages))',
            ),
            Patch(
                QuorumStore._install,
                "queue = self._take_state(",
                'for late, messages in self.__dict__.pop("_late", ()):\n'
                "        self._find_staged(late, self._append_staged(late, [messages]), messages)\n"
                "    queue = self._take_state(",
            ),
        ),
        members.test_a_new_member_begins_with_the_leaders_state,
    ),
    _one(
        "42",
        "a transaction is applied though a key that it has read has a newer revision",
        SystemMachine._holds,
        "all(self.revision(key) == revision for key, revision in transaction.reads)",
        "True",
        system.test_of_two_that_declare_one_name_one_finds_what_the_other_made,
    ),
    _one(
        "43",
        "after a conflict the same is proposed without planning again",
        Proposals.plan_again,
        "answer = self.ask(pending.request, pending.ref, pending.due_ms)",
        "answer = LATER\n"
        "            self._propose(pending.request, pending.ref, pending.due_ms, pending.plan)",
        system.test_of_two_that_declare_one_name_one_finds_what_the_other_made,
    ),
    _one(
        "44",
        "a node serves before it has caught up",
        System.start,
        "self._say_started()",
        "self._say_started()\n    done()",
        system.test_a_node_that_starts_has_what_it_missed_before_it_says_so,
    ),
    _one(
        "45",
        "exclusive queues are kept after their node is gone",
        System._end_lost,
        "self.see_to(NodeLost(number, node.incarnation))",
        "pass",
        system.test_what_ends_with_a_node_is_ended_by_the_others_and_its_name_is_free,
    ),
    _one(
        "46",
        "a new queue is given the number, and so the group, of a deleted one",
        SystemMachine._forget,
        'case "queue" | "exchange":\n',
        'case "queue" | "exchange":\n            self._highest -= key[0] == "queue"\n',
        system.test_a_new_queue_of_a_deleted_ones_name_is_another_group,
    ),
    _one(
        "47",
        "term and vote are not moved when their file is cleaned",
        QuorumStore.relocate,
        "begins or 0 < self._hard_file <= file",
        "False",
        members.test_term_and_vote_outlive_the_file_that_they_were_written_to,
    ),
    _one(
        "47",
        "entries that were appended again when their file was cleaned are taken for others",
        QuorumStore._restore_entry,
        "self._entries.kind(index)[0] == term",
        "False",
        members.test_entries_that_stand_there_again_cut_nothing_off,
    ),
    _one(
        "47",
        "that a member begins is not said again when its file is cleaned",
        QuorumStore.relocate,
        "begins = 0 < self._begin_file <= file",
        "begins = False",
        members.test_a_member_that_was_added_is_there_when_the_file_with_its_beginning_is_cleaned,
    ),
    _one(
        "48",
        "messages, and their file, are given up though a state is being sent",
        JournalBodies.read_all,
        "self._readers += 1",
        "pass",
        members.test_a_message_that_is_settled_while_the_state_is_sent_is_there_until_it_is_sent,
    ),
    MemberMutant(
        "49",
        "parts of a second state are mixed with those of the first",
        (
            Patch(
                Snapshots._on_part,
                "incoming is None or incoming.transfer != transfer or incoming.count != number",
                "incoming is None",
            ),
        ),
        members.test_parts_of_another_state_are_refused,
    ),
    _one(
        "50",
        "the founder founds without asking",
        bootstrap.next_step,
        "if not listed or 1 + sum(each in heard for each in others) >= majority:",
        "if True:",
        forming.test_the_first_of_the_list_founds_when_a_majority_of_it_has_no_cluster,
    ),
    _one(
        "50",
        "a founder that has lost its folder does not look for its cluster",
        bootstrap.next_step,
        "return Join(member.name)",
        "return Found() if listed and listed[0] == name else Join(member.name)",
        forming.test_a_founder_whose_disk_is_new_joins_the_cluster_that_there_is,
    ),
    _one(
        "51",
        "a connection of an older start of a node is taken",
        Acquaintances.judge,
        "peer.incarnation < known.incarnation or again",
        "again",
        hello.test_incarnation_below_the_last_seen_is_an_old_copy,
    ),
    _one(
        "51",
        "a link of an older start of a node is taken up",
        LinkServer.resume,
        "resume.incarnation < port.incarnations.get(node, 0)",
        "False",
        links.test_a_link_of_an_older_start_is_not_taken_up,
    ),
    _one(
        "52",
        "the version of the binary is used for encoding",
        QuorumStore.propose,
        "version = self.version",
        "version = machine_version.NEWEST",
        versions.test_entries_are_written_by_the_version_in_force_where_they_stand,
    ),
    _one(
        "52",
        "a version counts for encoding only when it was applied",
        QuorumStore.propose,
        "version = self.version",
        "version = self._version",
        versions.test_entries_are_written_by_the_version_in_force_where_they_stand,
    ),
    _one(
        "52",
        "the version goes up when one node can carry it out",
        node_requests.newest_of_all,
        "min((",
        "max((",
        system.test_the_version_goes_up_when_every_node_has_said_that_it_can,
    ),
)
