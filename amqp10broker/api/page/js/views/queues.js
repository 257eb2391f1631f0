/** Queues, and one of them. */

import { path } from "../api.js";
import { h, name, put } from "../dom.js";
import { count, rate } from "../format.js";
import { badge, briefly, button, heading, stateBadge } from "../parts.js";
import { href } from "../router.js";
import { link, table } from "../table.js";
import { drawQueue } from "./queue.js";
import { declareQueue } from "./queueactions.js";

/** @type {import("./index.js").View} */
export const view = {
  title: ([, queue]) => (queue === undefined ? "Queues" : `Queue ${queue}`),
  draw(host, [vhost, queue], context) {
    if (queue !== undefined) return drawQueue(host, vhost, queue, context);
    const rows = table(context, {
      id: "queues",
      label: "Queues",
      path: context.vhost ? path("queues", context.vhost) : "/queues",
      paged: true,
      fields: ["name", "vhost"],
      rowKey: (row) => JSON.stringify([row.vhost, row.name]),
      rowHref: (row) => href("queues", row.vhost, row.name),
      empty: "No queue is declared.",
      columns: COLUMNS,
      tools: button("Declare a queue", () => declareQueue(context), { kind: "primary small" }),
    });
    put(host, heading("Queues"), rows.element);
    return undefined;
  },
};

const COLUMNS = [
  { key: "name", title: "Queue", cell: (row) => link(href("queues", row.vhost, row.name), row.name) },
  { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
  { key: "type", width: 138, title: "Type", fields: ["type", "durable", "auto_delete", "exclusive"], cell: typeOf },
  { key: "policy", width: 80, title: "Policy", cell: (row) => (row.policy ? name(row.policy) : null) },
  { key: "state", width: 98, title: "State", sort: false, cell: (row) => stateBadge(row.state) },
  { key: "messages_ready", title: "Ready", number: true, cell: (row) => count(row.messages_ready) },
  { key: "messages_unacknowledged", title: "Unacked", number: true, cell: (row) => count(row.messages_unacknowledged) },
  { key: "messages", title: "Total", number: true, cell: (row) => count(row.messages) },
  { key: "message_stats.publish_details.rate", title: "In", number: true, help: "messages published to it a second", cell: (row) => rateOf(row, "publish") },
  { key: "message_stats.deliver_get_details.rate", title: "Out", number: true, help: "messages delivered or got a second", cell: (row) => rateOf(row, "deliver_get") },
  { key: "message_stats.ack_details.rate", title: "Ack", number: true, spare: true, cell: (row) => rateOf(row, "ack") },
  { key: "consumers", width: 108, title: "Consumers", number: true, cell: (row) => count(row.consumers) },
  { key: "node", title: "Leader", spare: true, cell: (row) => name(row.node) },
  { key: "members", title: "Members online", fields: ["members", "online"], sort: false, spare: true, cell: membersOf },
  { key: "operator_policy", title: "Operator policy", spare: true, cell: (row) => (row.operator_policy ? name(row.operator_policy) : null) },
  { key: "arguments", title: "Arguments", sort: false, spare: true, cell: (row) => briefly(row.arguments) },
];

function typeOf(row) {
  const told = [
    [row.durable, "D", "durable: it outlives the broker"],
    [row.auto_delete, "AD", "auto-delete: it goes with its last consumer"],
    [row.exclusive, "E", "exclusive: one connection has it for itself"],
  ];
  return [badge(row.type, row.type === "classic" ? "" : "accent"), " ", h("span", { class: "marks" }, told.filter(([is]) => is).map(([, sign, title]) => h("abbr", { title }, sign)))];
}

function rateOf(row, key) {
  return row.message_stats ? rate(row.message_stats[`${key}_details`]?.rate ?? 0) : h("span", { class: "muted" }, "\u2013");
}

function membersOf(row) {
  if (!row.members) return null;
  const all = row.online.length === row.members.length;
  const text = `${row.online.length} of ${row.members.length}`;
  return all ? text : badge(text, 2 * row.online.length > row.members.length ? "warn" : "bad");
}
