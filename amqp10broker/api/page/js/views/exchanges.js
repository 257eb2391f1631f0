/** Exchanges, and one of them; messages that are published to it, and bindings, also as queues show them. */

import { exchangeInPath, path, withQuery } from "../api.js";
import { ask, vhostField } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count } from "../format.js";
import { badge, briefly, button, declaredBadges, facts, follow, heading, marks, muted, pairs, panel, rateOf, refresh } from "../parts.js";
import { href } from "../router.js";
import { acts, link, listView, ofVhost, table } from "../table.js";

/** @type {import("./index.js").View} */
export const view = listView("Exchanges", "Exchange", 2, listOf, drawOne);

function listOf(context) {
  return {
    id: "exchanges",
    path: ofVhost("exchanges", context.vhost),
    fields: ["name", "vhost"],
    rowKey: (row) => JSON.stringify([row.vhost, row.name]),
    rowHref: (row) => whereOf(row.vhost, row.name),
    empty: "No exchange is declared.",
    columns: COLUMNS,
    tools: button("Declare an exchange", () => declare(context), { kind: "primary small" }),
  };
}

const COLUMNS = [
  { key: "name", title: "Exchange", cell: (row) => link(whereOf(row.vhost, row.name), row.name, "(default)") },
  { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
  { key: "type", width: 120, title: "Type", cell: (row) => name(row.type) },
  { key: "features", width: 100, title: "Features", fields: ["durable", "auto_delete", "internal"], sort: false, cell: featuresOf },
  { key: "policy", title: "Policy", cell: (row) => (row.policy ? name(row.policy) : null) },
  { key: "message_stats.publish_in_details.rate", title: "In", number: true, help: "messages published to it a second", cell: (row) => rateOf(row, "publish_in") },
  { key: "message_stats.publish_out_details.rate", title: "Out", number: true, help: "of these, messages a second that a queue takes", cell: (row) => rateOf(row, "publish_out") },
  { key: "arguments", title: "Arguments", sort: false, spare: true, cell: (row) => briefly(row.arguments) },
];

function whereOf(vhost, exchange) {
  return href("exchanges", vhost, exchangeInPath(exchange));
}

function featuresOf(row) {
  return marks([
    [row.durable, "D", "durable: it outlives the broker"],
    [row.auto_delete, "AD", "auto-delete: it goes with its last binding"],
    [row.internal, "I", "internal: clients cannot publish to it"],
  ]);
}

function drawOne(host, context, vhost, exchange) {
  const where = path("exchanges", vhost, exchange);
  const real = exchange === "amq.default" ? "" : exchange;
  const head = h("div");
  const about = h("div");
  const bind = button("Bind", () => addBinding(context, { vhost, source: real }), { kind: "small", refused: real === "" && DEFAULT_BINDINGS });
  const from = bindingTable(context, where, "from-exchange", "source", "Nothing is bound to this exchange: messages that are published to it are dropped or returned.");
  const to = () => panel("Bindings to this exchange", bindingTable(context, where, "to-exchange", "destination", "This exchange is not bound to another one."));
  put(host, head, about, panel(["What it routes to", bind], from), real ? to() : null);
  follow(context, where, host, "This exchange", (value) => {
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
      declaredBadges(value),
    ],
    actions: [
      button("Publish", () => publishTo(context, value), { kind: "primary", refused: value.internal && "clients cannot publish to an internal exchange" }),
      button("Delete", () => remove(context, value), { kind: "danger", refused: builtIn && "it is always there" }),
    ],
  });
}

function publishTo(context, value) {
  if (value.name !== "") {
    publish(context, value.vhost, value.name, "");
    return;
  }
  ask({
    title: "Publish to a queue",
    text: "The default exchange routes by the queue's name.",
    fields: [{ name: "queue", label: "Queue", required: true }],
    label: "Go on",
    run: () => {},
    done: ({ queue }) => context.go(href("queues", value.vhost, queue)),
  });
}

async function declare(context) {
  const types = (await context.api.get("/overview?disable_stats=true&columns=exchange_types")).exchange_types.map((each) => each.name);
  ask({
    title: "Declare an exchange",
    label: "Declare",
    fields: [
      vhostField(context),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", value: "direct", options: types },
      { name: "durable", label: "Durable: it survives a restart of the broker", type: "flag", value: true },
      { name: "auto_delete", label: "Auto-delete: it is deleted with its last binding", type: "flag" },
      { name: "internal", label: "Internal: clients cannot publish to it", type: "flag" },
      { name: "arguments", label: "Arguments", type: "table", keys: { "alternate-exchange": "text", "hash-header": "text", "hash-property": "text" } },
    ],
    run: ({ vhost, name: exchange, ...given }) => context.api.put(path("exchanges", vhost, exchange), given),
    done: ({ vhost, name: exchange }) => context.done(`Exchange ${exchange} was declared.`, href("exchanges", vhost, exchange)),
  });
}

function remove(context, value) {
  ask({
    title: "Delete the exchange?",
    text: "Its bindings are deleted with it. Clients that publish to it get an error.",
    fields: [{ name: "unused", label: "Only if nothing is bound to it", type: "flag" }],
    label: "Delete",
    danger: true,
    typed: value.name,
    run: ({ unused }) => context.api.delete(withQuery(path("exchanges", value.vhost, value.name), { "if-unused": unused })),
    done: () => context.done(`Exchange ${value.name} was deleted.`, href("exchanges")),
  });
}

