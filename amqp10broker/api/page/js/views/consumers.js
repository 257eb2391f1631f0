/** Consumers of both protocols. */

import { h, name, put } from "../dom.js";
import { count, duration, peer } from "../format.js";
import { badge, briefly, heading, waitBadge } from "../parts.js";
import { href, timeline } from "../router.js";
import { link, ofVhost, table, timelines } from "../table.js";

/** For tables of consumers. @type {import("../table.js").Column[]} */
export const CONSUMER_COLUMNS = [
  { key: "queue", title: "Queue", sort: "queue.name", cell: (row) => link(href("queues", row.queue.vhost, row.queue.name), row.queue.name) },
  { key: "consumer_tag", width: 118, title: "Consumer tag", help: "of AMQP 1.0 the handle of the link", cell: (row) => name(row.consumer_tag) },
  { key: "channel_details", width: 212, title: "Channel or link", sort: "channel_details.name", cell: channelOf },
  { key: "waits", width: 246, title: "Waits for", sort: "waits_for_s", cell: waitBadge },
  { key: "messages_unacknowledged", title: "Unacked", number: true, cell: (row) => count(row.messages_unacknowledged) },
  { key: "prefetch_count", title: "Prefetch", number: true, cell: (row) => (isTen(row) ? h("span", { class: "muted", title: "AMQP 1.0 has credit instead" }, "\u2013") : row.prefetch_count === 0 ? "any" : count(row.prefetch_count)) },
  { key: "ack_required", title: "Acks", width: 60, help: "whether it acknowledges, or settles", cell: (row) => (row.ack_required ? "yes" : "no") },
  { key: "exclusive", title: "Exclusive", spare: true, cell: (row) => (row.exclusive ? badge("exclusive") : null) },
  { key: "consumer_timeout", title: "Time-out", number: true, spare: true, cell: (row) => (row.consumer_timeout ? duration(row.consumer_timeout / 1000) : null) },
  { key: "arguments", title: "Arguments", sort: false, spare: true, cell: (row) => briefly(row.arguments) },
  timelines(consumerTimeline, 108),
];

/** What tells two consumers apart. @param {any} row @returns {string} */
export function consumerKey(row) {
  return JSON.stringify([row.queue, row.link_details ?? row.channel_details.name, row.consumer_tag]);
}

/** @type {import("./index.js").View} */
export const view = {
  title: "Consumers",
  draw(host, parameters, context) {
    const rows = table(context, {
      id: "consumers",
      label: "Consumers",
      path: ofVhost("consumers", context.vhost),
      rowKey: consumerKey,
      rowText: (row) => `${row.queue.name} ${row.consumer_tag} ${row.channel_details.name ?? `${row.link_details.connection_name} ${row.link_details.link_name}`}`,
      empty: "Nothing consumes.",
      columns: CONSUMER_COLUMNS,
    });
    put(host, heading("Consumers"), rows.element);
  },
};

function isTen(row) {
  return row.link_details !== undefined;
}

function channelOf(row) {
  if (isTen(row)) return [link(href("connections", row.link_details.connection_name), peer(row.link_details.connection_name)), " ", name(row.link_details.link_name)];
  return link(href("channels", row.channel_details.name), peer(row.channel_details.name));
}

/** Where the timeline of a consumer of either protocol is. */
export function consumerTimeline({ channel_details: channel, link_details: details, consumer_tag: tag }) {
  if (details) return timeline(details.connection_name, details.channel_number, details.link_name, "receiver");
  return timeline(channel.connection_name, channel.number, tag);
}
