/**
 * The picture of a timeline: curves that hold their values from step to step, frames as arrows between broker and
 * client, states as bands, and beneath it all the whole time with the span that is looked at. Pointer, wheel, two
 * fingers and keys move it.
 *
 * @typedef {import("./curves.js").Step} Step
 * @typedef {import("./curves.js").Span} Span
 */

import { bands, clamped, drawn, extent, placeAt, scale, timeText, timeTicks, traffic, valueAt, zoomed } from "./curves.js";
import { h, put, s, visible } from "./dom.js";
import { NOTHING, count, short } from "./format.js";

/** Every curve and state: what it is called, how it is drawn. Each has a pattern of its own beside its colour. */
export const CURVES = {
  credit: { label: "link-credit", colour: "--flow-0", dash: [], wide: true, help: "deliveries that may still be sent on the link" },
  queue_credit: { label: "queue credit", colour: "--flow-1", dash: [7, 3], help: "messages that the queue may still hand to the link" },
  unsettled: { label: "unsettled", colour: "--flow-2", dash: [2, 3], wide: true, help: "deliveries that are not settled on the wire" },
  pending: { label: "pending", colour: "--flow-3", dash: [9, 3, 2, 3], help: "messages from the queue that are not written yet" },
  delivery_count: { label: "delivery-count", colour: "--flow-4", dash: [], help: "of the link: it grows with each delivery, and when a drain uses up credit" },
  incoming_window: { label: "incoming-window", colour: "--flow-5", dash: [], help: "transfers that the broker takes in the session" },
  remote_incoming_window: { label: "remote-incoming-window", colour: "--flow-6", dash: [7, 3], help: "transfers that the client takes in the session: what may go out" },
  next_incoming_id: { label: "next-incoming-id", colour: "--flow-5", dash: [], help: "transfer-id that is expected of the client" },
  next_outgoing_id: { label: "next-outgoing-id", colour: "--flow-6", dash: [7, 3], help: "transfer-id of the broker's next transfer" },
  prefetch: { label: "prefetch", colour: "--flow-0", dash: [], wide: true, help: "messages that the consumer may hold; 0: any number" },
  unacknowledged: { label: "unacknowledged", colour: "--flow-2", dash: [2, 3], wide: true, help: "messages that the consumer holds" },
  unsent: { label: "unsent", colour: "--flow-3", dash: [9, 3, 2, 3], help: "messages from the queue that are not written yet" },
  global_prefetch: { label: "global prefetch", colour: "--flow-0", dash: [], help: "messages that the whole channel may hold; 0: any number" },
  channel_unacknowledged: { label: "unacknowledged of the channel", colour: "--flow-2", dash: [2, 3], wide: true, help: "messages that the client holds" },
  unconfirmed: { label: "unconfirmed", colour: "--flow-4", dash: [7, 3], wide: true, help: "published messages that are neither confirmed nor rejected" },
  reader_credit: { label: "credit_flow", colour: "--flow-5", dash: [], help: "contents that the connection may still read for the channel" },
  writer_waiting_bytes: { label: "bytes waiting", colour: "--flow-3", dash: [], help: "bytes of the connection that the socket has not taken" },
  writer_blocked: { label: "writer blocked", colour: "--flow-7", band: true, help: "the socket takes nothing: the client, or the network, does not read" },
  drain: { label: "drain", colour: "--flow-1", band: true, help: "the client asks for what is there, and gives up the rest of its credit" },
};

/** `grows`: numbers that only grow are not drawn from 0. A pane is there if its first curve is. */
const PANES = [
  { title: "Credit", tall: 3.4, curves: ["credit", "queue_credit", "pending"], bands: ["drain"] },
  { title: "Unsettled", tall: 1.6, curves: ["unsettled"] },
  { title: "Consumer", tall: 3.4, curves: ["unacknowledged", "prefetch", "queue_credit", "unsent"] },
  { title: "Channel", tall: 2.8, curves: ["channel_unacknowledged", "global_prefetch", "unconfirmed"] },
  { title: "Reader", tall: 1.4, curves: ["reader_credit"] },
  { title: "Frames", tall: 2.6, frames: true },
  { title: "Delivery-count", tall: 1.4, curves: ["delivery_count"], grows: true },
  { title: "Session windows", tall: 1.9, curves: ["incoming_window", "remote_incoming_window"] },
  { title: "Transfer-ids", tall: 1.4, curves: ["next_incoming_id", "next_outgoing_id"], grows: true },
  { title: "Writer", tall: 1.2, curves: ["writer_waiting_bytes"], bands: ["writer_blocked"] },
];

