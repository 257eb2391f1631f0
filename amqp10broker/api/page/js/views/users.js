/** Users: tags, permissions, topic permissions, limits. */

import { path } from "../api.js";
import { ask } from "../dialogs.js";
import { h, name, put } from "../dom.js";
import { count } from "../format.js";
import { badge, button, heading, missing, panel, refresh } from "../parts.js";
import { href } from "../router.js";
import { link, table } from "../table.js";
import { vhostField } from "./queueactions.js";

const TAGS = ["management", "policymaker", "monitoring", "administrator"];
const TAG_HELP = "management: this page, for their own; policymaker: policies too; monitoring: sees everything; administrator: may do everything. Others are kept as they are, with commas between.";
const LIMITS = { "max-connections": "Connections", "max-channels": "Channels" };

/** @type {import("./index.js").View} */
export const view = {
  title: ([user]) => (user === undefined ? "Users" : `User ${user}`),
  draw(host, [user], context) {
    if (user !== undefined) {
      drawOne(host, user, context);
      return;
    }
    const rows = table(context, {
      id: "users",
      label: "Users",
      path: "/users",
      paged: true,
      fields: ["name"],
      rowKey: (row) => row.name,
      rowHref: (row) => href("users", row.name),
      empty: "No user is known.",
      columns: [
        { key: "name", title: "User", cell: (row) => link(href("users", row.name), row.name) },
        { key: "tags", title: "Tags", cell: (row) => tagsOf(row.tags) },
        { key: "password_hash", title: "Password", sort: false, cell: (row) => (row.password_hash ? "yes" : h("span", { class: "muted" }, "none: no log-in with one")) },
        { key: "limits", title: "Limits", sort: false, cell: (row) => Object.entries(row.limits ?? {}).map(([key, value]) => `${key} ${value}`).join(", ") || null },
      ],
      tools: button("Add a user", () => edit(context, null), { kind: "primary small" }),
    });
    put(host, heading("Users"), rows.element);
  },
};

function tagsOf(tags) {
  if (!tags.length) return h("span", { class: "muted" }, "none: AMQP alone");
  return h("span", { class: "line" }, tags.map((each) => badge(name(each), each === "administrator" ? "accent" : "")));
}

