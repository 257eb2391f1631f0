/** Exchanges, and one of them with its bindings. */

import { exchangeInPath, path, withQuery } from "../api.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count, rate } from "../format.js";
import { badge, briefly, button, facts, heading, missing, pairs, panel, refresh } from "../parts.js";
import { href } from "../router.js";
import { link, table } from "../table.js";
import { addBinding, bindingColumns, bindingKey } from "./bindings.js";
import { publish, vhostField } from "./queueactions.js";

/** @type {import("./index.js").View} */
export const view = {
  title: ([, exchange]) => (exchange === undefined ? "Exchanges" : `Exchange ${exchange}`),
  draw(host, [vhost, exchange], context) {
    if (exchange !== undefined) {
      drawOne(host, vhost, exchange, context);
      return;
    }
    const rows = table(context, {
      id: "exchanges",
      label: "Exchanges",
      path: context.vhost ? path("exchanges", context.vhost) : "/exchanges",
      paged: true,
      fields: ["name", "vhost"],
      rowKey: (row) => JSON.stringify([row.vhost, row.name]),
      rowHref: (row) => whereOf(row),
      empty: "No exchange is declared.",
      columns: COLUMNS,
      tools: button("Declare an exchange", () => declare(context), { kind: "primary small" }),
    });
    put(host, heading("Exchanges"), rows.element);
  },
};

const COLUMNS = [
  { key: "name", title: "Exchange", cell: (row) => link(whereOf(row), row.name, "(default)") },
  { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
  { key: "type", width: 120, title: "Type", cell: (row) => name(row.type) },
  { key: "features", width: 100, title: "Features", fields: ["durable", "auto_delete", "internal"], sort: false, cell: featuresOf },
  { key: "policy", title: "Policy", cell: (row) => (row.policy ? name(row.policy) : null) },
  { key: "message_stats.publish_in_details.rate", title: "In", number: true, help: "messages published to it a second", cell: (row) => rateOf(row, "publish_in") },
  { key: "message_stats.publish_out_details.rate", title: "Out", number: true, help: "of these, messages a second that a queue takes", cell: (row) => rateOf(row, "publish_out") },
  { key: "arguments", title: "Arguments", sort: false, spare: true, cell: (row) => briefly(row.arguments) },
];

function whereOf(row) {
  return href("exchanges", row.vhost, exchangeInPath(row.name));
}

function featuresOf(row) {
  const told = [
    [row.durable, "D", "durable: it outlives the broker"],
    [row.auto_delete, "AD", "auto-delete: it goes with its last binding"],
    [row.internal, "I", "internal: clients cannot publish to it"],
  ];
  return h("span", { class: "marks" }, told.filter(([is]) => is).map(([, sign, title]) => h("abbr", { title }, sign)));
}

function rateOf(row, key) {
  return row.message_stats ? rate(row.message_stats[`${key}_details`]?.rate ?? 0) : h("span", { class: "muted" }, "\u2013");
}

function drawOne(host, vhost, exchange, context) {
  const where = path("exchanges", vhost, exchange);
  const real = exchange === "amq.default" ? "" : exchange;
  const head = h("div");
  const about = h("div");
  const bind = button("Bind", () => addBinding(context, { vhost, source: real }), { kind: "small", refused: real === "" && "the default exchange has every queue by its name" });
  const common = { plain: true, rowKey: bindingKey };
  const from = table(context, {
    ...common,
    id: "bindings-from-exchange",
    label: "Bindings from it",
    path: `${where}/bindings/source`,
    empty: "Nothing is bound to it: what is published to it is dropped or returned.",
    columns: bindingColumns(context, "source"),
  });
  const to =
    real === ""
      ? null
      : table(context, {
          ...common,
          id: "bindings-to-exchange",
          label: "Bindings to it",
          path: `${where}/bindings/destination`,
          empty: "It is bound to no other exchange.",
          columns: bindingColumns(context, "destination"),
        });
  put(host, head, about, panel(["What it routes to", bind], from.element), to ? panel("Where it gets from", to.element) : null);
  context.watch(where, (value, error) => {
    if (error) {
      put(host, missing(error, "This exchange"));
      return;
    }
    refresh(head, [value.policy], () => headOf(value, context));
    refresh(about, value, () =>
      h(
        "div",
        { class: "columns" },
        panel(
          "Messages",
          facts([
            ["Published to it", count(value.message_stats?.publish_in ?? 0)],
            ["Of these, taken by a queue", count(value.message_stats?.publish_out ?? 0)],
            ["In", rateOf(value, "publish_in")],
            ["Out", rateOf(value, "publish_out")],
          ]),
        ),
        panel("Declared with", pairs(value.arguments)),
      ),
    );
  });
}

function headOf(value, context) {
  const builtIn = value.name === "" || value.name.startsWith("amq.");
  return heading(name(value.name, "(default)"), {
    above: [h("a", { href: href("exchanges") }, "Exchanges"), " / in virtual host ", name(value.vhost)],
    badges: [
      badge(name(value.type), "accent"),
      value.durable ? badge("durable") : null,
      value.auto_delete ? badge("auto-delete") : null,
      value.internal ? badge("internal") : null,
      value.policy ? h("a", { class: "badge", href: href("policies") }, "policy ", name(value.policy)) : null,
    ],
    actions: [
      button("Publish", () => publishTo(context, value), { kind: "primary", refused: value.internal && "clients cannot publish to an internal exchange" }),
      button("Delete", () => remove(context, value), { kind: "danger", refused: builtIn && "it is always there" }),
    ],
  });
}

function publishTo(context, value) {
  if (value.name !== "") return publish(context, value.vhost, value.name, "");
  return ask({
    title: "Publish to a queue",
    text: "The default exchange routes by the queue's name.",
    fields: [{ name: "queue", label: "Queue", required: true }],
    label: "Go on",
    run: async ({ queue }) => context.go(href("queues", value.vhost, queue)),
  });
}

async function declare(context) {
  let made = null;
  const types = (await context.api.get("/overview?disable_stats=true&columns=exchange_types")).exchange_types.map((each) => each.name);
  const done = await ask({
    title: "Declare an exchange",
    label: "Declare",
    fields: [
      vhostField(context),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", value: "direct", options: types },
      { name: "durable", label: "Durable: it outlives the broker", type: "flag", value: true },
      { name: "auto_delete", label: "Auto-delete: it goes with its last binding", type: "flag" },
      { name: "internal", label: "Internal: only other exchanges route to it", type: "flag" },
      { name: "arguments", label: "Arguments", type: "table", keys: { "alternate-exchange": "text", "hash-header": "text", "hash-property": "text" } },
    ],
    run: async ({ vhost, name: exchange, ...given }) => {
      await context.api.put(path("exchanges", vhost, exchange), given);
      made = [vhost, exchange];
    },
  });
  if (!done) return;
  context.tell(`Exchange ${made[1]} was declared.`);
  context.go(href("exchanges", ...made));
}

async function remove(context, value) {
  const done = await ask({
    title: "Delete the exchange?",
    text: "With its bindings. Clients that publish to it are refused from then on.",
    fields: [{ name: "unused", label: "Only if nothing is bound to it", type: "flag" }],
    label: "Delete",
    danger: true,
    typed: value.name,
    run: ({ unused }) => context.api.delete(withQuery(path("exchanges", value.vhost, value.name), { "if-unused": unused })),
  });
  if (!done) return;
  context.tell(`Exchange ${value.name} was deleted.`);
  context.go(href("exchanges"));
}
