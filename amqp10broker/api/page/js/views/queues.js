/** Queues, and one of them: how it stands, who consumes, what is bound to it, and where its members are. */

import { path, withQuery } from "../api.js";
import { messageCharts } from "../chart.js";
import { ask, show, vhostField } from "../dialogs.js";
import { h, name, put, visible } from "../dom.js";
import { count } from "../format.js";
import { badge, briefly, button, declaredBadges, facts, follow, heading, marks, pairs, panel, rateOf, refresh, smallTable, stateBadge } from "../parts.js";
import { href } from "../router.js";
import { link, listView, ofVhost, table } from "../table.js";
import { QUEUE_ARGUMENTS } from "../tables.js";
import { CONSUMER_COLUMNS, consumerKey } from "./consumers.js";
import { addBinding, bindingTable, publish } from "./exchanges.js";

/** @type {import("./index.js").View} */
export const view = listView("Queues", "Queue", 2, listOf, drawOne);

function listOf(context) {
  return {
    id: "queues",
    path: ofVhost("queues", context.vhost),
    fields: ["name", "vhost"],
    rowKey: (row) => JSON.stringify([row.vhost, row.name]),
    rowHref: (row) => href("queues", row.vhost, row.name),
    empty: "No queue is declared.",
    columns: COLUMNS,
    tools: button("Declare a queue", () => declareQueue(context), { kind: "primary small" }),
  };
}

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
  { key: "members", title: "Members online", fields: ["members", "online"], sort: false, spare: true, cell: onlineOf },
  { key: "operator_policy", title: "Operator policy", spare: true, cell: (row) => (row.operator_policy ? name(row.operator_policy) : null) },
  { key: "arguments", title: "Arguments", sort: false, spare: true, cell: (row) => briefly(row.arguments) },
];

function typeOf(row) {
  const known = marks([
    [row.durable, "D", "durable: it outlives the broker"],
    [row.auto_delete, "AD", "auto-delete: it goes with its last consumer"],
    [row.exclusive, "E", "exclusive: one connection has it for itself"],
  ]);
  return [badge(row.type, row.type === "classic" ? "" : "accent"), " ", known];
}

function onlineOf(row) {
  if (!row.members) return null;
  const all = row.online.length === row.members.length;
  const text = `${row.online.length} of ${row.members.length}`;
  return all ? text : badge(text, 2 * row.online.length > row.members.length ? "warn" : "bad");
}

/** One queue is little: it is looked at more often than lists are. */
const FOLLOWED = { interval: 1000, always: true };
const COUNTERS = [
  ["publish", "Published"],
  ["deliver", "Delivered, to be acknowledged"],
  ["deliver_no_ack", "Delivered settled"],
  ["get", "Got"],
  ["ack", "Acknowledged"],
  ["redeliver", "Redelivered"],
];

function drawOne(host, context, vhost, queue) {
  const where = path("queues", vhost, queue);
  const charts = messageCharts("Messages", ["publish", "deliver_get", "ack", "redeliver"]);
  const head = h("div");
  const about = h("div");
  const declared = h("div");
  const members = h("div");
  const consumers = table(context, {
    id: "consumers-of-queue",
    label: "Consumers",
    plain: true,
    rowKey: consumerKey,
    empty: "This queue has no consumer.",
    columns: CONSUMER_COLUMNS.filter((each) => each.key !== "queue"),
  });
  put(
    host,
    head,
    charts.element,
    h("div", { class: "columns" }, about, declared),
    members,
    panel("Consumers", consumers.element),
    panel(["Bindings", button("Bind", () => addBinding(context, { vhost, destination: queue, kind: "queue" }), { kind: "small" })], bindingTable(context, where, "of-queue", "", "Nothing is bound to this queue.")),
  );

  charts.seed(context, `${where}?columns=messages_ready_details,messages_unacknowledged_details,message_stats`, (kept) => kept);
  let status = false;
  follow(context, where, host, "This queue", (value) => {
    if (value.messages !== undefined) charts.push(value, value.message_stats);
    refresh(head, [value.state, value.policy, value.messages, value.consumers], () => headOf(value, context));
    refresh(about, { ...value, consumer_details: 0 }, () => aboutOf(value));
    refresh(declared, [value.arguments, value.policy, value.operator_policy, value.effective_policy_definition], () => declaredOf(value));
    consumers.show(value.consumer_details ?? []);
    if (value.type === "quorum" && !status) {
      status = true;
      context.watch(path("queues", "quorum", vhost, queue, "status"), (rows, refusal) => {
        refresh(members, [rows, refusal?.reason], () => membersOf(rows ?? [], refusal, { vhost, queue }, context));
      });
    } else if (value.type === "stream") {
      refresh(members, [value.members, value.online], () => panel("Members", memberList(value)));
    }
  }, FOLLOWED);
}

