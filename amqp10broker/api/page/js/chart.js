/** Curves over time: a small one beside a number, and one with axes, values and a pointer. */

import { h, put, s } from "./dom.js";
import { NOTHING, count, rate, short, timeOfDay } from "./format.js";

const LENGTHS = [
  { key: "messages_ready", label: "ready" },
  { key: "messages_unacknowledged", label: "unacknowledged" },
];
const RATES = { publish: "publish", deliver_get: "deliver and get", ack: "acknowledge", confirm: "confirm", redeliver: "redeliver" };
const KEPT_MS = 600_000;
const GAP_MS = 30_000;
/** The pattern of each curve's line: colour is not all that tells them apart. */
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "12 4", "4 2"];

/** Values of several curves at the same times. */
export class History {
  constructor() {
    /** @type {{at: number, values: Object<string, number>}[]} */
    this.points = [];
  }

  /**
   * Begin with the samples that the API has kept.
   *
   * @param {Object<string, any> | undefined} values has objects with `samples`, as `KEY_details`
   * @param {{key: string}[]} curves
   * @param {boolean} counters they are counters, of which the change per second is shown
   */
  seed(values, curves, counters) {
    const found = new Map();
    for (const { key } of curves) {
      const samples = [...(values?.[`${key}_details`]?.samples ?? [])].reverse();
      for (let place = counters ? 1 : 0; place < samples.length; place += 1) {
        const { sample, timestamp } = samples[place];
        const before = samples[place - 1];
        const value = counters ? ((sample - before.sample) * 1000) / (timestamp - before.timestamp) : sample;
        found.set(timestamp, { ...found.get(timestamp), [key]: value });
      }
    }
    const first = this.points[0]?.at ?? Infinity;
    const seeded = [...found].map(([at, values]) => ({ at, values })).filter(({ at }) => at < first);
    this.points = [...seeded.sort((one, other) => one.at - other.at), ...this.points];
  }

  push(values, at = Date.now()) {
    this.points.push({ at, values });
    while (this.points[0].at < at - KEPT_MS) this.points.shift();
  }
}

/** A curve without axes. @param {History} history @param {string} key of the curve @param {string} label */
export function sparkline(history, key, label) {
  const [width, height] = [120, 28];
  const points = history.points.filter(({ values }) => typeof values[key] === "number");
  const picture = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (points.length < 2) return picture;
  const [from, to] = [points[0].at, points.at(-1).at];
  const top = Math.max(...points.map(({ values }) => values[key]), 1e-9);
  const line = points
    .map(({ at, values }) => `${fixed(((at - from) / (to - from)) * width)},${fixed(height - 2 - (Math.max(values[key], 0) / top) * (height - 4))}`)
    .join(" ");
  picture.append(
    s("polygon", { class: "area", points: `0,${height} ${line} ${width},${height}` }),
    s("polyline", { points: line, "vector-effect": "non-scaling-stroke" }),
  );
  return picture;
}

/**
 * A picture of a history with axes and a legend that says the values under the pointer, else the last ones.
 *
 * @param {History} history
 * @param {{label: string, curves: {key: string, label: string}[], format?: (value: number) => string,
 *   axis?: (value: number) => string}} options `format` of values, `axis` of the numbers beside the lines
 */
