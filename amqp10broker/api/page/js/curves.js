/**
 * What a timeline says, as curves over time: arithmetic alone, no element and no clock.
 *
 * A curve holds its value from one step to the next. Times are milliseconds since the watch began.
 *
 * @typedef {object} Step
 * @property {number} number
 * @property {number} at
 * @property {"in" | "out" | null} direction
 * @property {number} frames that it stands for
 * @property {boolean} link it is about the link itself
 * @property {string} frame
 * @property {string} bytes hexadecimal
 * @property {string[]} marks
 * @property {Object<string, any>} values those that changed
 * @property {"message" | "settle" | "flow" | "other"} kind what the frame is to the flow: a message, its settlement, a
 *   grant, or another thing
 *
 * @typedef {{times: number[], values: any[], steps: number[]}} Curve `steps`: the number of the step that made each
 *   value; -1 for what was there when it began
 * @typedef {{from: number, to: number}} Span
 */

const KEPT_MAX = 100_000;
const NS_PER_MS = 1e6;
const SPAN_MIN_MS = 0.01;

/** All that is known of one watch. */
export class Timeline {
  /** @param {{began_ns: number, began_at_ns: number}} watched as the API has begun it */
  constructor(watched) {
    this.watched = watched;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Map<string, Curve>} */
    this.curves = new Map();
    /** @type {{from: number, to: number, lost: number}[]} */
    this.gaps = [];
    this.ended = null;
    /** Until when everything is known. */
    this.now = 0;
    this.next = 0;
    this.dropped = 0;
  }

  /** Take an answer of the API; what was taken before is left out. @returns {boolean} whether there was a new step */
  take(answer) {
    const before = this.steps.length + this.dropped;
    const lost = answer.since - this.next;
    if (!this.curves.size) for (const [name, value] of Object.entries(answer.start)) this.#put(name, 0, value, -1);
    if (lost > 0) {
      const to = answer.steps.length ? this.#at(answer.steps[0].at_ns) : this.#at(answer.now_ns);
      this.gaps.push({ from: this.lastAt, to, lost });
      for (const [name, value] of Object.entries(answer.start)) this.#put(name, to, value, -1);
      this.next = answer.since;
    }
    for (const each of answer.steps) {
      if (each.number < this.next) continue;
      const at = this.#at(each.at_ns);
      const { number, direction = null, frames = 0, link, frame = "", bytes = "", marks = [], values } = each;
      this.steps.push({ number, at, direction, frames, link, frame, bytes, marks, values, kind: kindOf(frame, marks) });
      for (const [name, value] of Object.entries(each.values)) this.#put(name, at, value, each.number);
      this.next = each.number + 1;
    }
    // What has ended holds its values no longer.
    if (!answer.more && !answer.ended) this.now = Math.max(this.now, this.#at(answer.now_ns));
    this.now = Math.max(this.now, this.lastAt);
    this.ended = answer.ended;
    if (this.steps.length > KEPT_MAX) this.#drop(Math.floor(KEPT_MAX / 5));
    return this.steps.length + this.dropped > before;
  }

  get lastAt() {
    return this.steps.length ? this.steps.at(-1).at : 0;
  }

  /** From when on something is known. */
  get first() {
    return this.dropped ? this.steps[0].at : 0;
  }

  step(number) {
    const place = number - (this.steps[0]?.number ?? 0);
    if (this.steps[place]?.number === number) return this.steps[place];
    return this.steps[lowest(this.steps.length, (each) => this.steps[each].number >= number)];
  }

  /** The step that is next to a time, no further away than so. @returns {Step | null} */
  nearest(at, wanted = () => true, within = Infinity) {
    const place = lowest(this.steps.length, (each) => this.steps[each].at >= at);
    const behind = this.#found(place, 1, wanted);
    const before = this.#found(place - 1, -1, wanted);
    const found = !behind || (before && at - before.at <= behind.at - at) ? before : behind;
    return found && Math.abs(found.at - at) <= within ? found : null;
  }

  /** The step behind another one, or before it. @param {Step} step @param {1 | -1} direction @returns {Step | null} */
  beside(step, direction, wanted = () => true) {
    const place = lowest(this.steps.length, (each) => this.steps[each].number >= step.number);
    return this.#found(place + direction, direction, wanted);
  }

  /** Steps of a span, as places of `steps`: from one, to before another. */
  within({ from, to }) {
    return [lowest(this.steps.length, (each) => this.steps[each].at >= from), lowest(this.steps.length, (each) => this.steps[each].at > to)];
  }

  /** All values behind everything that happened until a time. */
  valuesAt(at) {
    return Object.fromEntries([...this.curves].map(([name, curve]) => [name, valueAt(curve, at)]));
  }

  /** A value just before a step. */
  valueBefore(name, step) {
    const curve = this.curves.get(name);
    const place = curve.steps.lastIndexOf(step.number);
    return place > 0 ? curve.values[place - 1] : undefined;
  }

  /** All of it, for a file; the same form as `amqp10broker timeline` writes. */
  exported() {
    const start = Object.fromEntries([...this.curves].map(([name, curve]) => [name, curve.values[0]]));
    const at_ns = (at) => this.watched.began_ns + Math.round(at * NS_PER_MS);
    return {
      watched: this.watched,
      now_ns: at_ns(this.now),
      since: this.steps[0]?.number ?? this.next,
      next: this.next,
      ended: this.ended,
      gaps: this.gaps.map(({ from, to, lost }) => ({ from_ns: at_ns(from), to_ns: at_ns(to), lost })),
      start,
      steps: this.steps.map(({ at, kind, ...step }) => ({ ...step, at_ns: at_ns(at) })),
    };
  }

  #at(at_ns) {
    return (at_ns - this.watched.began_ns) / NS_PER_MS;
  }

  #put(name, at, value, step) {
    let curve = this.curves.get(name);
    if (!curve) this.curves.set(name, (curve = { times: [], values: [], steps: [] }));
    if (curve.values.length && curve.values.at(-1) === value && step < 0) return;
    curve.times.push(at);
    curve.values.push(value);
    curve.steps.push(step);
  }

  #found(place, direction, wanted) {
    for (let each = place; each >= 0 && each < this.steps.length; each += direction) {
      if (wanted(this.steps[each])) return this.steps[each];
    }
    return null;
  }

  #drop(count) {
    this.dropped += count;
    this.steps.splice(0, count);
    const from = this.steps[0].at;
    for (const curve of this.curves.values()) {
      const kept = Math.max(0, lowest(curve.times.length, (each) => curve.times[each] >= from) - 1);
      for (const list of [curve.times, curve.values, curve.steps]) list.splice(0, kept);
    }
    this.gaps = this.gaps.filter(({ to }) => to >= from);
  }
}