function headOf(value, context) {
  const stream = value.type === "stream";
  return heading(name(value.name), {
    above: [h("a", { href: href("queues") }, "Queues"), " / in virtual host ", name(value.vhost)],
    badges: [
      stateBadge(value.state),
      badge(value.type, "accent"),
      declaredBadges(value),
    ],
    actions: [
      button("Publish", () => publish(context, value.vhost, "", value.name), { kind: "primary" }),
      button("Get messages", () => getMessages(context, value.vhost, value.name), { refused: stream && "a stream is read by consumers alone" }),
      button("Purge", () => purge(context, value), { kind: "danger", refused: stream && "a stream keeps its messages" }),
      button("Delete", () => deleteQueue(context, value), { kind: "danger" }),
    ],
  });
}

function aboutOf(value) {
  const stats = value.message_stats ?? {};
  return panel(
    "Now",
    facts([
      ["Ready", count(value.messages_ready)],
      ["Unacknowledged", count(value.messages_unacknowledged)],
      ["Total", count(value.messages)],
      ["Consumers", count(value.consumers)],
      ["Leader", name(value.node)],
      ["Delivery limit", value.delivery_limit === undefined ? null : value.delivery_limit < 0 ? "none" : count(value.delivery_limit)],
      ["Waiting to be dead-lettered", value.messages_dlx === undefined ? null : count(value.messages_dlx)],
      ["Delayed", value.messages_delayed ? count(value.messages_delayed) : null],
      ["Segments", value.segments === undefined ? null : count(value.segments)],
      ["Single active consumer", value.single_active_consumer_tag ? name(value.single_active_consumer_tag) : null],
      ["Belongs to connection", value.owner_pid_details ? h("a", { href: href("connections", value.owner_pid_details.name) }, name(value.owner_pid_details.name)) : null],
      ...COUNTERS.filter(([key]) => stats[key]).map(([key, label]) => [label, count(stats[key])]),
    ]),
  );
}

function declaredOf(value) {
  return panel(
    "Declared with",
    pairs(value.arguments),
    h("h2", null, "In force by policies"),
    value.policy || value.operator_policy
      ? h("p", { class: "hint" }, value.policy ? ["policy ", name(value.policy)] : null, value.policy && value.operator_policy ? ", " : null, value.operator_policy ? ["operator policy ", name(value.operator_policy)] : null)
      : null,
    pairs(value.effective_policy_definition),
  );
}

// --- what can be done -------------------------------------------------------------------------------

const ACK_MODES = [
  { value: "ack_requeue_true", label: "Return them to the queue (redelivered next time)" },
  { value: "ack_requeue_false", label: "Acknowledge: remove them" },
  { value: "reject_requeue_true", label: "Reject, and return them to the queue (counts as a failed delivery)" },
  { value: "reject_requeue_false", label: "Reject: dead-letter or drop" },
];

function declareQueue(context) {
  ask({
    title: "Declare a queue",
    label: "Declare",
    fields: [
      vhostField(context),
      { name: "name", label: "Name", required: true },
      {
        name: "type",
        label: "Type",
        type: "select",
        value: context.broker.default_queue_type,
        options: [
          { value: "classic", label: "classic: on one node" },
          { value: "quorum", label: "quorum: replicated, for what must not be lost" },
          { value: "stream", label: "stream: a log that is read again and again" },
        ],
      },
      { name: "durable", label: "Durable: it survives a restart of the broker", type: "flag", value: true, help: "Quorum queues and streams always are." },
      { name: "auto_delete", label: "Auto-delete: it is deleted with its last consumer", type: "flag" },
      { name: "arguments", label: "Arguments", type: "table", keys: QUEUE_ARGUMENTS },
    ],
    run: ({ vhost, name: queue, type, durable, auto_delete, arguments: given }) =>
      context.api.put(path("queues", vhost, queue), { durable, auto_delete, arguments: { "x-queue-type": type, ...given } }),
    done: ({ vhost, name: queue }) => context.done(`Queue ${queue} was declared.`, href("queues", vhost, queue)),
  });
}

function getMessages(context, vhost, queue) {
  ask({
    title: "Get messages",
    text: ["To look at messages of ", name(queue), ". Programs should consume instead."],
    label: "Get",
    fields: [
      { name: "count", label: "Number of messages, at most", type: "number", value: 1, required: true },
      { name: "ackmode", label: "And then", type: "select", value: ACK_MODES[0].value, options: ACK_MODES },
      { name: "encoding", label: "Show payloads as", type: "select", value: "auto", options: [{ value: "auto", label: "text where they are UTF-8" }, { value: "base64", label: "base64" }] },
      { name: "truncate", label: "Bytes to show of each payload", type: "number", value: 50_000 },
    ],
    run: (values) => context.api.post(path("queues", vhost, queue, "get"), { ...values, truncate: values.truncate ?? 50_000 }),
    done: (_, got) => {
      context.again();
      show(
        got.length ? `${count(got.length)} ${got.length === 1 ? "message" : "messages"}` : "The queue has no message ready",
        got.length ? h("p", { class: "said muted" }, `${count(got.at(-1).message_count)} more are ready behind them.`) : null,
        got.map(messageOf),
      ).classList.add("broad");
    },
  });
}

