/** Users: tags, permissions, topic permissions, limits. */

import { path } from "../api.js";
import { ask, vhostField } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count } from "../format.js";
import { badge, button, follow, heading, muted, panel, refresh, smallTable } from "../parts.js";
import { href } from "../router.js";
import { acts, link, listView, table } from "../table.js";

const TAGS = ["management", "policymaker", "monitoring", "administrator"];
const TAG_HELP = "management: this page, for their own; policymaker: policies too; monitoring: sees everything; administrator: may do everything. Others are kept as they are, with commas between.";
const LIMITS = { "max-connections": "Connections", "max-channels": "Channels" };

/** @type {import("./index.js").View} */
export const view = listView("Users", "User", 1, listOf, drawOne);

function listOf(context) {
  return {
    id: "users",
    path: "/users",
    fields: ["name"],
    rowKey: (row) => row.name,
    rowHref: (row) => href("users", row.name),
    empty: "There is no user.",
    columns: [
      { key: "name", title: "User", cell: (row) => link(href("users", row.name), row.name) },
      { key: "tags", title: "Tags", cell: (row) => tagsOf(row.tags) },
      { key: "password_hash", title: "Password", sort: false, cell: (row) => (row.password_hash ? "yes" : muted("none, or not shown")) },
      { key: "limits", title: "Limits", sort: false, cell: (row) => Object.entries(row.limits ?? {}).map(([key, value]) => `${key} ${value}`).join(", ") || null },
    ],
    tools: button("Add a user", () => edit(context, null), { kind: "primary small" }),
  };
}

function tagsOf(tags) {
  if (!tags.length) return muted("none: AMQP alone");
  return h("span", { class: "line" }, tags.map((each) => badge(name(each), each === "administrator" ? "accent" : "")));
}

