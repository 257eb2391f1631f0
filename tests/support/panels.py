"""Queries of RabbitMQ's stock Grafana boards, and what of PromQL tells whether they find anything.

A query finds something if each selector of it does: names and labels are what a broker can get wrong. All
selectors are joined with ``rabbitmq_identity_info`` by labels that the scraper adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

OVERVIEW: Final = {
    "Ready messages": "sum(rabbitmq_queue_messages_ready)",
    "Unacknowledged messages": "sum(rabbitmq_queue_messages_unacked)",
    "Connections": "rabbitmq_connections",
    "Channels": "rabbitmq_channels",
    "Queues": "rabbitmq_queues",
    "Nodes": "rabbitmq_build_info{rabbitmq_version!='',erlang_version='',prometheus_plugin_version!=''}",
    "Uptime": "rabbitmq_erlang_uptime_seconds",
    "Memory available": "rabbitmq_resident_memory_limit_bytes - rabbitmq_process_resident_memory_bytes",
    "Disk space available": "rabbitmq_disk_space_available_bytes",
    "Disk space until publishers wait": "rabbitmq_disk_space_available_bytes"
    " - rabbitmq_disk_space_available_limit_bytes",
    "File descriptors available": "rabbitmq_process_max_fds - rabbitmq_process_open_fds",
    "Publishers": "rabbitmq_global_publishers",
    "Consumers": "rabbitmq_global_consumers",
    "Incoming": "sum(rate(rabbitmq_global_messages_received_total[60s]))",
    "Published": "rate(rabbitmq_global_messages_received_total{protocol='amqp091'}[60s])",
    "Unconfirmed": "rate(rabbitmq_global_messages_received_confirm_total[60s])"
    " - rate(rabbitmq_global_messages_confirmed_total[60s])",
    "Routed": "rate(rabbitmq_global_messages_routed_total[60s])",
    "Dropped": "rate(rabbitmq_global_messages_unroutable_dropped_total[60s])",
    "Returned": "rate(rabbitmq_global_messages_unroutable_returned_total[60s])",
    "Outgoing": "rate(rabbitmq_global_messages_delivered_total{queue_type='rabbit_quorum_queue'}[60s])",
    "Redelivered": "rate(rabbitmq_global_messages_redelivered_total[60s])",
    "Manual ack": "rate(rabbitmq_global_messages_delivered_consume_manual_ack_total[60s])",
    "Auto ack": "rate(rabbitmq_global_messages_delivered_consume_auto_ack_total[60s])",
    "Acknowledged": "rate(rabbitmq_global_messages_acknowledged_total[60s])",
    "Polling, auto": "rate(rabbitmq_global_messages_delivered_get_auto_ack_total[60s])",
    "Polling, without result": "rate(rabbitmq_global_messages_get_empty_total[60s])",
    "Polling, manual": "rate(rabbitmq_global_messages_delivered_get_manual_ack_total[60s])",
    "Channels opened": "rate(rabbitmq_channels_opened_total[60s])",
    "Channels closed": "rate(rabbitmq_channels_closed_total[60s])",
    "Connections opened": "rate(rabbitmq_connections_opened_total[60s])",
    "Connections closed": "rate(rabbitmq_connections_closed_total[60s])",
    "Queues declared": "rate(rabbitmq_queues_declared_total[60s])",
    "Queues created": "rate(rabbitmq_queues_created_total[60s])",
    "Queues deleted": "rate(rabbitmq_queues_deleted_total[60s])",
    "Average size": "rate(rabbitmq_message_size_bytes_sum[60s])"
    " / rate(rabbitmq_message_size_bytes_count[60s])",
    **{
        f"Sizes up to {end}": f"rate(rabbitmq_message_size_bytes_bucket{{le='{end}'}}[60s])"
        for end in (
            *("100.0", "1000.0", "10000.0", "100000.0"),
            *("1e+06", "1e+07", "5e+07", "1e+08", r"+Inf"),
        )
    },
}
STREAM: Final = tuple(
    f"rabbitmq_global_{name}{{protocol='stream'}}"
    for name in (
        *("publishers", "consumers"),
        *("messages_received_total", "messages_confirmed_total", "messages_delivered_total"),
        *(
            f"stream_error_{fault}_total"
            for fault in (
                "access_refused",
                "authentication_failure",
                "frame_too_large",
                "internal_error",
                "precondition_failed",
                "publisher_does_not_exist",
                "sasl_authentication_failure_loopback",
                "sasl_challenge",
                "sasl_error",
                "sasl_mechanism_not_supported",
                "stream_already_exists",
                "stream_does_not_exist",
                "stream_not_available",
                "subscription_id_already_exists",
                "subscription_id_does_not_exist",
                "unknown_frame",
                "vhost_access_failure",
            )
        ),
    )
)
"""All that is asked for is of the stream protocol, which this broker does not speak."""

QUORUM: Final = {
    "Committed": "rate(rabbitmq_raft_commit_index[60s]) or rate(rabbitmq_raft_log_commit_index[60s])",
    "Uncommitted": "rabbitmq_raft_last_written_index - rabbitmq_raft_commit_index",
    "Uncommitted, old": "rabbitmq_raft_log_last_written_index - rabbitmq_raft_log_commit_index",
    "Members with > 5k": "rabbitmq_raft_last_written_index - rabbitmq_raft_snapshot_index > 5000",
    "Members, old": "rabbitmq_raft_log_last_written_index - rabbitmq_raft_log_snapshot_index > 5000",
    "Elections": "rate(rabbitmq_raft_term[60s])",
}
LATENCY: Final = "rabbitmq_raft_commit_latency_seconds"
"""The board of quorum queues asks for it, too; nobody measures it here."""

_SELECTOR: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?(?![\w(])")
_MATCHER: Final = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*['\"]([^'\"]*)['\"]")
_WORDS: Final = frozenset({"sum", "max", "rate", "or", "on", "group_left", "by", "histogram_quantile"})
_GROUPING: Final = re.compile(r"\b(?:by|on|group_left)\s*\([^)]*\)")


class Series(NamedTuple):
    name: str
    labels: dict[str, str]


def series_of(text: str) -> list[Series]:
    """Return all series of a scrape without kinds: the parser requires counters to end in ``_total``."""
    bare = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    families = text_string_to_metric_families(bare)
    return [Series(sample.name, sample.labels) for family in families for sample in family.samples]


def unfound(query: str, series: Iterable[Series]) -> list[str]:
    known = list(series)
    bare = _GROUPING.sub("", re.sub(r"\[[$\w]+\]", "", query))
    return [
        found.group(0)
        for found in _SELECTOR.finditer(bare)
        if found[1] not in _WORDS
        and not any(each.name == found[1] and _fits(found[2] or "", each.labels) for each in known)
    ]


def _fits(matchers: str, labels: dict[str, str]) -> bool:
    for name, how, value in _MATCHER.findall(matchers):
        has = labels.get(name, "")
        same = re.fullmatch(value, has) is not None if "~" in how else has == value
        if same is how.startswith("!"):
            return False
    return True
