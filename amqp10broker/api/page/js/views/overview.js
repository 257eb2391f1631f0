/** The broker as a whole. */

import { messageCharts, sparkline } from "../chart.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { NOTHING, bytes, count, duration, rate } from "../format.js";
import { badge, button, figure, heading, memoryOf, nodeState, panel, refresh, smallTable, stateBadge } from "../parts.js";
import { href } from "../router.js";

const CARDS = [
  ["messages", "Messages"],
  ["publish", "Published"],
  ["deliver_get", "Delivered"],
  ["waiting", "Waiting", "waiting"],
  ["connections", "Connections", "connections"],
  ["channels", "Channels", "channels"],
  ["consumers", "Consumers", "consumers"],
  ["queues", "Queues", "queues"],
];

/** @type {import("./index.js").View} */
export const view = {
  title: "Overview",
  draw(host, parameters, context) {
    const charts = messageCharts("Messages in queues", ["publish", "deliver_get", "ack", "confirm", "redeliver"]);
    const cards = Object.fromEntries(CARDS.map(([key, label, where]) => [key, figure(label, where && href(where))]));
    const listeners = h("div");
    const nodes = h("div");
    const { broker } = context;
    put(
      host,
      heading(name(broker.cluster_name), {
        badges: [`amqp10broker ${broker.product_version}`, " \u00b7 speaks the HTTP API of RabbitMQ ", broker.management_version],
        actions: button("Name the cluster", () => rename(context), { refused: context.refused("administrator") }),
      }),
      h("div", { class: "cards" }, Object.values(cards).map((each) => each.element)),
      charts.element,
      context.can("monitoring") ? panel("Nodes", nodes) : null,
      panel("Listeners", listeners),
    );

    let known = null;
    const drawCards = () => known && setCards(cards, known, charts);
    charts.seed(context, "/overview?columns=queue_totals,message_stats", (kept) => kept.queue_totals).then(drawCards);
    context.watch("/overview?columns=queue_totals,message_stats,object_totals,listeners", (value) => {
      if (!value) return;
      known = value;
      charts.push(value.queue_totals, value.message_stats);
      drawCards();
      refresh(listeners, value.listeners, () => listenerTable(value.listeners));
    }, { always: true });
    context.watch("/waiting?limit=1", (value) => {
      if (!value) return;
      const [worst] = value.waiting;
      const below = worst && [badge(worst.waits, "warn", worst.waits_why), h("br"), `for ${duration(worst.waits_for_s)}`];
      cards.waiting.set(count(value.summary.waiting), below ?? "nothing waits that should not");
    });
    if (context.can("monitoring")) {
      context.watch("/nodes?columns=name,running,being_drained,uptime,mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,sockets_used,sockets_total", (value) => {
        if (value) refresh(nodes, value, () => nodeTable(value));
      });
    }
  },
};

function rename(context) {
  ask({
    title: "Name the cluster",
    text: "Every page shows the name, and clients can request it.",
    fields: [{ name: "name", label: "Name", value: context.broker.cluster_name, required: true }],
    label: "Save",
    run: (values) => context.api.put("/cluster-name", values),
    done: () => location.reload(),
  });
}

function setCards(cards, value, { lengths, rates }) {
  const last = rates.points.at(-1).values;
  cards.messages.set(count(value.queue_totals.messages), sparkline(lengths, "messages", "messages over time"));
  cards.publish.set(rate(last.publish), sparkline(rates, "publish", "publish rate over time"));
  cards.deliver_get.set(rate(last.deliver_get), sparkline(rates, "deliver_get", "delivery rate over time"));
  for (const [key, each] of Object.entries(value.object_totals)) cards[key]?.set(count(each));
}

function listenerTable(listeners) {
  return smallTable(
    ["Protocol", "Address", "Port", "Node"],
    listeners.map((each) => [[each.protocol, each.tls ? " (TLS)" : ""], name(each.ip_address), each.port, name(each.node)]),
  );
}

function nodeTable(nodes) {
  return smallTable(
    ["Node", "State", "Up for", "Memory", "Disk free", "Connections"],
    nodes.map((each) => [
      h("a", { href: href("nodes", each.name) }, name(each.name)),
      nodeState(each),
      each.uptime === undefined ? NOTHING : duration(each.uptime / 1000),
      memoryOf(each),
      [each.disk_free_alarm ? stateBadge("alarm") : null, " ", bytes(each.disk_free), each.disk_free_limit ? ` (alarm below ${bytes(each.disk_free_limit)})` : ""],
      each.sockets_used === undefined ? NOTHING : `${count(each.sockets_used)} of ${count(each.sockets_total)}`,
    ]),
  );
}

