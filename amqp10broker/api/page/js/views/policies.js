/** Policies, and operator policies, which bound them. */

import { path } from "../api.js";
import { ask, vhostField } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count } from "../format.js";
import { briefly, button, heading, panel } from "../parts.js";
import { acts, ofVhost, table } from "../table.js";
import { OPERATOR_KEYS, POLICY_KEYS } from "../tables.js";

const APPLY = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];

/** @type {import("./index.js").View} */
export const view = {
  title: "Policies",
  draw(host, parameters, context) {
    const one = (kind, hint) => {
      const add = button("Add", () => edit(context, kind, null), { kind: "small", refused: context.refused(kind.tag) });
      return panel([kind.label, add], h("p", { class: "hint" }, hint), list(context, kind));
    };
    put(
      host,
      heading("Policies"),
      one(
        { where: "policies", label: "Policies", tag: "policymaker", keys: POLICY_KEYS, empty: "No policy is set." },
        "Settings of all queues and exchanges whose names match. Of several policies that match, the one with the highest priority applies.",
      ),
      one(
        { where: "operator-policies", label: "Operator policies", tag: "administrator", keys: OPERATOR_KEYS, empty: "No operator policy is set." },
        "Bounds that policies and declarations cannot exceed: of two numbers the lower one applies.",
      ),
    );
  },
};

function list(context, kind) {
  const refused = context.refused(kind.tag);
  return table(context, {
    id: kind.where,
    label: kind.label,
    plain: true,
    path: ofVhost(kind.where, context.vhost),
    rowKey: (row) => JSON.stringify([row.vhost, row.name]),
    empty: kind.empty,
    columns: [
      { key: "name", title: "Name", cell: (row) => name(row.name) },
      { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
      { key: "pattern", title: "Pattern", cell: (row) => h("bdi", { class: "code" }, name(row.pattern)) },
      { key: "apply-to", title: "Applies to", cell: (row) => row["apply-to"].replace("_", " ") },
      { key: "definition", title: "Settings", sort: false, cell: (row) => briefly(row.definition) },
      { key: "priority", title: "Priority", number: true, cell: (row) => count(row.priority) },
      acts((row) => [button("Change", () => edit(context, kind, row), { kind: "small", refused }), " ", button("Delete", () => remove(context, kind, row), { kind: "small danger", refused })]),
    ],
  }).element;
}

function edit(context, kind, row) {
  ask({
    title: row ? "Change the policy" : "Add a policy",
    text: "A policy takes effect at once.",
    label: row ? "Save" : "Add",
    fields: [
      vhostField(context, row?.vhost),
      { name: "name", label: "Name", value: row?.name, fixed: Boolean(row), required: true },
      { name: "pattern", label: "Pattern of names (regular expression)", value: row?.pattern, required: true, help: "^orders\\. matches all names that begin with orders." },
      { name: "apply-to", label: "Applies to", type: "select", value: row?.["apply-to"] ?? "all", options: APPLY.map((each) => ({ value: each, label: each.replace("_", " ") })) },
      { name: "priority", label: "Priority", type: "number", value: row?.priority ?? 0 },
      { name: "definition", label: "Settings", type: "table", value: row?.definition, keys: kind.keys },
    ],
    run: ({ vhost, name: own, ...values }) => context.api.put(path(kind.where, vhost, own), { ...values, priority: values.priority ?? 0 }),
    done: () => context.done("The policy was set."),
  });
}

function remove(context, kind, row) {
  ask({
    title: "Delete the policy?",
    text: ["Its settings are replaced by those that were declared: ", name(row.name), "."],
    label: "Delete",
    danger: true,
    run: () => context.api.delete(path(kind.where, row.vhost, row.name)),
    done: () => context.done("The policy was deleted."),
  });
}