function messageOf(message, place) {
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  return h(
    "article",
    { class: "message" },
    h(
      "header",
      null,
      h("b", null, `${place + 1}`),
      h("span", null, "exchange ", name(message.exchange, "(default)")),
      h("span", null, "routing key ", name(message.routing_key)),
      h("span", null, `${count(message.payload_bytes)} bytes`),
      message.payload_encoding === "base64" ? h("span", null, "shown as base64") : null,
      message.redelivered ? h("span", null, "redelivered") : null,
    ),
    Object.keys(properties).length ? pairs(properties) : null,
    headers && Object.keys(headers).length ? pairs(headers) : null,
    h("pre", { class: "payload", tabindex: "0" }, visiblePayload(message)),
  );
}

/** Lines and tabs are part of how a payload reads; all else that has no form is shown. */
function visiblePayload({ payload }) {
  if (payload === "") return "(empty)";
  return payload.split(/([\n\t])/).map((each) => (each === "\n" || each === "\t" ? each : visible(each))).join("");
}

function purge(context, queue) {
  ask({
    title: "Purge the queue?",
    text: ["All ready messages are deleted: ", h("b", null, count(queue.messages_ready)), " now. Messages that consumers hold unsettled stay."],
    label: "Purge",
    danger: true,
    typed: queue.name,
    run: () => context.api.delete(path("queues", queue.vhost, queue.name, "contents")),
    done: () => context.done(`Queue ${queue.name} was purged.`),
  });
}

function deleteQueue(context, queue) {
  ask({
    title: "Delete the queue?",
    text: ["Its messages, ", h("b", null, count(queue.messages)), " now, and its bindings are deleted with it. Consumers that are cancelled: ", h("b", null, count(queue.consumers)), "."],
    fields: [
      { name: "unused", label: "Only if it has no consumers", type: "flag" },
      { name: "empty", label: "Only if it has no messages", type: "flag" },
    ],
    label: "Delete",
    danger: true,
    typed: queue.name,
    run: ({ unused, empty }) => context.api.delete(withQuery(path("queues", queue.vhost, queue.name), { "if-unused": unused, "if-empty": empty })),
    done: () => context.done(`Queue ${queue.name} was deleted.`, href("queues")),
  });
}

// --- members ----------------------------------------------------------------------------------------

function memberList(value) {
  return h(
    "ul",
    { class: "members" },
    value.members.map((each) => h("li", null, stateBadge(value.online.includes(each) ? "running" : "down"), " ", name(each), each === value.leader ? badge("leader", "accent") : null)),
  );
}

function membersOf(rows, refusal, { vhost, queue }, context) {
  if (refusal) return panel("Members", h("p", { class: "muted" }, refusal.reason));
  const only = rows.length < 2 && "it is the only member";
  const mayNot = context.refused("administrator");
  return panel(
    ["Members", button("Add a member", () => addMember(context, vhost, queue), { kind: "small", refused: mayNot })],
    smallTable(
      ["Node", "Raft state", "Membership", "Term", "Log", "Written", "Committed", "Applied", "Snapshot", ""],
      rows.map((each) => [
        name(each["Node Name"]),
        raftState(each["Raft State"]),
        each.Membership,
        ...["Term", "Last Log Index", "Last Written", "Commit Index", "Last Applied", "Snapshot Index"].map((key) => count(each[key])),
        button("Remove", () => removeMember(context, vhost, queue, each["Node Name"]), { kind: "small danger", refused: mayNot || only }),
      ]),
      3,
    ),
  );
}

function raftState(state) {
  if (state === "leader") return badge("leader", "accent");
  return state === "follower" ? badge("follower") : badge(state ?? "unknown", "bad");
}

async function addMember(context, vhost, queue) {
  const nodes = await context.api.get("/nodes?columns=name");
  ask({
    title: "Add a member",
    text: "The member copies the queue from its leader, and votes when the copy is complete.",
    fields: [
      { name: "node", label: "On node", type: "select", options: nodes.map((each) => each.name) },
      { name: "membership", label: "As", type: "select", options: [{ value: "promotable", label: "voter, once it has caught up" }, { value: "voter", label: "voter at once" }, { value: "non_voter", label: "non-voter" }] },
    ],
    label: "Add",
    run: (values) => context.api.post(path("queues", "quorum", vhost, queue, "replicas", "add"), values),
    done: () => context.done("A member was added."),
  });
}

function removeMember(context, vhost, queue, node) {
  ask({
    title: "Remove this member?",
    text: ["The member on ", name(node), " is removed with its data. The queue tolerates fewer failures without it."],
    label: "Remove",
    danger: true,
    run: () => context.api.delete(path("queues", "quorum", vhost, queue, "replicas", "delete"), { body: { node } }),
    done: () => context.done("The member was removed."),
  });
}