function drawOne(host, context, user) {
  const head = h("div");
  const where = path("users", user);
  const permissions = table(context, {
    id: "permissions-of-user",
    label: "Permissions",
    plain: true,
    path: `${where}/permissions`,
    rowKey: (row) => row.vhost,
    empty: "The user has no permission in any virtual host: clients cannot connect as this user.",
    columns: [
      { key: "vhost", title: "Virtual host", cell: (row) => link(href("vhosts", row.vhost), row.vhost) },
      ...["configure", "write", "read"].map((key) => ({ key, title: key, cell: (row) => patternOf(row[key]) })),
      acts((row) => [
        button("Change", () => permit(context, user, row), { kind: "small" }),
        " ",
        button("Clear", () => clear(context, path("permissions", row.vhost, user), "The user loses access to the virtual host, and its connections to it are closed."), { kind: "small danger" }),
      ]),
    ],
  });
  const topics = table(context, {
    id: "topic-permissions-of-user",
    label: "Topic permissions",
    plain: true,
    path: `${where}/topic-permissions`,
    rowKey: (row) => JSON.stringify([row.vhost, row.exchange]),
    empty: "No routing key is restricted.",
    columns: [
      { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
      { key: "exchange", title: "Exchange", cell: (row) => name(row.exchange, "(default)") },
      { key: "write", title: "write", cell: (row) => patternOf(row.write) },
      { key: "read", title: "read", cell: (row) => patternOf(row.read) },
      acts((row) => button("Clear", () => lift(context, user, row), { kind: "small danger" })),
    ],
  });
  const limits = h("div");
  put(
    host,
    head,
    panel(["Permissions", button("Set permissions", () => permit(context, user, null), { kind: "small" })], h("p", { class: "hint" }, "Regular expressions of names of queues and exchanges. An empty one allows nothing."), permissions.element),
    panel(["Topic permissions", button("Restrict routing keys", () => restrict(context, user), { kind: "small" })], h("p", { class: "hint" }, "Regular expressions of routing keys at topic exchanges, where they are to be fewer."), topics.element),
    limits,
  );
  follow(context, where, host, "This user", (value) => {
    refresh(head, value, () =>
      heading(name(value.name), {
        above: h("a", { href: href("users") }, "Users"),
        badges: tagsOf(value.tags),
        actions: [
          button("Tags and password", () => edit(context, value)),
          button("Delete", () => remove(context, value), { kind: "danger", refused: value.name === context.me.name && "this is you" }),
        ],
      }),
    );
    refresh(limits, value.limits, () => limitsPanel(LIMITS, value.limits ?? {}, (key) => path("user-limits", user, key), context));
  });
}

function patternOf(pattern) {
  return pattern === "" ? muted("nothing") : h("bdi", { class: "code" }, name(pattern));
}

/** Limits with their buttons: `known` has labels by their names, `where` gives the path of one. */
export function limitsPanel(known, values, where, context) {
  const change = (key) =>
    ask({
      title: `Limit: ${known[key]}`,
      fields: [{ name: "value", label: "At most", type: "number", value: values[key] ?? "", help: "Left empty: no limit." }],
      label: "Set",
      run: ({ value }) => (value === null ? context.api.delete(where(key)) : context.api.put(where(key), { value })),
      done: () => context.done("The limit was set."),
    });
  const rows = Object.entries(known).map(([key, label]) => [
    label,
    values[key] === undefined ? muted("no limit") : count(values[key]),
    button("Change", () => change(key), { kind: "small", refused: context.refused("administrator") }),
  ]);
  return panel("Limits", smallTable(null, rows, 2));
}

/** What was written with commas between. */
export function listed(text) {
  return text.split(",").map((each) => each.trim()).filter(Boolean);
}

function edit(context, user) {
  ask({
    title: user ? "Tags and password" : "Add a user",
    label: user ? "Save" : "Add",
    fields: [
      { name: "name", label: "Name", value: user?.name, fixed: Boolean(user), required: true },
      { name: "password", label: "Password", type: "password", help: user ? "Left empty, it stays as it is." : "Left empty, the user cannot log in with a password." },
      { name: "tags", label: "Tags", value: user?.tags.join(", ") ?? "", options: TAGS, help: TAG_HELP },
    ],
    run: ({ name: who, password, tags }) => {
      const entry = { tags: listed(tags) };
      if (password) entry.password = password;
      else if (user?.password_hash) Object.assign(entry, { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm });
      else entry.password_hash = "";
      return context.api.put(path("users", who), entry);
    },
    done: ({ name: who }) => {
      if (user) context.done("The user was changed.");
      else context.done(`User ${who} was added. Give it permissions, so that it can enter a virtual host.`, href("users", who));
    },
  });
}

function remove(context, user) {
  ask({
    title: "Delete the user?",
    text: "With its permissions. Its connections are closed.",
    label: "Delete",
    danger: true,
    typed: user.name,
    run: () => context.api.delete(path("users", user.name)),
    done: () => context.done(`User ${user.name} was deleted.`, href("users")),
  });
}

function permit(context, user, row) {
  ask({
    title: `Permissions of ${user}`,
    text: "Regular expressions; .* allows all names, an empty one none.",
    label: "Set",
    fields: [
      vhostField(context, row?.vhost),
      { name: "configure", label: "configure: declare and delete", value: row?.configure ?? ".*" },
      { name: "write", label: "write: publish, bind", value: row?.write ?? ".*" },
      { name: "read", label: "read: consume, get, purge", value: row?.read ?? ".*" },
    ],
    run: ({ vhost, ...patterns }) => context.api.put(path("permissions", vhost, user), patterns),
    done: () => context.done("Permissions were set."),
  });
}

function restrict(context, user) {
  ask({
    title: `Restrict routing keys of ${user}`,
    label: "Restrict",
    fields: [
      vhostField(context),
      { name: "exchange", label: "Topic exchange", value: "amq.topic", required: true },
      { name: "write", label: "write: routing keys of what it publishes", value: ".*" },
      { name: "read", label: "read: routing keys that it binds with", value: ".*" },
    ],
    run: ({ vhost, ...values }) => context.api.put(path("topic-permissions", vhost, user), values),
    done: () => context.done("Routing keys are restricted."),
  });
}

function lift(context, user, { vhost, exchange }) {
  // Of the default exchange, whose name is empty, there is no path.
  const all = path("topic-permissions", vhost, user);
  if (exchange === "") clear(context, all, "All restrictions of the user in this virtual host are lifted.");
  else clear(context, `${all}${path(exchange)}`, "The restriction is lifted.");
}

function clear(context, where, text) {
  const run = () => context.api.delete(where);
  ask({ title: "Clear?", text, label: "Clear", danger: true, run, done: () => context.done("It was cleared.") });
}
