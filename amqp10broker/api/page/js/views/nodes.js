/** Nodes: memory, disk, alarms and what to do about them; members of quorum queues on a node. */

import { path } from "../api.js";
import { ask, show } from "../dialogs.js";
import { h, name, put, visible } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { badge, button, facts, follow, heading, memoryOf, meter, nodeState, panel, refresh, smallTable } from "../parts.js";
import { href } from "../router.js";

const ADVICE = {
  memory: "let consumers catch up, shorten or purge long queues, close clients that hold much; or raise vm_memory_high_watermark if the machine has more.",
  disk: "free room below the data folder, let consumers catch up, move the folder to a larger disk, or lower disk_free_limit.",
};

/** @type {import("./index.js").View} */
export const view = {
  title: ([node]) => (node === undefined ? "Nodes" : `Node ${node}`),
  draw(host, [node], context) {
    const head = h("div");
    const below = h("div", { class: "stack" });
    const certificates = h("div");
    const attempts = h("div");
    const all = node === undefined;
    const refused = context.refused("administrator");
    put(host, head, certificates, below, attempts);
    put(
      head,
      all
        ? heading("Nodes", {
            actions: [
              button("Checklist of production", () => checklist(context), { refused }),
              button("Upgrade to 4.3", () => upgrade(context), { refused }),
              button("Rebalance leaders", () => rebalance(context), { refused }),
            ],
          })
        : heading(name(node), {
            above: h("a", { href: href("nodes") }, "Nodes"),
            actions: [
              button("Grow: add members here", () => grow(node, context), { refused }),
              button("Shrink: remove members here", () => shrink(node, context), { kind: "danger", refused }),
            ],
          }),
    );
    follow(context, all ? "/nodes" : path("nodes", node), below, all ? "This view" : "This node", (value) => {
      const nodes = Array.isArray(value) ? value : [value];
      refresh(below, nodes.map((each) => ({ ...each, uptime: Math.floor((each.uptime ?? 0) / 5000) })), () =>
        nodes.map((each) => panel(null, nodeOf(each, all))),
      );
    });
    context.watch("/health/checks/certificate-expiration/1/months", (value, error) => {
      const told = error?.status === 503 ? error.reason : null;
      refresh(certificates, told, () => told && h("p", { class: "fault" }, h("b", null, "Soon: "), visible(told), ". Put a new one in its place; the broker takes it at its next start."));
    });
    if (all) return;
    // Another node than the one that is asked has its own.
    context.watch(path("auth", "attempts", node), (rows) => refresh(attempts, rows, () => rows?.length && panel("Attempts to log in", attemptTable(rows))));
  },
};

function nodeOf(each, linked) {
  const alarms = [each.mem_alarm && "memory", each.disk_free_alarm && "disk"].filter(Boolean);
  const known = each.uptime !== undefined;
  return [
    h(
      "div",
      { class: "line" },
      linked ? h("a", { class: "strong", href: href("nodes", each.name) }, name(each.name)) : null,
      nodeState(each),
      alarms.map((alarm) => badge(`${alarm} alarm`, "bad")),
    ),
    alarms.map((alarm) => h("p", { class: "fault advice" }, h("b", null, "What to do: "), ADVICE[alarm])),
    known
      ? facts([
          ["Up for", duration(each.uptime / 1000)],
          ["Memory", memoryOf(each, ", no limit")],
          ["Disk free", bytes(each.disk_free)],
          ["Disk alarm below", each.disk_free_limit ? bytes(each.disk_free_limit) : "none"],
          ["Connections", meter(each.sockets_used, each.sockets_total, `${count(each.sockets_used)} of ${count(each.sockets_total)}`, each.sockets_used >= each.sockets_total)],
          ["Process", each.os_pid],
          ["Version", each.applications?.[0]?.version],
          ["Data folder", each.db_dir ? name(each.db_dir) : "none: nothing outlives the broker"],
        ])
      : h("p", { class: "muted" }, each.running ? "Its own page shows more: every node serves one." : "The node does not run, or this node cannot reach it."),
  ];
}

function attemptTable(rows) {
  return smallTable(
    ["Protocol", "Attempts", "Succeeded", "Failed"],
    rows.map((each) => [
      name(each.protocol),
      count(each.auth_attempts),
      count(each.auth_attempts_succeeded),
      each.auth_attempts_failed ? badge(count(each.auth_attempts_failed), "warn") : "0",
    ]),
    1,
  );
}

const STATES = { bad: "bad", warn: "warn", unknown: "", ok: "accent", denied: "bad", changed: "warn", deprecated: "" };

/** What `amqp10broker doctor` says of the node that is asked. */
async function checklist(context) {
  const said = await context.api.get("/doctor");
  show(
    `Checklist of production: ${visible(said.node)}`,
    smallTable(
      ["Check", "State", "What was found"],
      said.checks.map((each) => [each.check, badge(each.state, STATES[each.state]), [visible(each.evidence), each.to_do ? toDo(each) : null]]),
    ),
  ).classList.add("broad");
}

function toDo(each) {
  return h("div", null, h("b", null, "Do: "), visible(each.to_do));
}

/** What `amqp10broker upgrade-check` says of the cluster. */
async function upgrade(context) {
  const said = await context.api.get("/upgrade-check/4.3");
  const rows = said.findings.map((each) => [badge(each.state, STATES[each.state]), each.finding, [each.kind, " ", name(each.who)], [visible(each.what), toDo(each)]]);
  show(
    `Upgrade to RabbitMQ ${visible(said.to)}`,
    rows.length ? smallTable(["State", "Finding", "Of", "What was found"], rows) : h("p", null, "No connected client, queue or policy uses a feature that this version refuses or changes."),
  ).classList.add("broad");
}

function grow(node, context) {
  ask({
    title: "Add members of quorum queues here",
    text: ["Every quorum queue that matches and has no member on ", name(node), " gets one."],
    fields: [
      { name: "strategy", label: "Queues", type: "select", options: [{ value: "all", label: "all that fit" }, { value: "even", label: "those with an even number of members" }] },
      { name: "vhost_pattern", label: "Virtual hosts (regular expression)", value: ".*" },
      { name: "queue_pattern", label: "Queues (regular expression)", value: ".*" },
    ],
    label: "Grow",
    run: (values) => context.api.post(path("queues", "quorum", "replicas", "on", node, "grow"), values),
    done: () => context.tell("Members are being added."),
  });
}

function shrink(node, context) {
  ask({
    title: "Remove all members of quorum queues here?",
    text: ["The members on ", name(node), " are removed with their data. Do this before a node leaves the cluster. Queues whose only member is here are not changed."],
    label: "Shrink",
    danger: true,
    typed: node,
    run: () => context.api.delete(path("queues", "quorum", "replicas", "on", node, "shrink")),
    done: () => context.tell("The members were removed."),
  });
}

function rebalance(context) {
  ask({
    title: "Rebalance leaders?",
    text: "Leaders of queues are moved until no node leads more than its share. Clients are paused for a moment.",
    label: "Rebalance",
    run: () => context.api.post("/rebalance/queues"),
    done: () => context.tell("Leaders are being moved; the log shows the progress."),
  });
}
