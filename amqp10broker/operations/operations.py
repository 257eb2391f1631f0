"""Execution of the operations in `table` for a caller, with the arguments of a front end.

A result consists of plain Python values. Before that it may be a `ProposedChange` to change the catalog, an
`QueueQuestion` for a queue's answer, a `WaitForDecision` for a later decision, or a `Job` that takes time.
The front ends are the management node of AMQP 1.0 (`amqp_node`), the methods of AMQP 0-9-1
(`sessions.amqp091.declaring`) and the command line's local socket (`runtime.admin.admin`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from amqp10broker.errors import NotFound, PermissionDenied, RefusedError
from amqp10broker.operations import (
    accounts,
    bindings,
    cluster,
    definitions,
    doctor,
    exchanges,
    limits,
    maintenance,
    members,
    parameters,
    policies,
    queues,
    running,
    streams,
)
from amqp10broker.operations.arguments import Kind, checked, shown
from amqp10broker.operations.caller import Caller, Job, ProposedChange, QueueQuestion, WaitForDecision
from amqp10broker.operations.table import OPERATIONS, Operation

RUN: Final[Mapping[str, Callable[..., Any]]] = {
    "get-queue": queues.get_queue,
    "declare-queue": queues.declare_queue,
    "delete-queue": queues.delete_queue,
    "purge-queue": queues.purge_queue,
    "list-queues": queues.list_queues,
    "declare-exchange": exchanges.declare_exchange,
    "delete-exchange": exchanges.delete_exchange,
    "get-exchange": exchanges.get_exchange,
    "list-exchanges": exchanges.list_exchanges,
    "bind": bindings.bind,
    "unbind": bindings.unbind,
    "unbind-by-segment": bindings.unbind_by_segment,
    "get-bindings": bindings.get_bindings,
    "list-bindings": bindings.list_bindings,
    "add-user": accounts.add_user,
    "put-user": accounts.put_user,
    "change-password": accounts.change_password,
    "delete-user": accounts.delete_user,
    "set-tags": accounts.set_tags,
    "list-users": accounts.list_users,
    "set-permissions": accounts.set_permissions,
    "clear-permissions": accounts.clear_permissions,
    "list-permissions": accounts.list_permissions,
    "set-topic-permissions": accounts.set_topic_permissions,
    "clear-topic-permissions": accounts.clear_topic_permissions,
    "list-topic-permissions": accounts.list_topic_permissions,
    "add-vhost": accounts.add_vhost,
    "put-vhost": accounts.put_vhost,
    "delete-vhost": accounts.delete_vhost,
    "list-vhosts": accounts.list_vhosts,
    "set-policy": policies.set_policy,
    "clear-policy": policies.clear_policy,
    "list-policies": policies.list_policies,
    "set-operator-policy": policies.set_operator_policy,
    "clear-operator-policy": policies.clear_operator_policy,
    "list-operator-policies": policies.list_operator_policies,
    "clear-parameter": parameters.clear_parameter,
    "set-global-parameter": parameters.set_global_parameter,
    "clear-global-parameter": parameters.clear_global_parameter,
    "set-vhost-limits": limits.set_vhost_limits,
    "set-user-limits": limits.set_user_limits,
    "export-definitions": definitions.export_definitions,
    "import-definitions": definitions.import_definitions,
    "status": running.status,
    "connections": running.connections,
    "waiting": running.waiting,
    "set": running.set_flow,
    "set-limit": running.set_limit,
    "alarm": running.set_alarm,
    "close-connection": running.close_connection,
    "list-suspended-links": running.list_suspended_links,
    "end-suspended-link": running.end_suspended_link,
    "record-start": running.start_recording,
    "record-stop": running.stop_recording,
    "record-status": running.show_recording,
    "trace": running.trace,
    "watches": running.watches,
    "watch-link": running.watch_link,
    "unwatch-link": running.unwatch_link,
    "follow-links": running.follow_links,
    "inject-fault": running.inject_fault,
    "lift-fault": running.lift_fault,
    "list-faults": running.list_faults,
    "timeline": running.timeline,
    "add-member": members.add_member,
    "delete-member": members.delete_member,
    "transfer-leadership": members.transfer_leadership,
    "force-shrink-member-to-current-member": members.force_shrink,
    "quorum-status": members.quorum_status,
    "stream-status": streams.stream_status,
    "add-replica": streams.add_replica,
    "delete-replica": streams.delete_replica,
    "restart-stream": streams.restart_stream,
    "grow": members.grow,
    "grow-to-count": members.grow_to_count,
    "shrink": members.shrink,
    "force-all-queues-shrink-member-to-current-member": members.force_shrink_all,
    "rebalance": members.rebalance,
    "check-if-node-is-quorum-critical": maintenance.check_quorum_critical,
    "await-online-quorum-plus-one": maintenance.await_online_quorum_plus_one,
    "check-for-quorum-queues-without-an-elected-leader": maintenance.check_leaders,
    "check-if-new-quorum-queue-replicas-have-finished-initial-sync": maintenance.check_initial_sync,
    "drain": maintenance.drain,
    "revive": maintenance.revive,
    "cluster-status": cluster.cluster_status,
    "list-listeners": cluster.list_listeners,
    "await-online-nodes": cluster.await_online_nodes,
    "has-reached-target-cluster-size": cluster.has_reached_target_cluster_size,
    "metadata-store-status": cluster.metadata_store_status,
    "set-cluster-name": cluster.set_cluster_name,
    "forget-cluster-node": cluster.forget_cluster_node,
    "join-cluster": cluster.join_cluster,
    "reset": cluster.reset,
    "force-reset": cluster.force_reset,
    "doctor": doctor.doctor,
    "list-alarms": maintenance.list_alarms,
}
"""The function of each operation of the table; its keyword arguments are those of the operation."""


def perform(caller: Caller, name: str, given: Mapping[str, object]) -> Any:
    """Execute an operation. Returns the result as plain Python values, or an `QueueQuestion`, a
    `WaitForDecision` or a `Job`. Raises `RefusedError` if nothing was changed.
    """
    operation = OPERATIONS.get(name)
    if operation is None:
        raise NotFound(f"operation '{name}'", f"no operation '{name}'; there are {', '.join(OPERATIONS)}")
    return _step(caller, operation, given, partial(_begin, caller, operation, given))


def _begin(caller: Caller, operation: Operation, given: Mapping[str, object]) -> Any:
    result = RUN[operation.name](caller, **checked(operation.noun, operation.arguments, given))
    return result.carried_out(caller) if isinstance(result, ProposedChange) else result


def _step(
    caller: Caller, operation: Operation, given: Mapping[str, object], go_on: Callable[..., Any], *heard: Any
) -> Any:
    # Reports the operation when it is over.
    told = caller.report is not None and operation.changes
    try:
        result = go_on(*heard)
    except RefusedError as refusal:
        if told:
            _report(caller, operation, given, refusal)
        raise
    if isinstance(result, QueueQuestion | WaitForDecision | Job):
        return replace(result, then=partial(_step, caller, operation, given, result.then))
    if told:
        _report(caller, operation, given)
    return result


def _report(
    caller: Caller, operation: Operation, given: Mapping[str, object], refusal: RefusedError | None = None
) -> None:
    assert caller.report is not None
    if isinstance(refusal, PermissionDenied):
        return  # it ends the client's session, which is logged by itself
    named = (
        f"{argument.name}={shown(value)}"
        for argument in operation.arguments
        if argument.kind is Kind.TEXT and not argument.secret
        # A refused value may be of any type.
        if isinstance(value := given.get(argument.name), str)
    )
    subject = f"{operation.noun} {', '.join(named)}".rstrip()
    caller.report(operation.name, subject, None if refusal is None else refusal.description)