const LEFT = 74;
const RIGHT = 14;
const TOP = 18;
const AXIS = 24;
const UNIT = 38;
const GAP = 19;
const BRUSH = 54;
const NEAR_PX = 7;
const FIRST_SPAN_MS = 10_000;
const FRAME_MS = 33;
const WHOLE_MS = 500;

/**
 * Make the picture.
 *
 * @param {import("./curves.js").Timeline} timeline
 * @param {{selected: (step: Step | null, why?: string) => void, moved: (span: Span, following: boolean) => void}} told
 */
export function picture(timeline, told) {
  const canvas = h("canvas", { class: "flow-canvas", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline. Plus and minus zoom, arrows move, comma and full stop go to the previous and next event, F follows. The events stand in the table beneath." });
  const brush = h("canvas", { class: "flow-brush", "aria-hidden": "true" });
  const tip = h("div", { class: "flow-tip", hidden: true });
  const legend = h("div", { class: "flow-legend", role: "group", "aria-label": "Curves" });
  const element = h("div", { class: "flow-picture" }, legend, h("div", { class: "flow-stage" }, canvas, tip), brush);
  const off = new Set(["next_incoming_id", "next_outgoing_id"]);
  const state = { span: { from: 0, to: FIRST_SPAN_MS }, following: true, pointer: null, selected: null, others: true, touched: false };
  const overview = { timer: 0, canvas: h("canvas"), key: "", at: 0, known: 0, span: { from: 0, to: 1000 } };
  let panes = [];
  let values = new Map();
  let waiting = 0;
  let last = 0;
  let size = { width: 0, height: 0, ratio: 1 };
  let ended = false;

  const bounds = () => ({ from: timeline.first, to: Math.max(timeline.now, timeline.first + 1000) });
  const wanted = (step) => state.others || step.link;
  const x = (at, span = state.span) => LEFT + ((at - span.from) / lengthOf(span)) * plot();
  const timeAt = (px, span = state.span) => span.from + ((px - LEFT) / plot()) * lengthOf(span);
  const plot = () => Math.max(size.width - LEFT - RIGHT, 10);
  const bottom = () => (panes.length ? panes.at(-1).top + panes.at(-1).height : TOP);
  const nearestTo = (at) => timeline.nearest(at, wanted, (NEAR_PX / plot()) * lengthOf(state.span));

  // --- what is looked at ------------------------------------------------------------------------------

  const look = (span, following = false) => {
    const { from, to } = bounds();
    const free = Math.max(to - from, FIRST_SPAN_MS);
    state.span = clamped(span, { from, to: Math.max(to, from + free) });
    state.following = following && !timeline.ended;
    state.touched = true;
    told.moved(state.span, state.following);
    soon();
  };

  const zoom = (factor, at = state.selected && inSpan(state.selected.at) ? state.selected.at : (state.span.from + state.span.to) / 2) => {
    // Who follows stays at the newest end.
    look(zoomed(state.span, factor, state.following ? state.span.to : at), state.following);
  };

  const pan = (share) => {
    const by = lengthOf(state.span) * share;
    look({ from: state.span.from + by, to: state.span.to + by });
  };

  const inSpan = (at) => at >= state.span.from && at <= state.span.to;

  const select = (step, why) => {
    state.selected = step;
    if (step && !inSpan(step.at)) {
      const half = lengthOf(state.span) / 2;
      look({ from: step.at - half, to: step.at + half });
    } else if (step && state.following) {
      look(state.span);
    }
    told.selected(step, why);
    soon();
  };

  const beside = (direction) => {
    const from = state.selected ?? timeline.nearest((state.span.from + state.span.to) / 2, wanted);
    const step = state.selected ? timeline.beside(from, direction, wanted) : from;
    if (step) select(step);
  };

  /** The step behind what is shown at a point. */
  const causeAt = (px, py) => {
    const at = timeAt(px);
    const near = nearestTo(at);
    if (near) return [near];
    const pane = panes.find((each) => py >= each.top && py < each.top + each.height);
    let best = null;
    for (const name of pane?.shown ?? []) {
      const curve = timeline.curves.get(name);
      const value = valueAt(curve, at);
      if (typeof value !== "number") continue;
      const far = Math.abs(pane.y(value) - py);
      if (!best || far < best.far) best = { far, name, curve };
    }
    if (!best) return [timeline.nearest(at, wanted)];
    const place = Math.max(0, placeAt(best.curve, at));
    const number = best.curve.steps[place];
    if (number < 0) return [null, `${labelOf(best.name)} was ${count(best.curve.values[place])} already when the timeline began, or behind a gap: no frame that is known made it so.`];
    return [timeline.step(number)];
  };

  // --- drawing ----------------------------------------------------------------------------------------

  const soon = () => {
    if (!waiting && !ended) waiting = requestAnimationFrame(frame);
  };

  const frame = (now) => {
    waiting = 0;
    if (now - last < FRAME_MS) {
      soon();
      return;
    }
    last = now;
    draw();
  };

  const colours = () => {
    const style = getComputedStyle(element);
    const of = (name) => style.getPropertyValue(name).trim();
    return { of, text: of("--text"), muted: of("--muted"), line: of("--line"), strong: of("--line-strong"), surface: of("--surface"), accent: of("--accent"), warn: of("--warn"), raised: of("--raised") };
  };

  const arrange = () => {
    const seen = (names = []) => names.filter((name) => present(name) && !off.has(name));
    const kept = PANES.filter((each) => each.frames || present(each.curves[0]))
      .map((each) => ({ ...each, shown: seen(each.curves), states: seen(each.bands) }))
      .filter((each) => each.frames || each.shown.length);
    let top = TOP;
    panes = kept.map((each) => {
      const pane = { ...each, top, height: each.tall * UNIT };
      top += pane.height + GAP;
      return pane;
    });
    return top + AXIS - GAP + 4;
  };

  const present = (name) => timeline.curves.get(name)?.values.some((each) => each !== null);

  const draw = () => {
    const height = arrange();
    const width = element.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    if (width !== size.width || height !== size.height || ratio !== size.ratio) {
      size = { width, height, ratio };
      fit(canvas, width, height, ratio);
      fit(brush, width, BRUSH, ratio);
    }
    if (!width) return;
    if (state.following && timeline.now) {
      const length = state.touched ? lengthOf(state.span) : Math.min(FIRST_SPAN_MS, Math.max(timeline.now * 1.02, 1000));
      const to = Math.max(timeline.now + length * 0.02, timeline.first + length);
      state.span = { from: to - length, to };
    }
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    paint.font = `11px ${getComputedStyle(element).fontFamily}`;
    const inks = colours();
    drawGrid(paint, inks);
    for (const pane of panes) {
      paint.save();
      paint.beginPath();
      paint.rect(LEFT, pane.top, plot(), pane.height);
      paint.clip();
      if (pane.frames) drawFrames(paint, inks, pane);
      else drawCurves(paint, inks, pane);
      paint.restore();
    }
    drawGaps(paint, inks);
    drawLines(paint, inks);
    drawBrush(inks);
    drawLegend();
  };

  const drawGrid = (paint, inks) => {
    const { step, ticks } = timeTicks(state.span, Math.max(2, Math.floor(plot() / 110)));
    paint.lineWidth = 1;
    paint.textBaseline = "top";
    for (const at of ticks) {
      const px = Math.round(x(at)) + 0.5;
      paint.strokeStyle = inks.line;
      for (const pane of panes) line(paint, px, pane.top, px, pane.top + pane.height);
      if (px > LEFT + 16 && px < size.width - 24) write(paint, timeText(at, step), px, bottom() + 7, inks.muted, "center");
    }
    paint.textBaseline = "middle";
    for (const pane of panes) {
      if (!pane.frames) scaleOf(pane, paint, inks);
      paint.strokeStyle = inks.strong;
      line(paint, LEFT, Math.round(pane.top + pane.height) + 0.5, LEFT + plot(), Math.round(pane.top + pane.height) + 0.5);
    }
  };

  const scaleOf = (pane, paint, inks) => {
    const extents = pane.shown.map((name) => extent(timeline.curves.get(name), state.span)).filter(Boolean);
    const floor = pane.grows && extents.length ? Math.min(...extents.map(([least]) => least)) : 0;
    const axis = scale(extents.map(([, greatest]) => greatest), floor);
    pane.y = (value) => pane.top + pane.height - 3 - axis.share(value) * (pane.height - 12);
    const seen = [];
    for (const tick of axis.ticks) {
      const py = Math.round(pane.y(tick)) + 0.5;
      if (py < pane.top - 1 || seen.some((each) => Math.abs(each - py) < 12)) continue;
      seen.push(py);
      paint.strokeStyle = inks.line;
      line(paint, LEFT, py, LEFT + plot(), py);
      write(paint, short(tick), LEFT - 7, Math.max(py, pane.top + 5), inks.muted, "right");
    }
    if (axis.log) write(paint, "log", 6, pane.top + pane.height / 2, inks.muted);
  };

  const drawCurves = (paint, inks, pane) => {
    const end = Math.min(timeline.now, state.span.to);
    for (const name of pane.states) {
      const ink = inks.of(CURVES[name].colour);
      paint.fillStyle = ink;
      for (const band of bands(timeline.curves.get(name), state.span, timeline.now)) {
        const from = Math.max(x(band.from), LEFT);
        const width = Math.max(x(Math.min(band.to, end)) - from, 1.5);
        paint.globalAlpha = 0.16;
        paint.fillRect(from, pane.top, width, pane.height);
        paint.globalAlpha = 0.9;
        paint.fillRect(from, pane.top, width, 3);
        paint.globalAlpha = 1;
        if (width > paint.measureText(labelOf(name)).width + 10) write(paint, labelOf(name), from + 5, pane.top + 11, ink);
      }
    }
    for (const name of pane.shown) {
      const curve = timeline.curves.get(name);
      const style = CURVES[name];
      paint.strokeStyle = inks.of(style.colour);
      const places = drawn(curve, state.span, Math.floor(plot()));
      // Where steps stand so close that no dash can be seen, dashes would only cost time.
      const dense = places.length > plot();
      paint.lineWidth = dense ? 1 : style.wide ? 2 : 1.6;
      paint.setLineDash(dense ? [] : style.dash);
      stairs(paint, curve, places, state.span, pane.y, end);
      paint.setLineDash([]);
    }
  };

  /** A curve that holds each value until the next one; where there is none, it has a gap, or `none`. */
  const stairs = (paint, curve, places, span, y, end, none = null) => {
    paint.beginPath();
    let before = null;
    for (const place of places) {
      const px = x(Math.max(curve.times[place], span.from), span);
      const value = curve.values[place] ?? none;
      if (before !== null) paint.lineTo(px, before);
      if (typeof value !== "number") {
        before = null;
        continue;
      }
      const py = y(value);
      if (before === null) paint.moveTo(px, py);
      else paint.lineTo(px, py);
      before = py;
    }
    if (before !== null && end > span.from) paint.lineTo(x(end, span), before);
    paint.stroke();
  };

  const drawFrames = (paint, inks, pane) => {
    const middle = pane.top + pane.height / 2;
    const lane = pane.height / 2 - 5;
    const base = { out: pane.top + 3, in: pane.top + pane.height - 3 };
    paint.strokeStyle = inks.line;
    line(paint, LEFT, middle, LEFT + plot(), middle);
    const found = [...traffic(timeline, state.span, Math.floor(plot()), wanted).values()].sort((one, other) => one.column - other.column);
    const sparse = found.length * 9 < plot();
    if (!found.length) write(paint, "no frame in this time", LEFT + plot() / 2, middle - 12, inks.muted, "center");
    // Grants are written in a line of their own, so that no settlement stands in their place.
    const written = {};
    for (const each of found) {
      const px = found.length && each.steps === 1 ? x(each.first.at) : LEFT + each.column + 0.5;
      const down = each.direction === "out" ? 1 : -1;
      const many = Math.min(1, Math.log2(1 + each.frames) / 9);
      const part = each.kind === "flow" ? 1 : each.kind === "message" ? 0.42 + 0.4 * many : 0.22 + 0.25 * many;
      const from = base[each.direction];
      const to = from + down * lane * part;
      const ink = inks.of({ flow: "--flow-0", message: "--flow-8", settle: "--flow-2", other: "--flow-9" }[each.kind]);
      paint.globalAlpha = each.own ? 1 : 0.35;
      paint.strokeStyle = ink;
      paint.fillStyle = ink;
      paint.lineWidth = each.kind === "flow" ? 2 : 1.25;
      paint.setLineDash(each.kind === "settle" ? [2, 2] : []);
      line(paint, px, from, px, to);
      paint.setLineDash([]);
      head(paint, px, to, down, each.kind, sparse);
      const flags = ["drain", "echo"].filter((mark) => each.marks.has(mark));
      if (flags.length) flag(paint, inks, px + 5, from + down * (lane - 9), flags.map((mark) => mark.toUpperCase()[0]).join(""));
      const row = `${each.direction} ${each.kind === "flow"}`;
      if (sparse && px > (written[row] ?? -Infinity)) {
        const text = each.steps === 1 && each.frames < 2 ? wordsOf(each.first) : `${wordsOf(each.first)} \u00d7${count(each.frames)}`;
        const left = px + (flags.length ? 24 : 7);
        write(paint, text, left, from + down * (each.kind === "flow" ? lane - 9 : 8), inks.muted);
        written[row] = left + paint.measureText(text).width + 6;
      }
      paint.globalAlpha = 1;
    }
  };

  const drawGaps = (paint, inks) => {
    const veil = (from, to, text) => {
      const [left, right] = [Math.max(x(from), LEFT), Math.min(x(to), LEFT + plot())];
      if (right - left < 0.5) return;
      const height = bottom() - TOP;
      paint.save();
      paint.beginPath();
      paint.rect(left, TOP, Math.max(right - left, 2), height);
      paint.clip();
      paint.fillStyle = inks.raised;
      paint.fillRect(left, TOP, right - left, height);
      paint.strokeStyle = inks.strong;
      paint.lineWidth = 1;
      for (let px = left - height; px < right; px += 9) line(paint, px, TOP + height, px + height, TOP);
      paint.restore();
      const room = paint.measureText(text).width + 12;
      if (right - left > room) {
        const middle = (left + right) / 2;
        paint.fillStyle = inks.surface;
        paint.fillRect(middle - room / 2, TOP + 6, room, 18);
        write(paint, text, middle, TOP + 15, inks.warn, "center");
      }
    };
    for (const gap of timeline.gaps) veil(gap.from, gap.to, `${count(gap.lost)} steps lost`);
    if (timeline.dropped) veil(-1e12, timeline.first, `${count(timeline.dropped)} older steps left out`);
    paint.textBaseline = "middle";
    for (const pane of panes) {
      paint.save();
      paint.font = `600 ${paint.font}`;
      write(paint, pane.title, LEFT, pane.top - 8, inks.text);
      paint.restore();
      if (!pane.frames) continue;
      write(paint, "to client \u2193", LEFT - 7, pane.top + pane.height * 0.25, inks.muted, "right");
      write(paint, "of client \u2191", LEFT - 7, pane.top + pane.height * 0.75, inks.muted, "right");
    }
  };

  const drawLines = (paint, inks) => {
    const nowPx = x(timeline.now);
    if (nowPx > LEFT && nowPx < LEFT + plot()) {
      paint.strokeStyle = inks.strong;
      paint.setLineDash([1, 3]);
      line(paint, nowPx, TOP, nowPx, bottom());
      paint.setLineDash([]);
    }
    const upright = (at, ink, width) => {
      const px = x(at);
      if (px < LEFT || px > LEFT + plot()) return;
      paint.strokeStyle = ink;
      paint.lineWidth = width;
      line(paint, px, TOP, px, bottom());
      for (const pane of panes) {
        for (const name of pane.shown) {
          const value = valueAt(timeline.curves.get(name), at);
          if (typeof value !== "number") continue;
          paint.fillStyle = inks.surface;
          paint.strokeStyle = inks.of(CURVES[name].colour);
          paint.lineWidth = 2;
          paint.beginPath();
          paint.arc(px, pane.y(value), 3, 0, 7);
          paint.fill();
          paint.stroke();
        }
      }
    };
    const at = state.pointer ? timeAt(state.pointer.x) : null;
    if (at !== null && at <= timeline.now && at >= timeline.first) upright(at, inks.muted, 1);
    if (state.selected) upright(state.selected.at, inks.accent, 1.5);
    values = new Map(Object.entries(timeline.valuesAt(at !== null ? Math.min(at, timeline.now) : state.selected?.at ?? timeline.now)));
  };

  /** All of the time, drawn anew now and then: it has every step. */
  const drawWhole = (inks) => {
    const { ratio, width } = size;
    const now = performance.now();
    const key = `${width} ${ratio} ${inks.surface} ${state.others}`;
    if (overview.key === key && now - overview.at < WHOLE_MS) {
      overview.timer ||= setTimeout(() => { overview.timer = 0; soon(); }, WHOLE_MS);
      return;
    }
    if (overview.key === key && overview.known === timeline.now) return;
    Object.assign(overview, { key, at: now, known: timeline.now, span: bounds() });
    fit(overview.canvas, width, BRUSH, ratio);
    const paint = overview.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const whole = overview.span;
    paint.fillStyle = inks.raised;
    paint.fillRect(LEFT, 2, plot(), BRUSH - 6);
    const columns = Math.floor(plot() / 2);
    const heights = { in: new Float64Array(columns), out: new Float64Array(columns) };
    for (const each of traffic(timeline, whole, columns, wanted).values()) heights[each.direction][each.column] += each.frames;
    const most = Math.max(1, ...heights.in, ...heights.out);
    const half = (BRUSH - 6) / 2;
    paint.fillStyle = inks.strong;
    for (let column = 0; column < columns; column += 1) {
      for (const [direction, sign] of [["out", -1], ["in", 1]]) {
        const share = Math.log2(1 + heights[direction][column]) / Math.log2(1 + most);
        if (share) paint.fillRect(LEFT + column * 2, 2 + half, 1.6, sign * share * (half - 2));
      }
    }
    const main = ["credit", "unacknowledged", "channel_unacknowledged"].map((name) => timeline.curves.get(name)).find((curve) => curve?.values.some((each) => typeof each === "number"));
    if (main) {
      const top = Math.max(1, extent(main, whole)?.[1] ?? 1);
      paint.strokeStyle = inks.of("--flow-0");
      paint.lineWidth = 1.25;
      stairs(paint, main, drawn(main, whole, columns), whole, (value) => BRUSH - 6 - (value / top) * (BRUSH - 12), timeline.now, 0);
    }
  };

  const drawBrush = (inks) => {
    drawWhole(inks);
    const paint = brush.getContext("2d");
    const { ratio, width } = size;
    paint.setTransform(1, 0, 0, 1, 0, 0);
    paint.clearRect(0, 0, brush.width, brush.height);
    paint.drawImage(overview.canvas, 0, 0);
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const inside = (at) => Math.min(Math.max(x(at, overview.span), LEFT), LEFT + plot());
    const [left, right] = [inside(state.span.from), inside(state.span.to)];
    paint.fillStyle = inks.surface;
    paint.globalAlpha = 0.62;
    paint.fillRect(LEFT, 2, left - LEFT, BRUSH - 6);
    paint.fillRect(right, 2, LEFT + plot() - right, BRUSH - 6);
    paint.globalAlpha = 1;
    paint.strokeStyle = inks.accent;
    paint.lineWidth = 1.5;
    paint.strokeRect(left, 2.5, Math.max(right - left, 2), BRUSH - 7);
    paint.fillStyle = inks.accent;
    for (const px of [left, right]) paint.fillRect(px - 2, BRUSH / 2 - 10, 4, 16);
    paint.font = `11px ${getComputedStyle(element).fontFamily}`;
    paint.textBaseline = "middle";
    write(paint, "all", LEFT - 7, BRUSH / 2 - 1, inks.muted, "right");
  };

  const buttons = new Map();
  const drawLegend = () => {
    const names = PANES.flatMap((pane) => [...(pane.curves ?? []), ...(pane.bands ?? [])]).filter((name, place, all) => present(name) && all.indexOf(name) === place);
    if (names.some((name) => !buttons.has(name))) {
      for (const name of names) if (!buttons.has(name)) buttons.set(name, legendButton(name));
      put(legend, names.map((name) => buttons.get(name).element));
    }
    for (const name of names) buttons.get(name).show(values.get(name), off.has(name));
  };

  const legendButton = (name) => {
    const { label, colour, dash, band, help } = CURVES[name];
    const sample = s("svg", { class: "flow-sample", viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true", style: { color: `var(${colour})` } },
      band ? s("rect", { x: 1, y: 1, width: 24, height: 8, fill: "currentColor", "fill-opacity": 0.35 }) : s("line", { x1: 0, y1: 5, x2: 26, y2: 5, stroke: "currentColor", "stroke-width": 2.4, "stroke-dasharray": dash.join(" ") || null }));
    const value = h("b");
    let told = "";
    const element = h("button", { type: "button", class: "flow-key", title: help, "aria-pressed": "true", onclick: () => { if (!off.delete(name)) off.add(name); soon(); } }, sample, h("span", null, label), value);
    return {
      element,
      show: (each, hidden) => {
        const text = textOf(each);
        if (`${text} ${hidden}` === told) return;
        told = `${text} ${hidden}`;
        put(value, text);
        element.setAttribute("aria-pressed", String(!hidden));
      },
    };
  };

  const drawTip = () => {
    const at = state.pointer && !state.dragging ? timeAt(state.pointer.x) : null;
    const near = at === null ? null : nearestTo(at);
    tip.hidden = at === null || at > timeline.now || at < timeline.first;
    if (tip.hidden) return;
    const step = timeTicks(state.span, plot() / 8).step;
    const changes = near ? Object.entries(near.values).map(([name, each]) => `${labelOf(name)} ${typeof each === "number" ? count(each) : String(each)}`) : [];
    put(
      tip,
      h("b", null, timeText(near ? near.at : at, near ? 0.001 : step)),
      near?.direction ? h("span", null, near.direction === "in" ? " \u2191 " : " \u2193 ", visible(wordsOf(near)), near.frames > 1 ? ` \u00d7${count(near.frames)}` : "") : near ? h("span", null, " queue or writer") : null,
      changes.length ? h("p", null, visible(changes.join(", "))) : null,
    );
    const { width } = tip.getBoundingClientRect();
    tip.style.setProperty("left", `${Math.min(Math.max(state.pointer.x + 12, 4), size.width - width - 4)}px`);
    tip.style.setProperty("top", `${Math.max(state.pointer.y - 54, 2)}px`);
  };

  // --- pointer, wheel, keys ---------------------------------------------------------------------------

  const place = (event, of = canvas) => {
    const { left, top } = of.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  };
  const fingers = new Map();
  let grip = null;

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    grip = { span: state.span, at: [...fingers.values()], moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = place(event);
    state.pointer = here;
    if (fingers.has(event.pointerId) && grip) {
      fingers.set(event.pointerId, here);
      const now = [...fingers.values()];
      const length = lengthOf(grip.span);
      if (now.length === 2 && grip.at.length === 2) {
        const [before, after] = [grip.at, now].map(([one, other]) => ({ far: Math.max(Math.abs(one.x - other.x), 12), middle: (one.x + other.x) / 2 }));
        const at = timeAt(before.middle, grip.span);
        const long = length * (before.far / after.far);
        const from = at - ((after.middle - LEFT) / plot()) * long;
        grip.moved = true;
        look({ from, to: from + long });
      } else if (now.length === 1 && (grip.moved || Math.abs(now[0].x - grip.at[0].x) > 3)) {
        grip.moved = true;
        state.dragging = true;
        const by = ((grip.at[0].x - now[0].x) / plot()) * length;
        look({ from: grip.span.from + by, to: grip.span.to + by });
      }
    }
    drawTip();
    soon();
  });
  const release = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const clicked = grip && !grip.moved && event.type === "pointerup" && !fingers.size;
    state.dragging = false;
    if (clicked) {
      const at = place(event);
      if (at.x >= LEFT - 4) select(...causeAt(at.x, at.y));
    }
    grip = fingers.size ? { span: state.span, at: [...fingers.values()], moved: true } : null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    state.pointer = null;
    tip.hidden = true;
    soon();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1000);
    else zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) / 300), timeAt(place(event).x));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.25, timeAt(place(event).x)));

  const KEYS = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    ArrowLeft: (event) => pan(event.shiftKey ? -0.8 : -0.1),
    ArrowRight: (event) => pan(event.shiftKey ? 0.8 : 0.1),
    Home: () => look({ from: bounds().from, to: bounds().from + lengthOf(state.span) }),
    End: () => look({ from: bounds().to - lengthOf(state.span), to: bounds().to }, true),
    ",": () => beside(-1),
    ".": () => beside(1),
    Enter: () => beside(1),
    0: () => look(bounds()),
    f: () => look(state.span, !state.following),
    Escape: () => select(null),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act(event);
  });

  let hold = null;
  brush.addEventListener("pointerdown", (event) => {
    brush.setPointerCapture(event.pointerId);
    const whole = overview.span;
    const px = place(event, brush).x;
    const begin = timeAt(px, whole);
    const edge = (at) => Math.abs(px - x(at, whole)) < 7;
    const { from, to } = state.span;
    const part = edge(to) ? "to" : edge(from) ? "from" : "all";
    if (part === "all" && (begin < from || begin > to)) look({ from: begin - (to - from) / 2, to: begin + (to - from) / 2 });
    hold = { part, whole, begin, span: state.span };
  });
  brush.addEventListener("pointermove", (event) => {
    if (!hold) return;
    const by = timeAt(place(event, brush).x, hold.whole) - hold.begin;
    const { from, to } = hold.span;
    if (hold.part === "all") look({ from: from + by, to: to + by });
    else if (hold.part === "from") look({ from: Math.min(from + by, to - 0.01), to });
    else look({ from, to: Math.max(to + by, from + 0.01) });
  });
  for (const each of ["pointerup", "pointercancel"]) brush.addEventListener(each, () => { hold = null; });

  const resized = new ResizeObserver(soon);
  resized.observe(element);
  const themed = new MutationObserver(soon);
  themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  return {
    element,
    canvas,
    soon,
    draw,
    look,
    zoom,
    select,
    beside,
    wanted,
    span: () => state.span,
    following: () => state.following,
    follow: (following) => look(state.span, following),
    showOthers: (others) => {
      state.others = others;
      soon();
    },
    whole: () => look(bounds()),
    stop: () => {
      ended = true;
      cancelAnimationFrame(waiting);
      clearTimeout(overview.timer);
      resized.disconnect();
      themed.disconnect();
    },
  };
}

