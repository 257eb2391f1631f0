/** What waits now, worst first: why, what shows it, since when, and what to do. */

import { withQuery } from "../api.js";
import { h, name, put, visible } from "../dom.js";
import { count, duration } from "../format.js";
import { badge, heading } from "../parts.js";
import { href, remember, timeline } from "../router.js";

const INTERVAL_MS = 1000;
const SHOWN_MAX = 200;
const LONG_S = 60;

/** @type {import("./index.js").View} */
export const view = { title: "Waiting", draw };

function draw(host, parameters, context) {
  const { query } = context.place;
  const chosen = { idle: query.get("idle") === "true", reason: query.get("reason") ?? "", queue: query.get("queue") ?? "" };
  const summary = h("div", { class: "wait-reasons", role: "group", "aria-label": "Reasons" });
  const list = h("ol", { class: "wait-list", "aria-label": "What waits" });
  const said = h("p", { class: "muted", role: "status" });
  const empty = h("div", { class: "missing", hidden: true });
  const idle = h("input", { type: "checkbox", checked: chosen.idle, onchange: () => choose({ idle: idle.checked }) });
  const queue = h("input", { type: "search", class: "filter", placeholder: "Queue: name, * or ?", "aria-label": "Queue", value: chosen.queue, onchange: () => choose({ queue: queue.value }) });
  put(
    host,
    heading("Waiting", { badges: [h("span", null, "links, channels and consumers on which nothing moves, the longest first")] }),
    h("div", { class: "wait-bar" }, queue, h("label", { class: "regex" }, idle, "also what has nothing to do"), h("span", { class: "space" }), said),
    summary,
    empty,
    list,
  );

  const rows = new Map();
  let stop = () => {};
  let heard = 0;

  const choose = (change) => {
    Object.assign(chosen, change);
    remember(context.place, chosen);
    stop();
    follow();
  };

  const follow = () => {
    const where = withQuery("/waiting", { limit: SHOWN_MAX, idle: chosen.idle, reason: chosen.reason, queue: chosen.queue });
    stop = context.watch(
      where,
      (value, error) => {
        if (error) {
          put(said, visible(error.reason));
          return;
        }
        heard = performance.now();
        show(value);
      },
      { interval: INTERVAL_MS },
    );
  };

  const show = ({ summary: counts, waiting, unreached }) => {
    drawReasons(summary, counts, chosen, choose);
    const kept = new Set();
    const elements = waiting.map((row) => {
      const key = JSON.stringify([row.node, row.kind, row.connection, row.channel, row.role, row.name]);
      kept.add(key);
      let shown = rows.get(key);
      if (!shown || shown.row.waits !== row.waits) rows.set(key, (shown = card(row, context)));
      shown.row = row;
      shown.tell(0);
      return shown.element;
    });
    for (const key of [...rows.keys()]) if (!kept.has(key)) rows.delete(key);
    // Only what has another place is moved: what has the focus keeps it.
    elements.forEach((each, place) => {
      if (list.children[place] !== each) list.insertBefore(each, list.children[place] ?? null);
    });
    while (list.children.length > elements.length) list.lastChild.remove();
    const total = Object.entries(counts.reasons).reduce((sum, [, each]) => sum + each, 0);
    const more = waiting.length === SHOWN_MAX && total > SHOWN_MAX ? `, the ${SHOWN_MAX} worst are shown` : "";
    put(said, `${count(counts.waiting)} of ${count(counts.links + counts.consumers + counts.channels)} wait${more}${unreached.length ? `; not known of ${unreached.map(visible).join(", ")}` : ""}`);
    empty.hidden = waiting.length > 0;
    list.hidden = !waiting.length;
    if (!waiting.length) put(empty, nothing(counts, chosen, context));
  };

  const ticker = setInterval(() => {
    const since = heard ? (performance.now() - heard) / 1000 : 0;
    for (const shown of rows.values()) shown.tell(since);
  }, 1000);
  follow();
  return () => clearInterval(ticker);
}

