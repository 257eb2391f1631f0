"""What is shown of a member: as it says itself, also when it does not run."""

from __future__ import annotations

import pytest

from amqp10broker.operations.node import MemberState
from amqp10broker.runtime.admin.serving_node import state_of
from tests.support.quorum_harness import GROUP, Harness


@pytest.mark.rabbitmq("quorum_queue_SUITE", "status_noproc")
def test_a_member_that_has_ended_does_not_run_and_the_others_say_how_they_stand() -> None:
    world = Harness(1)
    world.settle_down(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    world.settle_down(world.even)

    def shown() -> dict[int, tuple[str, str]]:
        found = {number: state_of(node.groups.get(GROUP)) for number, node in world.nodes.items()}
        return {number: (state.state, state.membership) for number, state in found.items()}

    follows = ("follower", "voter")
    assert shown() == {1: follows, 2: follows, 3: follows} | {leader.number: ("leader", "voter")}
    leader.journal.abandoned = lambda group: None  # type: ignore[method-assign]
    leader.backend.abandon()
    assert state_of(leader.groups.get(GROUP)) == MemberState("noproc", "unknown")
    assert shown() == {1: follows, 2: follows, 3: follows} | {leader.number: ("noproc", "unknown")}