export function labelOf(name) {
  return CURVES[name]?.label ?? name;
}

/** A value of a curve or state. */
export function textOf(value) {
  if (value === null || value === undefined) return NOTHING;
  return typeof value === "boolean" ? (value ? "yes" : "no") : count(value);
}

function lengthOf({ from, to }) {
  return to - from;
}

function write(paint, text, px, py, ink, align = "left") {
  paint.fillStyle = ink;
  paint.textAlign = align;
  paint.fillText(text, px, py);
}

/** A frame in two words: what it is, and of a flow what it grants. */
function wordsOf(step) {
  const word = step.frame.split(" ", 1)[0];
  const grant = step.kind === "flow" ? / (?:link-credit|prefetch-count)=(\d+)/.exec(step.frame) : null;
  return grant ? `${word} ${grant[1]}` : word;
}

function fit(canvas, width, height, ratio) {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.setProperty("height", `${height}px`);
}

function line(paint, x1, y1, x2, y2) {
  paint.beginPath();
  paint.moveTo(x1, y1);
  paint.lineTo(x2, y2);
  paint.stroke();
}

/** The end of an arrow; each kind of frame has its own. */
function head(paint, px, py, down, kind, large) {
  const size = large ? 4 : 2;
  paint.beginPath();
  if (kind === "flow") {
    paint.moveTo(px, py + down * size * 0.4);
    paint.lineTo(px - size * 1.2, py - down * size);
    paint.lineTo(px, py - down * size * 2.4);
    paint.lineTo(px + size * 1.2, py - down * size);
  } else if (kind === "other") {
    paint.rect(px - size * 0.75, py - size * 0.75, size * 1.5, size * 1.5);
  } else {
    paint.moveTo(px, py);
    paint.lineTo(px - size * 0.8, py - down * size * 1.6);
    paint.lineTo(px + size * 0.8, py - down * size * 1.6);
  }
  paint.fill();
}

/** Letters in a box: D of a drain, E of an echo. */
function flag(paint, inks, px, py, text) {
  const width = paint.measureText(text).width + 6;
  paint.fillStyle = inks.warn;
  paint.fillRect(px, py - 7, width, 14);
  write(paint, text, px + 3, py, inks.surface);
}