/** Each reason with how often it is there; one that is pressed is the only one that is shown. */
function drawReasons(element, counts, chosen, choose) {
  const told = JSON.stringify([counts.reasons, chosen.reason, chosen.idle]);
  if (element.told === told) return;
  element.told = told;
  const idle = new Set(counts.idle_reasons);
  const entries = Object.entries(counts.reasons).filter(([code]) => chosen.idle || chosen.reason === code || !idle.has(code));
  if (chosen.reason && !(chosen.reason in counts.reasons)) entries.push([chosen.reason, 0]);
  put(
    element,
    entries.map(([code, each]) =>
      h("button", { type: "button", class: idle.has(code) ? "wait-reason idle" : "wait-reason", "aria-pressed": String(chosen.reason === code), onclick: () => choose({ reason: chosen.reason === code ? "" : code }) }, code, " ", h("b", null, count(each))),
    ),
  );
}

function card(row, context) {
  const long = h("span", { class: "wait-long" });
  const why = h("p", { class: "wait-why" });
  const element = h("li", { class: row.idle ? "wait-card idle" : "wait-card" });
  const shown = { row, element, tell: () => {} };
  const connection = h("a", { href: href("connections", row.connection_name) }, name(row.connection_name));
  const drawn = timeline(row.connection_name, row.channel, row.name ?? undefined, row.role ?? undefined);
  const [what, where] = {
    link: [row.role === "receiver" ? "Consumer" : "Publisher", `session ${row.channel}`],
    consumer: ["Consumer", `channel ${row.channel}`],
    channel: ["Channel", `channel ${row.channel}`],
  }[row.kind];
  put(
    element,
    h("div", { class: "wait-time" }, long, h("span", { class: "muted" }, row.idle ? "idle" : "waiting")),
    h("div", { class: "wait-body" },
      h("header", null,
        h("span", { class: "muted" }, what),
        row.name === null ? h("b", null, String(row.channel)) : h("b", null, name(row.name)),
        row.queue ? [h("span", { class: "muted" }, row.role === "sender" ? "to queue" : "of queue"), h("a", { href: href("queues", row.vhost, row.queue) }, name(row.queue))] : null,
        badge(row.waits, row.idle ? "" : "warn")),
      why,
      h("p", { class: "wait-do" }, h("b", null, row.idle ? "" : "Do: "), visible(row.to_do)),
      h("p", { class: "wait-where muted" }, connection, h("span", null, where), h("span", null, "user ", name(row.user)), h("span", null, "virtual host ", name(row.vhost)), h("span", null, "node ", name(row.node)))),
    h("a", { class: "button small", href: drawn, "aria-label": `Timeline of ${visible(row.name ?? `channel ${row.channel}`)}` }, "Timeline"),
  );
  shown.tell = (since) => {
    const { waits_for_s: seconds, waits_why: reason, idle } = shown.row;
    put(long, seconds === null ? "\u2013" : duration(seconds < 10 ? Math.round((seconds + since) * 10) / 10 : seconds + since));
    element.classList.toggle("long", !idle && seconds !== null && seconds + since >= LONG_S);
    if (why.textContent !== visible(reason)) put(why, visible(reason));
  };
  return shown;
}

function nothing(counts, chosen, context) {
  const parts = counts.links + counts.consumers + counts.channels;
  if (chosen.reason || chosen.queue) return h("p", null, "Nothing in this selection waits now.");
  if (!parts) return h("p", null, `There is no link, channel or consumer now${context.can("monitoring") ? "" : " of yours"}: no client is connected that could wait.`);
  const idle = counts.idle_reasons.reduce((sum, each) => sum + (counts.reasons[each] ?? 0), 0);
  return [
    h("p", null, h("b", null, "Nothing waits."), ` None of ${count(parts)} links, channels and consumers is stalled.`),
    idle ? h("p", null, `${count(idle)} have nothing to do: their queue is empty, or another consumer is the active one.`) : null,
  ];
}
