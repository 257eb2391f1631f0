/** Bindings: as tables of queues and exchanges show them, added and removed. */

import { exchangeInPath, path } from "../api.js";
import { ask } from "../dialogs.js";
import { h, name } from "../dom.js";
import { briefly, button } from "../parts.js";
import { href } from "../router.js";

/** What tells two bindings apart. @param {any} row @returns {string} */
export function bindingKey(row) {
  return JSON.stringify([row.vhost, row.source, row.destination_type, row.destination, row.properties_key]);
}

/**
 * Columns of a table of bindings.
 *
 * @param {import("../main.js").Context} context
 * @param {"source" | "destination"} known the end that all of them share, which is not shown
 * @returns {import("../table.js").Column[]}
 */
export function bindingColumns(context, known) {
  return [
    known === "source"
      ? { key: "destination", title: "To", cell: (row) => endLink(row.vhost, row.destination_type, row.destination) }
      : { key: "source", title: "From exchange", cell: (row) => endLink(row.vhost, "exchange", row.source) },
    { key: "routing_key", title: "Routing key", cell: (row) => name(row.routing_key) },
    { key: "arguments", title: "Arguments", sort: false, cell: (row) => briefly(row.arguments) },
    {
      key: "act",
      title: "",
      sort: false,
      number: true,
      cell: (row) => button("Unbind", () => unbind(context, row), { kind: "small", refused: row.source === "" && "the default exchange has every queue by its name" }),
    },
  ];
}

function endLink(vhost, kind, end) {
  if (kind === "queue") return h("a", { href: href("queues", vhost, end), tabindex: "-1" }, name(end));
  return h("span", null, h("a", { href: href("exchanges", vhost, exchangeInPath(end)), tabindex: "-1" }, name(end, "(default)")), end === "" ? null : h("span", { class: "muted" }, " exchange"));
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
export async function addBinding(context, { vhost, source, destination, kind }) {
  const done = await ask({
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
  });
  if (!done) return;
  context.tell("It is bound.");
  context.again();
}

async function unbind(context, row) {
  const done = await ask({
    title: "Unbind?",
    text: ["Messages of ", name(row.source), " with routing key ", name(row.routing_key), " go to ", name(row.destination), " no more."],
    label: "Unbind",
    danger: true,
    run: () => context.api.delete(`${pathOf(row.vhost, row.source, row.destination_type, row.destination)}${path(row.properties_key)}`),
  });
  if (!done) return;
  context.tell("The binding was removed.");
  context.again();
}
