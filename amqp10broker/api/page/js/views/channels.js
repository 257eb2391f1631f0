/** Channels of AMQP 0-9-1, and one of them. */

import { path } from "../api.js";
import { h, name, put, visible } from "../dom.js";
import { count, peer, rate } from "../format.js";
import { badge, briefly, facts, follow, heading, panel, refresh, stateBadge, waitBadge } from "../parts.js";
import { href, timeline } from "../router.js";
import { link, listView, table, timelines } from "../table.js";

const RATES = [
  ["publish", "Publish"],
  ["confirm", "Confirm"],
  ["deliver_get", "Deliver, get"],
  ["ack", "Acknowledge"],
  ["redeliver", "Redeliver"],
  ["return_unroutable", "Returned"],
];

/** For tables of channels. @type {import("../table.js").Column[]} */
export const CHANNEL_COLUMNS = [
  { key: "name", title: "Channel", cell: (row) => link(href("channels", row.name), peer(row.name)) },
  { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
  { key: "user", title: "User", spare: true, cell: (row) => name(row.user) },
  { key: "state", title: "State", spare: true, cell: (row) => stateBadge(row.state) },
  { key: "waits", width: 210, title: "Waits for", fields: ["waits_for_s", "waits", "waits_why"], cell: waitBadge },
  { key: "mode", title: "Mode", spare: true, fields: ["confirm", "transactional"], sort: false, cell: modeOf },
  { key: "consumer_count", width: 106, title: "Consumers", number: true, cell: (row) => count(row.consumer_count) },
  { key: "prefetch_count", title: "Prefetch", number: true, help: "of its next consumers; 0: any number", cell: (row) => prefetchOf(row.prefetch_count) },
  { key: "messages_unacknowledged", title: "Unacked", number: true, cell: (row) => count(row.messages_unacknowledged) },
  { key: "messages_unconfirmed", width: 118, title: "Unconfirmed", number: true, cell: (row) => count(row.messages_unconfirmed) },
  { key: "message_stats.publish_details.rate", title: "Publish", number: true, cell: (row) => rateOf(row, "publish") },
  { key: "message_stats.deliver_get_details.rate", title: "Deliver", number: true, cell: (row) => rateOf(row, "deliver_get") },
  { key: "message_stats.ack_details.rate", title: "Ack", number: true, spare: true, cell: (row) => rateOf(row, "ack") },
  { key: "global_prefetch_count", title: "Global prefetch", number: true, spare: true, cell: (row) => prefetchOf(row.global_prefetch_count) },
];

/** @type {import("./index.js").View} */
export const view = listView("Channels", "Channel", 1, listOf, drawOne);

function listOf({ vhost }) {
  return {
    id: "channels",
    path: vhost ? path("vhosts", vhost, "channels") : "/channels",
    fields: ["name"],
    rowKey: (row) => row.name,
    rowHref: (row) => href("channels", row.name),
    filterBy: "address",
    empty: "No channel is open. Sessions of AMQP 1.0 are on the page of their connection.",
    columns: CHANNEL_COLUMNS,
  };
}

function drawOne(host, context, channel) {
  const head = h("div");
  const about = h("div");
  const consumers = table(context, {
    id: "consumers-of-channel",
    label: "Consumers",
    plain: true,
    rowKey: (row) => row.consumer_tag,
    empty: "No consumer.",
    columns: [
      { key: "consumer_tag", title: "Consumer tag", cell: (row) => name(row.consumer_tag) },
      { key: "queue", title: "Queue", sort: "queue.name", cell: (row) => link(href("queues", row.queue.vhost, row.queue.name), row.queue.name) },
      { key: "prefetch_count", title: "Prefetch", number: true, cell: (row) => prefetchOf(row.prefetch_count) },
      { key: "ack_required", title: "Acknowledges", cell: (row) => (row.ack_required ? "yes" : "no") },
      { key: "messages_unacknowledged", title: "Unacked", number: true, cell: (row) => count(row.messages_unacknowledged) },
      { key: "messages_unsent", title: "Unsent", number: true, help: "messages from the queue that are not written yet", cell: (row) => count(row.messages_unsent) },
      { key: "waits", title: "Waits for", sort: "waits_for_s", cell: waitBadge },
      { key: "arguments", title: "Arguments", sort: false, cell: (row) => briefly(row.arguments) },
      timelines((row) => timeline(row.channel_details.connection_name, row.channel_details.number, row.consumer_tag)),
    ],
  });
  put(host, head, about, panel("Consumers", consumers.element));
  follow(context, path("channels", channel), host, "This channel", (value) => {
    const connection = value.connection_details.name;
    refresh(head, [value.state, value.waits, value.waits_for_s], () =>
      heading(`Channel ${value.number}`, {
        above: [h("a", { href: href("channels") }, "Channels"), " / of ", h("a", { href: href("connections", connection) }, name(peer(connection)))],
        badges: [value.waits ? waitBadge(value) : stateBadge(value.state), modeOf(value)],
        actions: h("a", { class: "button", href: timeline(connection, value.number) }, "Timeline of the channel"),
      }),
    );
    refresh(about, { ...value, consumer_details: 0 }, () =>
      panel(
        null,
        facts([
          ["User", name(value.user)],
          ["Virtual host", name(value.vhost)],
          ["Prefetch", prefetchOf(value.prefetch_count)],
          ["Global prefetch", prefetchOf(value.global_prefetch_count)],
          ["Unacknowledged", count(value.messages_unacknowledged)],
          ["Unconfirmed", count(value.messages_unconfirmed)],
          ["Reader credit", h("span", { title: "contents that the connection may still read for it: credit_flow" }, count(value.reader_credit))],
          ...RATES.filter(([key]) => value.message_stats?.[key]).map(([key, label]) => [label, `${count(value.message_stats[key])} (${rateOf(value, key)})`]),
        ]),
        value.waits_why ? h("p", { class: "why apart" }, visible(value.waits_why)) : null,
      ),
    );
    consumers.show(value.consumer_details);
  });
}

function rateOf(row, key) {
  return rate(row.message_stats?.[`${key}_details`]?.rate);
}

function prefetchOf(value) {
  return value === 0 ? "any" : count(value);
}

function modeOf(row) {
  if (row.transactional) return badge("transactions");
  return row.confirm ? badge("confirms") : null;
}
