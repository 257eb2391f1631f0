/** What several views are made of. */

import { h, name, put, visible } from "./dom.js";
import { brief, duration } from "./format.js";
import { IDLE_WAITS } from "./tables.js";

/** @typedef {import("./dom.js").Child} Child */

/** Curves of how many messages queues hold. */
export const LENGTHS = [
  { key: "messages_ready", label: "ready" },
  { key: "messages_unacknowledged", label: "unacknowledged" },
];

/**
 * The head of a view: its title, what belongs beside it, and what can be done.
 *
 * @param {Child | Child[]} title
 * @param {{badges?: Child | Child[], actions?: Child | Child[], above?: Child | Child[]}} [options] `above`: where it belongs
 * @returns {HTMLElement}
 */
export function heading(title, { badges, actions, above } = {}) {
  return h(
    "header",
    { class: "heading" },
    h("div", { class: "title" }, above ? h("p", { class: "above" }, above) : null, h("h1", { tabindex: "-1" }, title), badges ? h("div", { class: "badges" }, badges) : null),
    actions ? h("div", { class: "acts" }, actions) : null,
  );
}

/**
 * A part of a view.
 *
 * @param {string | null | [string, ...Child[]]} title with what can be done beside it
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function panel(title, ...children) {
  const [text, ...acts] = Array.isArray(title) ? title : [title];
  const head = text ? h("h2", null, text) : null;
  return h("section", { class: "panel" }, acts.length ? h("div", { class: "panel-head" }, head, h("span", { class: "space" }), acts) : head, children);
}

/** @param {Child} text @param {"good" | "warn" | "bad" | "accent" | ""} [kind] @param {string} [title] @returns {HTMLElement} */
export function badge(text, kind = "", title) {
  return h("span", { class: `badge ${kind}`, title }, text);
}

const QUIET = new Set(["running", "up", "opened", "open"]);

/** A state in a word: what runs is quiet, the rest is not. @param {string} state @returns {HTMLElement} */
export function stateBadge(state) {
  if (QUIET.has(state)) return badge([dot("good"), state], "quiet");
  const bad = ["down", "crashed", "stopped", "minority", "terminated"].includes(state);
  return badge([dot(bad ? "bad" : "warn"), visible(state ?? "unknown")], bad ? "bad" : "warn");
}

function dot(kind) {
  return h("span", { class: `dot ${kind}`, "aria-hidden": "true" }, kind === "good" ? "\u25cf" : kind === "bad" ? "\u25b2" : "\u25c6");
}

/** Whether a link, channel or consumer waits for what it should not. @param {any} row @returns {boolean} */
export function waitsInVain(row) {
  return Boolean(row.waits) && !IDLE_WAITS.includes(row.waits);
}

/** Why a link, channel or consumer waits, and how long. @param {any} row @returns {HTMLElement} */
export function waitBadge(row) {
  if (!row.waits) return stateBadge("running");
  const long = typeof row.waits_for_s === "number" ? ` for ${duration(row.waits_for_s)}` : "";
  return badge(`${row.waits}${long}`, waitsInVain(row) ? "warn" : "", row.waits_why);
}

/**
 * A button; one that the user may not press says why.
 *
 * @param {string} label
 * @param {() => any} act
 * @param {{kind?: "primary" | "danger" | "small" | "small danger", refused?: string | null | false}} [options]
 * @returns {HTMLElement}
 */
export function button(label, act, { kind = "", refused } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick: act, disabled: Boolean(refused), title: refused || null }, label);
}

/** Names and values, in columns. @param {[string, Child | Child[]][]} pairs those without a value are left out @returns {HTMLElement} */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== undefined && value !== null && value !== "")
      .map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))),
  );
}

/**
 * A large number with its name.
 *
 * @param {string} label
 * @param {string} [where] the address that it leads to
 * @returns {{element: HTMLElement, set: (value: Child, below?: Child) => void}}
 */
export function figure(label, where) {
  const shown = h("span", { class: "value" }, "\u2013");
  const beneath = h("span", { class: "below" });
  const element = h(where ? "a" : "div", { class: "number-card", href: where }, h("span", { class: "label" }, label), shown, beneath);
  const set = (value, below) => {
    put(shown, value);
    put(beneath, below);
  };
  return { element, set };
}

/** Keys and values of an object, a line each. @param {Object<string, any> | null | undefined} value @returns {HTMLElement} */
export function pairs(value) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return h("span", { class: "muted" }, "none");
  return h("dl", { class: "keys" }, entries.map(([key, each]) => h("div", null, h("dt", null, name(key)), h("dd", null, h("bdi", null, visible(brief(each)))))));
}

/** The same within a cell of a table. @param {Object<string, any> | null | undefined} value @returns {Child} */
export function briefly(value) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return null;
  return name(entries.map(([key, each]) => `${key}: ${brief(each)}`).join(", "));
}

/** What a view says when something cannot be shown. @param {import("./api.js").ApiError} error @param {string} what @returns {HTMLElement} */
export function missing(error, what) {
  const text = error.status === 404 ? `${what} is not there: it has gone, or is not for you to see.` : visible(error.reason);
  return h("div", { class: "missing", role: "alert" }, h("p", null, text));
}

/** A share as a bar with its number. @param {number} part @param {number} whole @param {string} label @param {boolean} bad @returns {HTMLElement} */
export function meter(part, whole, label, bad) {
  const share = whole > 0 ? Math.min(Math.max(part / whole, 0), 1) : 0;
  const bar = h("span", { class: bad ? "meter bad" : "meter", role: "img", "aria-label": label }, h("span", { style: { width: `${Math.round(share * 100)}%` } }));
  return h("span", { class: "metered" }, bar, h("span", null, label));
}

/** Put children in place of what stands there, unless it would be the same. @param {HTMLElement} element @param {any} told another one for each content @param {() => Child | Child[]} make */
export function refresh(element, told, make) {
  const text = JSON.stringify(told);
  if (element.told === text) return;
  element.told = text;
  const before = focusable(element).indexOf(document.activeElement);
  put(element, make());
  if (before >= 0) focusable(element)[before]?.focus();
}

function focusable(element) {
  return [...element.querySelectorAll("a, button")];
}