// --- messages ---------------------------------------------------------------------------------------

/**
 * @param {import("../main.js").Context} context
 * @param {string} vhost
 * @param {string} exchange empty: the default one
 * @param {string} routingKey to begin with
 */
export function publish(context, vhost, exchange, routingKey) {
  ask({
    title: exchange === "" ? "Publish to the queue" : "Publish",
    text: exchange === "" ? ["Through the default exchange, with the queue's name as routing key."] : ["To exchange ", name(exchange), "."],
    label: "Publish",
    fields: [
      { name: "routing_key", label: "Routing key", value: routingKey, fixed: exchange === "" },
      { name: "payload", label: "Payload", type: "long" },
      {
        name: "payload_encoding",
        label: "The payload is",
        type: "select",
        value: "string",
        options: [
          { value: "string", label: "text, sent as UTF-8" },
          { value: "base64", label: "base64 of bytes" },
        ],
      },
      { name: "durable", label: "Persistent", type: "flag", value: true },
      { name: "properties", label: "Properties", type: "table", keys: PROPERTIES },
      { name: "headers", label: "Headers", type: "table" },
    ],
    run: ({ durable, properties, headers, ...message }) => {
      const all = { delivery_mode: durable ? 2 : 1, ...properties, ...(Object.keys(headers).length ? { headers } : {}) };
      return context.api.post(path("exchanges", vhost, exchangeInPath(exchange), "publish"), { ...message, properties: all });
    },
    done: (_, { routed }) => context.done(routed ? "The message was published and routed to a queue." : "The message was published, but routed to no queue: nothing is bound for this routing key."),
  });
}

const PROPERTIES = {
  content_type: "text",
  content_encoding: "text",
  priority: "number",
  correlation_id: "text",
  reply_to: "text",
  expiration: "text",
  message_id: "text",
  timestamp: "number",
  type: "text",
  user_id: "text",
  app_id: "text",
};

// --- bindings ---------------------------------------------------------------------------------------

const DEFAULT_BINDINGS = "the default exchange has every queue by its name";

/**
 * A table of bindings.
 *
 * @param {import("../main.js").Context} context
 * @param {string} where the path of the queue or exchange
 * @param {string} id
 * @param {"source" | "destination" | ""} known the end that all of them share, which is not shown; empty for a queue
 * @param {string} empty
 */
export function bindingTable(context, where, id, known, empty) {
  const columns = [
    known === "source"
      ? { key: "destination", title: "To", cell: (row) => endLink(row.vhost, row.destination_type, row.destination) }
      : { key: "source", title: "From exchange", cell: (row) => endLink(row.vhost, "exchange", row.source) },
    { key: "routing_key", title: "Routing key", cell: (row) => name(row.routing_key) },
    { key: "arguments", title: "Arguments", sort: false, cell: (row) => briefly(row.arguments) },
    acts((row) => button("Unbind", () => unbind(context, row), { kind: "small", refused: row.source === "" && DEFAULT_BINDINGS })),
  ];
  return table(context, {
    id: `bindings-${id}`,
    label: { source: "Bindings from it", destination: "Bindings to it", "": "Bindings" }[known],
    plain: true,
    path: `${where}/bindings${known && `/${known}`}`,
    rowKey: (row) => JSON.stringify([row.vhost, row.source, row.destination_type, row.destination, row.properties_key]),
    empty,
    columns,
  }).element;
}

function endLink(vhost, kind, end) {
  if (kind === "queue") return link(href("queues", vhost, end), end);
  return h("span", null, link(whereOf(vhost, end), end, "(default)"), end === "" ? null : muted(" exchange"));
}

function pathOf(vhost, source, kind, destination) {
  return path("bindings", vhost, "e", exchangeInPath(source), kind === "queue" ? "q" : "e", destination);
}

/**
 * Ask for a binding and make it.
 *
 * @param {import("../main.js").Context} context
 * @param {{vhost: string, source?: string, destination?: string, kind?: "queue" | "exchange"}} known what is known of it
 */
export function addBinding(context, { vhost, source, destination, kind }) {
  ask({
    title: "Bind",
    label: "Bind",
    fields: [
      source === undefined ? { name: "source", label: "From exchange", required: true } : { name: "source", label: "From exchange", value: source, fixed: true },
      ...(kind === undefined ? [{ name: "kind", label: "To", type: "select", options: [{ value: "queue", label: "a queue" }, { value: "exchange", label: "an exchange" }] }] : []),
      { name: "destination", label: kind === "queue" ? "To queue" : "Its name", value: destination ?? "", fixed: destination !== undefined, required: true },
      { name: "routing_key", label: "Routing key", help: "A topic exchange takes * for one word and # for any number of them." },
      { name: "arguments", label: "Arguments", type: "table", keys: { "x-match": "text" } },
    ],
    run: (given) =>
      context.api.post(pathOf(vhost, given.source, kind ?? given.kind, given.destination), {
        routing_key: given.routing_key,
        arguments: given.arguments,
      }),
    done: () => context.done("The binding was added."),
  });
}

function unbind(context, row) {
  ask({
    title: "Unbind?",
    text: ["Messages from ", name(row.source), " with routing key ", name(row.routing_key), " are no longer routed to ", name(row.destination), "."],
    label: "Unbind",
    danger: true,
    run: () => context.api.delete(`${pathOf(row.vhost, row.source, row.destination_type, row.destination)}${path(row.properties_key)}`),
    done: () => context.done("The binding was removed."),
  });
}