/** The first place of a list of which something is true, as it is of all behind it. */
function lowest(length, is) {
  let [from, to] = [0, length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (is(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** The place of a curve's last value until a time; -1 before the first. */
export function placeAt({ times }, at) {
  return lowest(times.length, (each) => times[each] > at) - 1;
}

/** The value of a curve at a time; undefined before the first. */
export function valueAt(curve, at) {
  return curve.values[placeAt(curve, at)];
}

/**
 * The places of a curve that are drawn of a span of time, in order from the one that holds when it begins: all of them,
 * or where they are more than a picture has columns, of each column the first, the last, the least and the greatest. So
 * every extremum is drawn, and nothing that is not there.
 *
 * @param {Curve} curve @param {Span} span @param {number} columns @returns {number[]}
 */
export function drawn(curve, { from, to }, columns) {
  const { times, values } = curve;
  const begin = Math.max(0, placeAt(curve, from));
  const end = placeAt(curve, to) + 1;
  const places = [];
  if (end - begin <= columns * 2) {
    for (let each = begin; each < end; each += 1) places.push(each);
    return places;
  }
  const width = (to - from) / columns;
  for (let place = begin; place < end; ) {
    const column = Math.floor((times[place] - from) / width);
    let [least, greatest, last] = [place, place, place];
    for (; last < end && Math.floor((times[last] - from) / width) === column; last += 1) {
      if (values[last] < values[least]) least = last;
      if (values[last] > values[greatest]) greatest = last;
    }
    for (const each of [...new Set([place, least, greatest, last - 1])].sort((one, other) => one - other)) places.push(each);
    place = last;
  }
  return places;
}

/** When a curve of truth values, which ends now, is true. @returns {Span[]} */
export function bands(curve, { from, to }, now) {
  const found = [];
  const begin = Math.max(0, placeAt(curve, from));
  for (let place = begin; place < curve.times.length && curve.times[place] <= to; place += 1) {
    if (curve.values[place] === true) found.push({ from: curve.times[place], to: curve.times[place + 1] ?? now });
  }
  return found;
}

function kindOf(frame, marks) {
  if (marks.includes("flow") || marks.includes("qos")) return "flow";
  return KINDS[frame.split(" ", 1)[0]] ?? "other";
}

const KIND_PLACES = { message: 0, settle: 4, flow: 8, other: 12 };
const KINDS = {
  TRANSFER: "message",
  "basic.publish": "message",
  "basic.deliver": "message",
  "basic.get-ok": "message",
  "basic.return": "message",
  DISPOSITION: "settle",
  "basic.ack": "settle",
  "basic.nack": "settle",
  "basic.reject": "settle",
};

/**
 * Frames of a span of time, by the column of the picture that they are in.
 *
 * @returns {Map<number, {column: number, direction: "in" | "out", kind: string, frames: number, own: boolean, marks: Set<string>, first: Step, steps: number}>}
 */
export function traffic(timeline, span, columns, wanted) {
  const found = new Map();
  const [begin, end] = timeline.within(span);
  const width = (span.to - span.from) / columns;
  for (let place = begin; place < end; place += 1) {
    const step = timeline.steps[place];
    if (!step.direction || !wanted(step)) continue;
    const column = Math.min(columns - 1, Math.floor((step.at - span.from) / width));
    const { kind } = step;
    const key = column * 16 + KIND_PLACES[kind] + (step.direction === "in" ? 2 : 0) + (step.link ? 1 : 0);
    let there = found.get(key);
    if (!there) found.set(key, (there = { column, direction: step.direction, kind, frames: 0, own: step.link, marks: new Set(), first: step, steps: 0 }));
    there.frames += step.frames;
    there.steps += 1;
    for (const mark of step.marks) there.marks.add(mark);
  }
  return found;
}

/** The least and the greatest value of a curve in a span. @returns {[number, number] | null} */
export function extent(curve, { from, to }) {
  const begin = Math.max(0, placeAt(curve, from));
  let [least, greatest] = [Infinity, -Infinity];
  for (let place = begin; place < curve.times.length && curve.times[place] <= to; place += 1) {
    const value = curve.values[place];
    if (typeof value !== "number") continue;
    if (value < least) least = value;
    if (value > greatest) greatest = value;
  }
  return least <= greatest ? [least, greatest] : null;
}

// --- the span that is looked at -----------------------------------------------------------------------

/** A span that lies in another one, as it is if it can. @returns {Span} */
export function clamped({ from, to }, bounds) {
  const length = Math.min(Math.max(to - from, SPAN_MIN_MS), Math.max(bounds.to - bounds.from, SPAN_MIN_MS));
  const begin = Math.min(Math.max(from, bounds.from), bounds.to - length);
  return { from: begin, to: begin + length };
}

/** A span, longer or (by a factor below 1) shorter, in which a time stays where it was. @returns {Span} */
export function zoomed({ from, to }, factor, at) {
  const length = Math.max((to - from) * factor, SPAN_MIN_MS);
  const share = (at - from) / (to - from);
  return { from: at - length * share, to: at + length * (1 - share) };
}

// --- axes ---------------------------------------------------------------------------------------------

const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5];

/** Times for an axis, so many at most. */
export function timeTicks({ from, to }, most) {
  const step = TIME_STEPS.find((each) => (to - from) / each <= most) ?? TIME_STEPS.at(-1);
  const ticks = [];
  for (let place = Math.ceil(from / step); place * step <= to; place += 1) ticks.push(place * step);
  return { step, ticks };
}

/** A time as text, as fine as the step of its axis: 1:05.250. */
export function timeText(at, step) {
  const digits = step >= 1000 ? 0 : step >= 1 ? 3 : 6;
  const sign = at < 0 ? "\u2212" : "";
  const seconds = Math.abs(at) / 1000;
  const minutes = Math.floor(seconds / 60 + 1e-9);
  const rest = Math.max(0, seconds - minutes * 60).toFixed(digits);
  return minutes ? `${sign}${minutes}:${rest.padStart(digits ? digits + 3 : 2, "0")}` : `${sign}${rest} s`;
}

export function lengthText(ms) {
  if (ms < 1) return `${Number((ms * 1000).toPrecision(3))} \u00b5s`;
  if (ms < 1000) return `${Number(ms.toPrecision(3))} ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toPrecision(3))} s`;
  return `${Number((ms / 60_000).toPrecision(3))} min`;
}

/**
 * A scale from 0 for whole numbers: linear, or where a few are very much larger than others, logarithmic.
 *
 * @param {number[]} tops of curves
 * @param {number} [floor] above 0 for numbers that only grow
 * @returns {{share: (value: number) => number, ticks: number[], log: boolean}} `share`: 0 below, 1 above
 */
export function scale(tops, floor = 0) {
  const top = Math.max(floor + 1, ...tops);
  const least = Math.min(...tops.filter((each) => each > 0), top);
  if (floor === 0 && top > 10_000 && top / least > 500) {
    const high = Math.ceil(Math.log10(top + 1));
    const every = Math.ceil(high / 4);
    const ticks = [0, ...Array.from({ length: Math.floor(high / every) }, (_, place) => 10 ** ((place + 1) * every))];
    return { share: (value) => Math.log10(1 + Math.max(value, 0)) / high, ticks, log: true };
  }
  const raw = (top - floor) / 3;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, [1, 2, 5, 10].map((each) => each * size).find((each) => each >= raw));
  const low = Math.floor(floor / step) * step;
  const high = Math.max(Math.ceil(top / step) * step, low + step);
  const ticks = [];
  for (let tick = low; tick <= high; tick += step) ticks.push(tick);
  return { share: (value) => (value - low) / (high - low), ticks, log: false };
}

/** Bytes in lines of 16: where, in hexadecimal, as text. */
export function dump(hex) {
  const pairs = hex.match(/../g) ?? [];
  const lines = [];
  for (let from = 0; from < pairs.length; from += 16) {
    const part = pairs.slice(from, from + 16);
    const text = part.map((each) => { const code = parseInt(each, 16); return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : "\u00b7"; }).join("");
    lines.push([from.toString(16).padStart(4, "0"), part.join(" ").padEnd(47), text]);
  }
  return lines;
}
