/** The broker as a whole. */

import { History, chart, sparkline } from "../chart.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { bytes, count, duration, rate } from "../format.js";
import { LENGTHS, badge, button, figure, heading, meter, panel, refresh, stateBadge } from "../parts.js";
import { href } from "../router.js";

const SPAN = { age: 600, incr: 10 };
const ALWAYS = { always: true };
const RATES = [
  { key: "publish", label: "publish" },
  { key: "deliver_get", label: "deliver and get" },
  { key: "ack", label: "acknowledge" },
  { key: "confirm", label: "confirm" },
  { key: "redeliver", label: "redeliver" },
];

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
    const lengths = new History();
    const rates = new History();
    const lengthChart = chart(lengths, { label: "Messages in queues", curves: LENGTHS });
    const rateChart = chart(rates, { label: "Messages per second", curves: RATES, format: rate });
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
      h("div", { class: "charts" }, lengthChart.element, rateChart.element),
      context.can("monitoring") ? panel("Nodes", nodes) : null,
      panel("Listeners", listeners),
    );

    let ended = false;
    const seed = async () => {
      const query = `lengths_age=${SPAN.age}&lengths_incr=${SPAN.incr}&msg_rates_age=${SPAN.age}&msg_rates_incr=${SPAN.incr}`;
      const kept = await context.api.get(`/overview?columns=queue_totals,message_stats&${query}`);
      if (ended) return;
      lengths.seed(kept.queue_totals, [{ key: "messages" }, ...LENGTHS], false);
      rates.seed(kept.message_stats, RATES, true);
      drawAll();
    };
    let known = null;
    const drawAll = () => {
      lengthChart.draw();
      rateChart.draw();
      if (known) setCards(cards, known, lengths, rates);
    };
    // Without what was before, the curves begin now.
    seed().catch(() => {});
    context.watch("/overview?columns=queue_totals,message_stats,object_totals,listeners", (value) => {
      if (!value) return;
      known = value;
      lengths.push(value.queue_totals);
      rates.push(Object.fromEntries(RATES.map(({ key }) => [key, value.message_stats?.[`${key}_details`]?.rate ?? 0])));
      drawAll();
      refresh(listeners, value.listeners, () => listenerTable(value.listeners));
    }, ALWAYS);
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
    return () => {
      ended = true;
    };
  },
};

async function rename(context) {
  const done = await ask({
    title: "Name the cluster",
    text: "The name stands above every page, and clients can ask for it.",
    fields: [{ name: "name", label: "Name", value: context.broker.cluster_name, required: true }],
    label: "Save",
    run: (values) => context.api.put("/cluster-name", values),
  });
  if (done) location.reload();
}

function setCards(cards, value, lengths, rates) {
  const last = rates.points[rates.points.length - 1].values;
  cards.messages.set(count(value.queue_totals.messages), sparkline(lengths, "messages", "messages over time"));
  cards.publish.set(rate(last.publish), sparkline(rates, "publish", "publish rate over time"));
  cards.deliver_get.set(rate(last.deliver_get), sparkline(rates, "deliver_get", "delivery rate over time"));
  for (const [key, each] of Object.entries(value.object_totals)) cards[key]?.set(count(each));
}

function listenerTable(listeners) {
  return h(
    "table",
    { class: "small-table" },
    h("thead", null, h("tr", null, ["Protocol", "Address", "Port", "Node"].map((each) => h("th", { scope: "col" }, each)))),
    h(
      "tbody",
      null,
      listeners.map((each) => h("tr", null, h("td", null, each.protocol, each.tls ? " (TLS)" : ""), h("td", null, name(each.ip_address)), h("td", null, each.port), h("td", null, name(each.node)))),
    ),
  );
}

function nodeTable(nodes) {
  return h(
    "table",
    { class: "small-table" },
    h("thead", null, h("tr", null, ["Node", "State", "Up for", "Memory", "Disk free", "Connections"].map((each) => h("th", { scope: "col" }, each)))),
    h(
      "tbody",
      null,
      nodes.map((each) =>
        h(
          "tr",
          null,
          h("td", null, h("a", { href: href("nodes", each.name) }, name(each.name))),
          h("td", null, stateBadge(each.running ? (each.being_drained ? "in maintenance" : "running") : "down")),
          h("td", null, each.uptime === undefined ? "\u2013" : duration(each.uptime / 1000)),
          h("td", null, each.mem_limit ? meter(each.mem_used, each.mem_limit, `${bytes(each.mem_used)} of ${bytes(each.mem_limit)}`, each.mem_alarm) : bytes(each.mem_used)),
          h("td", null, each.disk_free_alarm ? stateBadge("alarm") : null, " ", bytes(each.disk_free), each.disk_free_limit ? ` (alarm below ${bytes(each.disk_free_limit)})` : ""),
          h("td", null, each.sockets_used === undefined ? "\u2013" : `${count(each.sockets_used)} of ${count(each.sockets_total)}`),
        ),
      ),
    ),
  );
}

