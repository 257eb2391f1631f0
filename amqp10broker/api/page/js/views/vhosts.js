/** Virtual hosts: what they are, who may enter them, their limits. */

import { path } from "../api.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { badge, button, facts, follow, heading, muted, panel, refresh } from "../parts.js";
import { href } from "../router.js";
import { link, listView, table } from "../table.js";
import { limitsPanel, listed } from "./users.js";

const LIMITS = { "max-connections": "Connections", "max-queues": "Queues" };

/** @type {import("./index.js").View} */
export const view = listView("Virtual hosts", "Virtual host", 1, listOf, drawOne);

function listOf(context) {
  return {
    id: "vhosts",
    path: "/vhosts",
    fields: ["name"],
    rowKey: (row) => row.name,
    rowHref: (row) => (context.can("administrator") ? href("vhosts", row.name) : null),
    empty: "No virtual host is here for you.",
    columns: [
      { key: "name", title: "Virtual host", cell: (row) => (context.can("administrator") ? link(href("vhosts", row.name), row.name) : name(row.name)) },
      { key: "description", title: "Description", cell: (row) => (row.description ? name(row.description) : null) },
      { key: "tags", title: "Tags", sort: false, cell: (row) => (row.tags.length ? name(row.tags.join(", ")) : null) },
      { key: "default_queue_type", title: "Default queue type", cell: (row) => row.default_queue_type },
      { key: "protected_from_deletion", title: "Protected", cell: (row) => (row.protected_from_deletion ? badge("protected", "accent") : null) },
    ],
    tools: button("Add a virtual host", () => edit(context, null), { kind: "primary small", refused: context.refused("administrator") }),
  };
}

function drawOne(host, context, vhost) {
  const head = h("div");
  const about = h("div");
  const limits = h("div");
  const where = path("vhosts", vhost);
  const users = table(context, {
    id: "permissions-of-vhost",
    label: "Users with permissions",
    plain: true,
    path: `${where}/permissions`,
    rowKey: (row) => row.user,
    rowHref: (row) => href("users", row.user),
    empty: "No user may enter it.",
    columns: [
      { key: "user", title: "User", cell: (row) => link(href("users", row.user), row.user) },
      ...["configure", "write", "read"].map((key) => ({ key, title: key, cell: (row) => name(row[key], "nothing") })),
    ],
  });
  put(host, head, about, panel("Who may enter", users.element), limits);
  follow(context, where, host, "This virtual host", (value) => {
    refresh(head, value, () =>
      heading(name(value.name), {
        above: h("a", { href: href("vhosts") }, "Virtual hosts"),
        badges: [value.protected_from_deletion ? badge("protected from deletion", "accent") : null],
        actions: [
          button("Change", () => edit(context, value)),
          button(value.protected_from_deletion ? "Let it be deleted" : "Protect from deletion", () => protect(context, value)),
          button("Delete", () => remove(context, value), { kind: "danger", refused: value.protected_from_deletion && "it is protected from deletion" }),
        ],
      }),
    );
    refresh(about, value, () =>
      panel(
        null,
        facts([
          ["Description", value.description ? name(value.description) : muted("none")],
          ["Tags", value.tags.length ? name(value.tags.join(", ")) : muted("none")],
          ["Default queue type", value.default_queue_type],
        ]),
      ),
    );
  });
  context.watch(path("vhost-limits", vhost), (rows) => {
    if (!rows) return;
    const values = rows[0]?.value ?? {};
    refresh(limits, values, () => limitsPanel(LIMITS, values, (key) => path("vhost-limits", vhost, key), context));
  });
}

function edit(context, vhost) {
  ask({
    title: vhost ? "Change the virtual host" : "Add a virtual host",
    label: vhost ? "Save" : "Add",
    fields: [
      { name: "name", label: "Name", value: vhost?.name, fixed: Boolean(vhost), required: true },
      { name: "description", label: "Description", value: vhost?.description },
      { name: "tags", label: "Tags", value: vhost?.tags.join(", "), help: "With commas between." },
      { name: "default_queue_type", label: "Default queue type", type: "select", value: vhost?.default_queue_type ?? context.broker.default_queue_type, options: ["classic", "quorum", "stream"] },
    ],
    run: ({ name: own, tags, ...values }) => context.api.put(path("vhosts", own), { ...values, tags: listed(tags) }),
    done: ({ name: own }) => {
      if (vhost) context.done("The virtual host was changed.");
      else context.done(`Virtual host ${own} was added, and you may enter it.`, href("vhosts", own));
    },
  });
}

async function protect(context, vhost) {
  const where = `${path("vhosts", vhost.name)}/deletion/protection`;
  try {
    await (vhost.protected_from_deletion ? context.api.delete(where) : context.api.post(where));
  } catch (error) {
    context.tell(error.reason);
    return;
  }
  context.done(vhost.protected_from_deletion ? "It can be deleted now." : "It cannot be deleted now.");
}

function remove(context, vhost) {
  ask({
    title: "Delete the virtual host?",
    text: h("b", null, "All its queues with their messages, exchanges, bindings, policies and permissions are lost, and its connections are closed."),
    label: "Delete",
    danger: true,
    typed: vhost.name,
    run: () => context.api.delete(path("vhosts", vhost.name)),
    done: () => context.done(`Virtual host ${vhost.name} was deleted.`, href("vhosts")),
  });
}
