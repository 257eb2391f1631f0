/** The timeline of a link, a consumer or a channel: every frame, and what it did to credit and windows. */

import { path, withQuery } from "../api.js";
import { Timeline, dump, lengthText, timeText } from "../curves.js";
import { h, name, put, save, visible } from "../dom.js";
import { NOTHING, count, moment } from "../format.js";
import { badge, button, heading, waitBadge } from "../parts.js";
import { CURVES, labelOf, picture, textOf } from "../picture.js";
import { href } from "../router.js";
import { link, table } from "../table.js";
import { consumerTimeline } from "./consumers.js";

const INTERVAL_MS = 100;
const PORTION = 500;
const STALL_S = 2;
const ROWS_MAX = 2000;
const ROWS_EVERY_MS = 300;
const SPANS_MS = [1, 10, 100, 1000, 10_000, 60_000, 600_000];

/** @type {import("./index.js").View} */
export const view = {
  title: (parameters) => (parameters.length ? `Timeline of ${parameters[2] ?? `channel ${parameters[1]}`}` : "Timelines"),
  draw: (host, parameters, context) => (parameters.length ? drawTimeline(host, parameters, context) : drawChoice(host, context)),
};

// --- which one ----------------------------------------------------------------------------------------

function drawChoice(host, context) {
  const links = table(context, {
    id: "timelines",
    label: "Consumers",
    path: "/consumers",
    fields: ["channel_details", "link_details"],
    rowKey: (row) => JSON.stringify([row.consumer_tag, row.channel_details, row.link_details]),
    rowHref: consumerTimeline,
    rowText: (row) => `${row.consumer_tag} ${row.queue?.name} ${row.link_details?.link_name ?? ""}`,
    empty: "There is no consumer. For the timeline of a publisher's link, open the page of its connection.",
    columns: [
      { key: "consumer_tag", title: "Link or tag", cell: (row) => link(consumerTimeline(row), row.link_details?.link_name ?? row.consumer_tag) },
      { key: "queue", title: "Queue", sort: "queue.name", cell: (row) => name(row.queue?.name) },
      { key: "link_details", title: "Connection", sort: false, fields: [], cell: (row) => name(row.link_details?.connection_name ?? row.channel_details?.connection_name) },
    ],
  });
  put(
    host,
    heading("Timelines"),
    h("p", { class: "muted" }, "Every frame of a link, and what it did to credit, windows and what is unsettled. Choose a consumer here, or any link or channel on the page of its ", h("a", { href: href("connections") }, "connection"), "."),
    links.element,
  );
}

// --- one ----------------------------------------------------------------------------------------------

function drawTimeline(host, [connection, channel, link, role], context) {
  const given = { connection, channel: Number(channel), link, role };
  const above = [h("a", { href: href("connections") }, "Connections"), " / ", h("a", { href: href("connections", connection) }, name(connection)), ` / ${role ? "session" : "channel"} `, visible(channel)];
  const title = link === undefined ? `Channel ${channel}` : name(link);
  const badges = h("span", { class: "line" });
  const head = heading(title, { above, badges: [badges], actions: [button("Export as JSON", () => current?.download())] });
  const body = h("div", { class: "stack" }, h("p", { class: "muted" }, "The broker begins to record\u2026"));
  put(host, head, body);
  let current = null;
  let over = false;

  const begin = async () => {
    let watched;
    try {
      watched = await context.api.post("/timelines", given);
    } catch (error) {
      if (!over) put(body, failed(error, begin));
      return;
    }
    if (over) {
      leave(context, watched);
      return;
    }
    current?.stop();
    current = drawWatched(body, badges, watched, context, begin);
  };
  begin();
  return () => {
    over = true;
    current?.stop();
  };
}

function failed(error, again) {
  const gone = error.status === 404 && error.error !== "not_found";
  const text = gone || error.status === 404 ? `It cannot be watched: ${error.reason === "Not Found" ? "the connection has ended, or you have no permission to see it" : error.reason}.` : error.reason;
  return h("div", { class: "missing", role: "alert" }, h("p", null, visible(text)), button("Try again", again));
}

