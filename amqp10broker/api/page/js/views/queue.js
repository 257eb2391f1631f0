/** One queue: how it stands, who consumes, what is bound to it, and where its members are. */

import { path } from "../api.js";
import { History, chart } from "../chart.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count, rate } from "../format.js";
import { LENGTHS, badge, button, facts, heading, missing, pairs, panel, refresh, stateBadge } from "../parts.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { addBinding, bindingColumns, bindingKey } from "./bindings.js";
import { CONSUMER_COLUMNS, consumerKey } from "./consumers.js";
import { deleteQueue, getMessages, publish, purge } from "./queueactions.js";

/** One queue is little: it is looked at more often than lists are. */
const FOLLOWED = { interval: 1000, always: true };
const RATES = [
  { key: "publish", label: "publish" },
  { key: "deliver_get", label: "deliver and get" },
  { key: "ack", label: "acknowledge" },
  { key: "redeliver", label: "redeliver" },
];
const COUNTERS = [
  ["publish", "Published"],
  ["deliver", "Delivered, to be acknowledged"],
  ["deliver_no_ack", "Delivered settled"],
  ["get", "Got"],
  ["ack", "Acknowledged"],
  ["redeliver", "Redelivered"],
];

/**
 * @param {HTMLElement} host
 * @param {string} vhost
 * @param {string} queue
 * @param {import("../main.js").Context} context
 */
export function drawQueue(host, vhost, queue, context) {
  const where = path("queues", vhost, queue);
  const lengths = new History();
  const rates = new History();
  const lengthChart = chart(lengths, { label: "Messages", curves: LENGTHS });
  const rateChart = chart(rates, { label: "Messages per second", curves: RATES, format: rate });
  const head = h("div");
  const about = h("div");
  const declared = h("div");
  const members = h("div");
  const consumers = table(context, {
    id: "consumers-of-queue",
    label: "Consumers",
    plain: true,
    rowKey: consumerKey,
    empty: "Nothing consumes from it.",
    columns: CONSUMER_COLUMNS.filter((each) => each.key !== "queue"),
  });
  const bindings = table(context, {
    id: "bindings-of-queue",
    label: "Bindings",
    plain: true,
    path: `${where}/bindings`,
    rowKey: bindingKey,
    empty: "Nothing is bound to it.",
    columns: bindingColumns(context, "destination"),
  });
  put(
    host,
    head,
    h("div", { class: "charts" }, lengthChart.element, rateChart.element),
    h("div", { class: "columns" }, about, declared),
    members,
    panel("Consumers", consumers.element),
    panel(["Bindings", button("Bind", () => addBinding(context, { vhost, destination: queue, kind: "queue" }), { kind: "small" })], bindings.element),
  );

  let ended = false;
  const seeding = ["lengths", "msg_rates"].map((family) => `${family}_age=600&${family}_incr=10`).join("&");
  context.api
    .get(`${where}?columns=${[...LENGTHS.map(({ key }) => `${key}_details`), "message_stats"].join(",")}&${seeding}`)
    .then((kept) => {
      if (ended) return;
      lengths.seed(kept, LENGTHS, false);
      rates.seed(kept.message_stats, RATES, true);
      lengthChart.draw();
      rateChart.draw();
    })
    // Without what was before, the curves begin now.
    .catch(() => {});

  let status = null;
  context.watch(where, (value, error) => {
    if (error) {
      put(host, missing(error, "This queue"));
      return;
    }
    if (value.messages !== undefined) {
      lengths.push(value);
      rates.push(Object.fromEntries(RATES.map(({ key }) => [key, value.message_stats?.[`${key}_details`]?.rate ?? 0])));
      lengthChart.draw();
      rateChart.draw();
    }
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
  return () => {
    ended = true;
  };
}

function headOf(value, context) {
  const stream = value.type === "stream";
  return heading(name(value.name), {
    above: [h("a", { href: href("queues") }, "Queues"), " / in virtual host ", name(value.vhost)],
    badges: [
      stateBadge(value.state),
      badge(value.type, "accent"),
      value.durable ? badge("durable") : null,
      value.auto_delete ? badge("auto-delete") : null,
      value.exclusive ? badge("exclusive") : null,
      value.policy ? h("a", { class: "badge", href: href("policies") }, "policy ", name(value.policy)) : null,
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
    h(
      "table",
      { class: "small-table" },
      h("thead", null, h("tr", null, ["Node", "Raft state", "Membership", "Term", "Log", "Written", "Committed", "Applied", "Snapshot", ""].map((each, place) => h("th", { scope: "col", class: place > 2 && place < 9 ? "number" : null }, each)))),
      h(
        "tbody",
        null,
        rows.map((each) =>
          h(
            "tr",
            null,
            h("td", null, name(each["Node Name"])),
            h("td", null, raftState(each["Raft State"])),
            h("td", null, each.Membership),
            ["Term", "Last Log Index", "Last Written", "Commit Index", "Last Applied", "Snapshot Index"].map((key) => h("td", { class: "number" }, count(each[key]))),
            h("td", { class: "number" }, button("Remove", () => removeMember(context, vhost, queue, each["Node Name"]), { kind: "small danger", refused: mayNot || only })),
          ),
        ),
      ),
    ),
  );
}

function raftState(state) {
  if (state === "leader") return badge("leader", "accent");
  return state === "follower" ? badge("follower") : badge(state ?? "unknown", "bad");
}

async function addMember(context, vhost, queue) {
  const nodes = await context.api.get("/nodes?columns=name");
  const done = await ask({
    title: "Add a member",
    text: "It gets the whole queue from its leader, and counts when it has it.",
    fields: [
      { name: "node", label: "On node", type: "select", options: nodes.map((each) => each.name) },
      { name: "membership", label: "As", type: "select", options: [{ value: "promotable", label: "voter, once it has caught up" }, { value: "voter", label: "voter at once" }, { value: "non_voter", label: "non-voter" }] },
    ],
    label: "Add",
    run: (values) => context.api.post(path("queues", "quorum", vhost, queue, "replicas", "add"), values),
  });
  if (!done) return;
  context.tell("A member was added.");
  context.again();
}

async function removeMember(context, vhost, queue, node) {
  const done = await ask({
    title: "Remove this member?",
    text: ["The member on ", name(node), " goes with its data. The queue bears fewer failures without it."],
    label: "Remove",
    danger: true,
    run: () => context.api.delete(path("queues", "quorum", vhost, queue, "replicas", "delete"), { body: { node } }),
  });
  if (!done) return;
  context.tell("The member was removed.");
  context.again();
}