export function chart(history, { label, curves, format = count, axis = short }) {
  const picture = s("svg", { class: "chart", role: "img", "aria-label": label });
  const legend = h("div", { class: "legend" });
  const element = h("figure", { class: "figure" }, h("figcaption", null, label), picture, legend);
  const [left, right, top, bottom] = [56, 8, 8, 20];
  let pointer = null;

  const draw = () => {
    const width = Math.max(element.clientWidth - 24, 240);
    const height = 160;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("width", width);
    picture.setAttribute("height", height);
    const { points } = history;
    const to = points.length ? points.at(-1).at : Date.now();
    const from = Math.min(points.length ? points[0].at : to, to - 60_000);
    const highest = Math.max(0, ...points.flatMap(({ values }) => curves.map(({ key }) => values[key] ?? 0)));
    const steps = ticks(highest);
    const limit = steps.at(-1);
    const x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
    const y = (value) => height - bottom - (Math.max(value, 0) / limit) * (height - top - bottom);
    const near = pointer === null ? null : nearest(points, from + ((pointer - left) / (width - left - right)) * (to - from));
    put(
      picture,
      steps.map((each) => [
        s("line", { class: "grid", x1: left, x2: width - right, y1: fixed(y(each)), y2: fixed(y(each)) }),
        s("text", { x: left - 6, y: fixed(y(each) + 4), "text-anchor": "end" }, axis(each)),
      ]),
      times(from, to, width).map((each) => s("text", { x: fixed(x(each)), y: height - 5, "text-anchor": "middle" }, timeOfDay(each))),
      curves.map(({ key }, place) =>
        runs(points, key).map((run) =>
          s("polyline", {
            class: `curve c${place}`,
            "stroke-dasharray": DASHES[place],
            points: run.map(({ at, values }) => `${fixed(x(at))},${fixed(y(values[key]))}`).join(" "),
          }),
        ),
      ),
      near ? s("line", { class: "pointer", x1: fixed(x(near.at)), x2: fixed(x(near.at)), y1: top, y2: height - bottom }) : null,
    );
    const shown = near ?? points.at(-1);
    put(
      legend,
      curves.map(({ key, label: each }, place) =>
        h(
          "span",
          { class: "key" },
          s("svg", { class: "swatch", viewBox: "0 0 22 6", "aria-hidden": "true" }, s("line", { class: `curve c${place}`, "stroke-dasharray": DASHES[place], x1: 0, x2: 22, y1: 3, y2: 3 })),
          each,
          " ",
          h("b", null, shown && typeof shown.values[key] === "number" ? format(shown.values[key]) : NOTHING),
        ),
      ),
      near ? h("span", { class: "muted" }, timeOfDay(near.at)) : null,
    );
  };

  picture.addEventListener("pointermove", (event) => {
    pointer = event.clientX - picture.getBoundingClientRect().left;
    draw();
  });
  picture.addEventListener("pointerleave", () => {
    pointer = null;
    draw();
  });
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(element);
  return { element, draw };
}

/**
 * How many messages there are in a queue, or in all of them, and how many a second.
 *
 * @param {string} label of the first
 * @param {(keyof RATES)[]} keys the curves of the second
 */
export function messageCharts(label, keys) {
  const curves = keys.map((key) => ({ key, label: RATES[key] }));
  const [lengths, rates] = [new History(), new History()];
  const charts = [chart(lengths, { label, curves: LENGTHS }), chart(rates, { label: "Messages per second", curves, format: rate })];
  const draw = () => charts.forEach((each) => each.draw());
  return {
    element: h("div", { class: "charts" }, charts.map((each) => each.element)),
    lengths,
    rates,
    push: (totals, stats) => {
      lengths.push(totals);
      rates.push(Object.fromEntries(keys.map((key) => [key, stats?.[`${key}_details`]?.rate ?? 0])));
      draw();
    },
    /** Begin with what the API has kept. Without it, the curves begin now. */
    seed: async (context, where, totalsOf) => {
      const kept = await context.api.get(`${where}&lengths_age=600&lengths_incr=10&msg_rates_age=600&msg_rates_incr=10`).catch(() => ({}));
      lengths.seed(totalsOf(kept), [{ key: "messages" }, ...LENGTHS], false);
      rates.seed(kept.message_stats, curves, true);
      draw();
    },
  };
}

/** Points of a curve without those at which it is not known; long silence breaks it. */
function runs(points, key) {
  const found = [];
  let before = -Infinity;
  for (const point of points) {
    if (typeof point.values[key] !== "number") continue;
    if (point.at - before > GAP_MS) found.push([]);
    found.at(-1).push(point);
    before = point.at;
  }
  return found;
}

/** Round values from 0 to the first at or above the highest, four or so. */
function ticks(highest) {
  const least = Math.max(highest, 4) / 4;
  const size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * size).find((each) => each >= least);
  return Array.from({ length: Math.max(Math.ceil(highest / step), 1) + 1 }, (_, place) => place * step);
}

function times(from, to, width) {
  const many = Math.max(Math.floor(width / 160), 2);
  return Array.from({ length: many }, (_, place) => from + ((place + 0.5) / many) * (to - from));
}

function nearest(points, at) {
  return points.reduce((best, each) => (best && Math.abs(best.at - at) <= Math.abs(each.at - at) ? best : each), null);
}

function fixed(value) {
  return Math.round(value * 10) / 10;
}