/** Where it is asked for: at the node to which its client is connected. */
function place(watched, values = {}) {
  return withQuery(path("timelines", watched.watch), { node: watched.node, ...values });
}

/** Look no more; what is not told ends by itself after a minute. */
function leave(context, watched) {
  context.api.delete(place(watched)).catch(() => {});
}

function drawWatched(host, badges, watched, context, again) {
  const timeline = new Timeline(watched);
  const detail = h("section", { class: "panel flow-detail", "aria-live": "polite" });
  const facts = h("p", { class: "flow-facts muted", role: "status" });
  const waits = h("section", { class: "panel flow-waits", "aria-label": "Why it waits", hidden: true });
  const lost = h("p", { class: "fault", role: "alert", hidden: true });
  const followButton = h("button", { type: "button", class: "button small", onclick: () => shown.follow(!shown.following()) });
  const others = h("input", { type: "checkbox", checked: true, onchange: () => { shown.showOthers(others.checked); rowsLater(); } });
  const length = h("select", { "aria-label": "Length of time", onchange: () => { const { to } = shown.span(); shown.look({ from: to - Number(length.value), to }, shown.following()); } });

  const shown = picture(timeline, {
    selected: (step, why) => drawDetail(step, why),
    moved: () => {
      drawControls();
      rowsLater();
    },
  });

  const events = table(context, {
    id: "events",
    label: "Events in the selected time",
    plain: true,
    rowKey: (row) => String(row.number),
    fields: [],
    empty: "No events in the selected time.",
    columns: [
      { key: "at", title: "Time", sort: false, cell: (row) => h("button", { type: "button", class: "plain-link", onclick: () => shown.select(row) }, timeText(row.at, 0.001)) },
      { key: "direction", title: "", sort: false, cell: (row) => directionOf(row, timeline) },
      { key: "frame", title: "Frame", sort: false, cell: (row) => frameOf(row) },
      { key: "values", title: "Then", sort: false, cell: (row) => changesOf(row) },
    ],
  });
  let rowsTimer = 0;
  let stopped = false;
  const rowsLater = () => {
    if (rowsTimer || stopped) return;
    rowsTimer = setTimeout(() => {
      rowsTimer = 0;
      drawRows();
    }, ROWS_EVERY_MS);
  };

  const drawRows = () => {
    const [from, to] = timeline.within(shown.span());
    const found = timeline.steps.slice(from, to).filter(shown.wanted);
    // The newest stand above, as what comes is looked for there.
    events.show(found.slice(-ROWS_MAX).reverse());
    const frames = found.reduce((sum, each) => sum + each.frames, 0);
    const some = found.length > ROWS_MAX ? `, the last ${count(ROWS_MAX)} in the table` : "";
    const { from: begin, to: end } = shown.span();
    put(facts, `${lengthText(end - begin)} are shown: ${count(found.length)} events with ${count(frames)} frames${some}. The timeline began at ${moment(watched.began_at_ns / 1e6)}.`);
  };

  const drawControls = () => {
    put(followButton, shown.following() ? "Pause" : timeline.ended ? "Ended" : "Follow");
    followButton.disabled = Boolean(timeline.ended);
    followButton.setAttribute("aria-pressed", String(shown.following()));
    const { from, to } = shown.span();
    const now = to - from;
    if (!length.options.length) put(length, SPANS_MS.map((each) => h("option", { value: each }, lengthText(each))), h("option", { value: "" }, ""));
    const known = SPANS_MS.find((each) => Math.abs(each - now) < each * 0.01);
    const other = length.lastChild;
    other.hidden = known !== undefined;
    put(other, lengthText(now));
    other.value = String(now);
    length.value = String(known ?? now);
  };

  const drawDetail = (step, why) => {
    if (!step) {
      put(detail, h("h2", null, "Frame"), h("p", { class: "muted" }, why ? visible(why) : "Press on any point of the picture, or on a time in the table: the frame that made it so stands here. Comma and full stop go from one to the next."));
      return;
    }
    const changes = Object.entries(step.values);
    const told = step.frames > 1 ? `${count(step.frames)} frames of one read or write, alike but for their ids` : null;
    put(
      detail,
      h("div", { class: "line" },
        h("h2", null, step.direction ? visible(step.frame.split(" ", 1)[0]) : "No frame"),
        directionOf(step, timeline),
        step.link ? null : badge("another link of the session", "", "it counts in the session's windows"),
        step.marks.map((each) => badge(each, each === "drain" || each === "echo" ? "warn" : "accent")),
        h("span", { class: "space" }),
        button("Previous", () => shown.beside(-1), { kind: "small" }),
        button("Next", () => shown.beside(1), { kind: "small" })),
      h("p", { class: "muted" }, `${timeText(step.at, 0.001)} after the beginning, ${clock(watched, step.at)}; step ${count(step.number)}`, told ? `; ${told}` : ""),
      step.direction ? h("p", { class: "code flow-words" }, visible(step.frame)) : h("p", null, "An action of the queue or the writer, without a frame."),
      changes.length ? h("dl", { class: "flow-changes" }, changes.map(([key, value]) => h("div", null, h("dt", null, swatch(key), visible(labelOf(key))), h("dd", null, textOf(timeline.valueBefore(key, step)), " \u2192 ", h("b", null, textOf(value)))))) : h("p", { class: "muted" }, "It changed none of the values that are drawn."),
      bytesOf(step, watched, context),
    );
  };

  const download = () => save(JSON.stringify(timeline.exported(), null, 1), `timeline-${watched.watch}.json`);

  put(badges, badgesOf(watched));
  put(
    host,
    lost,
    waits,
    h("section", { class: "panel flow-panel" },
      h("div", { class: "bar flow-bar" },
        followButton,
        button("\u2212", () => shown.zoom(2), { kind: "small" }),
        button("+", () => shown.zoom(0.5), { kind: "small" }),
        length,
        button("All", () => shown.whole(), { kind: "small" }),
        watched.role === "channel" || watched.role === "consumer" ? null : h("label", { class: "regex" }, others, "other links of the session"),
        h("span", { class: "space" }),
        h("span", { class: "muted" }, h("kbd", null, "+"), " ", h("kbd", null, "\u2212"), " zoom, ", h("kbd", null, "\u2190"), " ", h("kbd", null, "\u2192"), " move, ", h("kbd", null, ","), " ", h("kbd", null, "."), " events, ", h("kbd", null, "f"), " follow")),
      shown.element,
      facts),
    detail,
    h("section", { class: "panel" }, h("h2", null, "Events"), events.element),
  );
  for (const [key, act] of [["+", () => shown.zoom(0.5)], ["-", () => shown.zoom(2)], [",", () => shown.beside(-1)], [".", () => shown.beside(1)], ["f", () => shown.follow(!shown.following())]]) context.onKey(key, act);
  drawDetail(null);
  drawControls();
  drawRows();

  let known = 0;
  const unwatch = context.watch(
    place(watched, { limit: PORTION }),
    (answer, error) => {
      if (stopped) return;
      if (error) {
        if (error.status === 404) {
          lost.hidden = false;
          put(lost, "The broker stopped this recording, because no page asked for it for a minute. ", button("Begin a new timeline", again, { kind: "small" }));
        } else if (error.status) {
          lost.hidden = false;
          put(lost, visible(error.reason));
        }
        return;
      }
      if (!answer) return;
      lost.hidden = true;
      const ended = timeline.ended;
      if (timeline.take(answer) || shown.following()) rowsLater();
      if (answer.ended && answer.ended !== ended) {
        put(badges, badgesOf(watched), badge(`ended: ${visible(answer.ended)}`, "warn"));
        shown.look(shown.span());
        drawControls();
      }
      if (timeline.gaps.length !== known) {
        known = timeline.gaps.length;
        put(badges, badgesOf(watched), badge(`${count(timeline.gaps.reduce((sum, each) => sum + each.lost, 0))} steps lost`, "warn", "more happened than this page could take: the picture has a gap"));
      }
      if (shown.following()) drawControls();
      shown.soon();
      host.dataset.steps = String(timeline.next);
    },
    { interval: INTERVAL_MS, grows: true },
  );
  // Where nothing moves there is nothing to see: the reason is what is looked for.
  const unwait = context.watch(
    withQuery("/waiting", { idle: true, connection: watched.connection, node: watched.node }),
    (value, error) => {
      const row = error || timeline.ended ? null : value?.waiting.find((each) => each.channel === watched.channel && each.name === watched.link && (each.role ?? each.kind) === watched.role);
      // On a link where much moves a wait comes and goes in milliseconds.
      waits.hidden = !row || (row.waits_for_s !== null && row.waits_for_s < STALL_S);
      if (row) put(waits, waitBadge(row), h("p", null, visible(row.waits_why)), row.idle ? null : h("p", null, h("b", null, "Do: "), visible(row.to_do)));
    },
    { interval: 1000 },
  );
  host.timeline = timeline;
  host.picture = shown;
  return {
    download,
    stop: () => {
      stopped = true;
      unwatch();
      unwait();
      clearTimeout(rowsTimer);
      shown.stop();
      leave(context, watched);
    },
  };
}

