/**
 * What stands at paths of the API, as it changes, while the page is looked at: one stream of server-sent events for
 * all of them. EventSource cannot send a log-in, so the stream is read by `fetch`.
 *
 * @callback Hear
 * @param {any} value what stands there now; of a path that goes on where its last answer ended, each portion;
 *   undefined with an error
 * @param {import("./api.js").ApiError} [error] why it cannot be had now
 *
 * @typedef {{interval?: number, always?: boolean, grows?: boolean}} How `interval` in ms between two looks, the
 *   statistics' own if it is not given; `always` hears the value again where nothing has changed, for curves over
 *   time; `grows`: the path goes on where its last answer ended, so `again` leaves it alone
 */

import { ApiError } from "./api.js";

const ALWAYS_MS = 5000;
const GATHER_MS = 20;
const PATHS_MAX = 8;
const LARGE_MS = 15_000;
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

/** @param {number} failures in succession before this one; returns the time until the next attempt */
export const retryAfterMs = (failures) => RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];

/** Watches paths for one user. */
export class Live {
  /**
   * @param {import("./api.js").Api} api
   * @param {(state: "live" | "paused" | "lost") => void} told whether the broker answers
   */
  constructor(api, told) {
    this.api = api;
    this.told = told;
    this.watches = new Set();
    this.streams = [];
    this.paused = false;
    this.failures = 0;
    this.timer = 0;
    this.ended = new AbortController();
    document.addEventListener("visibilitychange", () => this.#soon(), { signal: this.ended.signal });
    this.ticker = setInterval(() => this.#tick(), ALWAYS_MS);
  }

  /**
   * Hear what stands at a path, at once and then as it changes.
   *
   * @param {string} path below `/api`, with its query
   * @param {Hear} hear
   * @param {How} [how]
   * @returns {() => void} ends it
   */
  watch(path, hear, how = {}) {
    const watch = { path, hear, how };
    this.watches.add(watch);
    this.#soon();
    return () => {
      this.watches.delete(watch);
      this.#soon();
    };
  }

  /** Look now: something was done. */
  again() {
    for (const watch of [...this.watches].filter((each) => !each.how.grows)) {
      this.api.get(watch.path, this.ended.signal).then(
        (value) => this.#tell(watch, value),
        (error) => this.#tell(watch, undefined, error),
      );
    }
  }

  /** @param {boolean} paused whether what is shown stays as it is */
  pause(paused) {
    this.paused = paused;
    this.told(paused ? "paused" : "live");
    this.#soon();
  }

  /** End all. */
  stop() {
    this.ended.abort();
    this.watches.clear();
    clearInterval(this.ticker);
    clearTimeout(this.timer);
    for (const stream of this.streams) stream.abort.abort();
  }

  /** Follow what is watched now, when all that changes at once has changed. */
  #soon(ms = GATHER_MS) {
    clearTimeout(this.timer);
    if (!this.ended.signal.aborted) this.timer = setTimeout(() => this.#follow(), ms);
  }

  #follow() {
    const quiet = document.hidden || this.paused;
    const watched = [...this.watches].filter((each) => !each.large && (!quiet || each.value === undefined));
    const groups = [];
    for (let first = 0; first < watched.length; first += PATHS_MAX) groups.push(watched.slice(first, first + PATHS_MAX));
    const same = (stream, group) => !stream.over && stream.watches.length === group.length && group.every((each, place) => each === stream.watches[place]);
    this.streams = this.streams.filter((stream) => {
      const kept = groups.findIndex((group) => same(stream, group));
      if (kept >= 0) groups.splice(kept, 1);
      else stream.abort.abort();
      return kept >= 0;
    });
    for (const group of groups) {
      const stream = { watches: group, abort: new AbortController(), over: false };
      this.streams.push(stream);
      this.#read(stream);
    }
  }

  async #read(stream) {
    const values = new Map();
    try {
      const query = new URLSearchParams(stream.watches.map((each) => ["path", each.path]));
      const intervals = stream.watches.map((each) => each.how.interval).filter(Boolean);
      if (intervals.length) query.set("interval", String(Math.min(...intervals)));
      const response = await this.api.ask("GET", `/live?${query}`, { signal: stream.abort.signal, headers: { accept: "text/event-stream" } });
      for await (const [event, told] of events(response.body)) {
        this.failures = 0;
        if (!this.paused) this.told("live");
        const watch = stream.watches[told.id];
        if (event === "refused" && told.status === 400) {
          watch.large = true;
          this.#ask(watch);
          continue;
        }
        if (event === "refused") {
          this.#tell(watch, undefined, new ApiError(told.status, told.error, told.reason));
          continue;
        }
        const value = event === "delta" ? changed(values.get(told.id), told.change) : told.value;
        values.set(told.id, value);
        this.#tell(watch, value);
      }
    } catch (error) {
      if (stream.abort.signal.aborted) return;
      if (error.status === 400) for (const watch of stream.watches) this.#tell(watch, undefined, error);
    }
    if (stream.abort.signal.aborted) return;
    stream.over = true;
    this.told("lost");
    this.#soon(retryAfterMs(this.failures));
    this.failures += 1;
  }

  /** Ask again and again for what is too large to be followed; where that is not what is wrong, it is told. */
  async #ask(watch) {
    this.#soon();
    while (this.watches.has(watch)) {
      if (watch.value === undefined || !(document.hidden || this.paused)) {
        try {
          this.#tell(watch, await this.api.get(watch.path, this.ended.signal));
        } catch (error) {
          this.#tell(watch, undefined, error);
        }
      }
      await new Promise((resolve) => setTimeout(resolve, LARGE_MS));
    }
  }

  #tell(watch, value, error) {
    if (!this.watches.has(watch)) return;
    watch.value = value;
    watch.hear(value, error);
    // It was wanted once, to have something to show.
    if (document.hidden || this.paused) this.#soon();
  }

  #tick() {
    if (document.hidden || this.paused || this.failures) return;
    for (const watch of this.watches) if (watch.how.always && watch.value !== undefined) watch.hear(watch.value);
  }
}

/** Events of a stream, with what they say. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const of = (field) => lines.find((each) => each.startsWith(`${field}: `))?.slice(field.length + 2);
      if (of("data") !== undefined) yield [of("event"), JSON.parse(of("data"))];
    }
  }
}

/** The value that a difference makes of the one before it, which stays as it is; `api/live.py` has what differences are. */
export function changed(value, change) {
  if ("to" in change) return change.to;
  if ("rows" in change) {
    const rows = change.order ? change.order.map((each) => (Array.isArray(each) ? each[0] : value[each])) : [...value];
    for (const [place, inner] of Object.entries(change.rows)) rows[place] = changed(rows[place], inner);
    return rows;
  }
  // Not by assignment: a member may have any name, also that of the prototype.
  const made = new Map(Object.entries(value));
  for (const each of change.gone) made.delete(each);
  for (const [name, inner] of Object.entries(change.members)) made.set(name, changed(made.get(name), inner));
  return Object.fromEntries(made);
}