function drawOne(host, user, context) {
  const head = h("div");
  const where = path("users", user);
  const permissions = table(context, {
    id: "permissions-of-user",
    label: "Permissions",
    plain: true,
    path: `${where}/permissions`,
    rowKey: (row) => row.vhost,
    empty: "The user may enter no virtual host: no client can log in as it.",
    columns: [
      { key: "vhost", title: "Virtual host", cell: (row) => link(href("vhosts", row.vhost), row.vhost) },
      ...["configure", "write", "read"].map((key) => ({ key, title: key, cell: (row) => patternOf(row[key]) })),
      {
        key: "act",
        title: "",
        sort: false,
        number: true,
        cell: (row) => [
          button("Change", () => permit(context, user, row), { kind: "small" }),
          " ",
          button("Clear", () => clear(context, path("permissions", row.vhost, user), "The user may enter the virtual host no more, and its connections to it are closed."), { kind: "small danger" }),
        ],
      },
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
      {
        key: "act",
        title: "",
        sort: false,
        number: true,
        // Of the default exchange, whose name is empty, there is no path.
        cell: (row) => button("Clear", () => clear(context, row.exchange === "" ? path("topic-permissions", row.vhost, user) : path("topic-permissions", row.vhost, user, row.exchange), row.exchange === "" ? "All restrictions of the user in this virtual host are lifted." : "The restriction is lifted."), { kind: "small danger" }),
      },
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
  context.watch(where, (value, error) => {
    if (error) {
      put(host, missing(error, "This user"));
      return;
    }
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
  return pattern === "" ? h("span", { class: "muted" }, "nothing") : h("bdi", { class: "code" }, name(pattern));
}

/**
 * Limits with their buttons.
 *
 * @param {Object<string, string>} known labels by name of the limit
 * @param {Object<string, number>} values
 * @param {(key: string) => string} where the path of a limit
 * @param {import("../main.js").Context} context
 * @returns {HTMLElement}
 */
export function limitsPanel(known, values, where, context) {
  const change = async (key) => {
    const done = await ask({
      title: `Limit: ${known[key]}`,
      fields: [{ name: "value", label: "At most", type: "number", value: values[key] ?? "", help: "Left empty: no limit." }],
      label: "Set",
      run: ({ value }) => (value === null ? context.api.delete(where(key)) : context.api.put(where(key), { value })),
    });
    if (!done) return;
    context.tell("The limit was set.");
    context.again();
  };
  return panel(
    "Limits",
    h(
      "table",
      { class: "small-table" },
      h(
        "tbody",
        null,
        Object.entries(known).map(([key, label]) =>
          h("tr", null, h("td", null, label), h("td", null, values[key] === undefined ? h("span", { class: "muted" }, "no limit") : count(values[key])), h("td", { class: "number" }, button("Change", () => change(key), { kind: "small", refused: context.refused("administrator") }))),
        ),
      ),
    ),
  );
}

async function edit(context, user) {
  let made = user?.name;
  const done = await ask({
    title: user ? "Tags and password" : "Add a user",
    label: user ? "Save" : "Add",
    fields: [
      { name: "name", label: "Name", value: user?.name, fixed: Boolean(user), required: true },
      { name: "password", label: "Password", type: "password", help: user ? "Left empty, it stays as it is." : "Left empty, the user cannot log in with a password." },
      { name: "tags", label: "Tags", value: user?.tags.join(", ") ?? "", options: TAGS, help: TAG_HELP },
    ],
    run: async ({ name: who, password, tags }) => {
      const entry = { tags: tags.split(",").map((each) => each.trim()).filter(Boolean) };
      if (password) entry.password = password;
      else if (user?.password_hash) Object.assign(entry, { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm });
      else entry.password_hash = "";
      await context.api.put(path("users", who), entry);
      made = who;
    },
  });
  if (!done) return;
  context.tell(user ? "The user was changed." : `User ${made} was added. Give it permissions, so that it can enter a virtual host.`);
  if (user) context.again();
  else context.go(href("users", made));
}

async function remove(context, user) {
  const done = await ask({
    title: "Delete the user?",
    text: "With its permissions. Its connections are closed.",
    label: "Delete",
    danger: true,
    typed: user.name,
    run: () => context.api.delete(path("users", user.name)),
  });
  if (!done) return;
  context.tell(`User ${user.name} was deleted.`);
  context.go(href("users"));
}

async function permit(context, user, row) {
  const done = await ask({
    title: `Permissions of ${user}`,
    text: "Regular expressions; .* allows all names, an empty one none.",
    label: "Set",
    fields: [
      row ? { name: "vhost", label: "Virtual host", value: row.vhost, fixed: true } : vhostField(context),
      { name: "configure", label: "configure: declare and delete", value: row?.configure ?? ".*" },
      { name: "write", label: "write: publish, bind", value: row?.write ?? ".*" },
      { name: "read", label: "read: consume, get, purge", value: row?.read ?? ".*" },
    ],
    run: ({ vhost, ...patterns }) => context.api.put(path("permissions", vhost, user), patterns),
  });
  if (!done) return;
  context.tell("Permissions were set.");
  context.again();
}

async function restrict(context, user) {
  const done = await ask({
    title: `Restrict routing keys of ${user}`,
    label: "Restrict",
    fields: [
      vhostField(context),
      { name: "exchange", label: "Topic exchange", value: "amq.topic", required: true },
      { name: "write", label: "write: routing keys of what it publishes", value: ".*" },
      { name: "read", label: "read: routing keys that it binds with", value: ".*" },
    ],
    run: ({ vhost, ...values }) => context.api.put(path("topic-permissions", vhost, user), values),
  });
  if (!done) return;
  context.tell("Routing keys are restricted.");
  context.again();
}

async function clear(context, where, text) {
  const done = await ask({ title: "Clear?", text, label: "Clear", danger: true, run: () => context.api.delete(where) });
  if (!done) return;
  context.tell("It was cleared.");
  context.again();
}