// --- as text ------------------------------------------------------------------------------------------

function badgesOf(watched) {
  const of = { sender: "the client sends", receiver: "the client receives", consumer: "consumer", channel: "channel" }[watched.role];
  return [
    badge(of, "accent"),
    watched.queue ? h("span", null, "queue ", name(watched.queue)) : null,
    watched.address && watched.address !== watched.queue ? h("span", null, "address ", name(watched.address)) : null,
    watched.handle === null ? null : h("span", null, `handle ${watched.handle}`),
    h("span", null, "user ", name(watched.user)),
  ];
}

function directionOf(step) {
  if (!step.direction) return h("span", { class: "muted", title: "no frame" }, "queue or writer");
  return step.direction === "in" ? h("span", { class: "flow-in" }, "\u2191 of the client") : h("span", { class: "flow-out" }, "\u2193 to the client");
}

function frameOf(step) {
  if (!step.direction) return h("span", { class: "muted" }, NOTHING);
  const many = step.frames > 1 ? ` \u00d7${count(step.frames)}` : "";
  return h("bdi", { class: `code flow-kind-${step.kind}`, title: visible(step.frame) }, visible(step.frame) + many);
}

function changesOf(step) {
  const text = Object.entries(step.values).map(([key, value]) => `${labelOf(key)} ${textOf(value)}`).join(", ");
  return text ? h("span", { title: text }, text) : null;
}

function swatch(key) {
  const colour = CURVES[key]?.colour;
  return colour ? h("span", { class: "flow-dot", "aria-hidden": "true", style: { background: `var(${colour})` } }) : null;
}

function bytesOf(step, watched, context) {
  if (!step.direction) return null;
  if (!step.bytes) {
    const hidden = watched.user !== context.me.name && !context.can("administrator");
    return h("p", { class: "muted" }, hidden ? "Words and bytes of the frames of another user's connection are shown to administrators." : "Bytes are kept of what the broker writes, and of messages; of other frames of the client the words have every field.");
  }
  const what = step.kind === "message" ? "Its first bytes; of what the client sends, those of the payload" : "Its bytes";
  return [h("p", { class: "muted" }, what), h("pre", { class: "payload" }, dump(step.bytes).map((each) => each.join("  ")).join("\n"))];
}

function clock(watched, at) {
  const ms = watched.began_at_ns / 1e6 + at;
  const micros = Math.floor((ms % 1000) * 1000);
  return `${moment(ms)}.${String(micros).padStart(6, "0")}`;
}
