/** What several views are made of. */

import { h, name, put, visible } from "./dom.js";
import { NOTHING, brief, bytes, duration, rate } from "./format.js";
import { href } from "./router.js";
import { IDLE_WAITS } from "./tables.js";

/** @typedef {import("./dom.js").Child} Child */

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

/** A part of a view. @param {string | null | [string, ...Child[]]} title with what can be done beside it */
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

/** Whether a link, channel or consumer waits for what it should not. */
export function waitsInVain(row) {
  return Boolean(row.waits) && !IDLE_WAITS.includes(row.waits);
}

/** Why a link, channel or consumer waits, and how long. */
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
 * @param {{kind?: string, refused?: string | null | false}} [options] `kind`: primary, danger, small
 */
export function button(label, act, { kind = "", refused } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick: act, disabled: Boolean(refused), title: refused || null }, label);
}

/** Names and values. @param {string} kind @param {[Child | Child[], Child | Child[]][]} pairs */
export function terms(kind, pairs) {
  return h("dl", { class: kind }, pairs.map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))));
}

/** Names and values, in columns; those without a value are left out. */
export function facts(pairs) {
  return terms("facts", pairs.filter(([, value]) => value !== undefined && value !== null && value !== ""));
}

/**
 * A table of few rows.
 *
 * @param {string[] | null} titles of the columns
 * @param {(Child | Child[])[][]} rows their cells
 * @param {number} [numbers] columns from this one on are numbers
 * @returns {HTMLElement}
 */
export function smallTable(titles, rows, numbers = Infinity) {
  const cells = (tag, row, scope) => h("tr", null, row.map((each, place) => h(tag, { scope, class: place >= numbers && each !== "" ? "number" : null }, each)));
  return h(
    "table",
    { class: "small-table" },
    titles ? h("thead", null, cells("th", titles, "col")) : null,
    h("tbody", null, rows.map((row) => cells("td", row))),
  );
}

/** A large number with its name. @param {string} label @param {string} [where] the address that it leads to */
export function figure(label, where) {
  const shown = h("span", { class: "value" }, NOTHING);
  const beneath = h("span", { class: "below" });
  const element = h(where ? "a" : "div", { class: "number-card", href: where }, h("span", { class: "label" }, label), shown, beneath);
  const set = (value, below) => {
    put(shown, value);
    put(beneath, below);
  };
  return { element, set };
}

/** Keys and values of an object, a line each. */
export function pairs(value) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return muted("none");
  return terms("keys", entries.map(([key, each]) => [name(key), h("bdi", null, visible(brief(each)))]));
}

/** The same within a cell of a table. */
export function briefly(value) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return null;
  return name(entries.map(([key, each]) => `${key}: ${brief(each)}`).join(", "));
}

/**
 * Show what stands at a path, as it changes, or why it cannot be shown.
 *
 * @param {import("./main.js").Context} context
 * @param {string} where
 * @param {HTMLElement} host in which the reason stands
 * @param {string} what it is, at the beginning of a sentence
 * @param {(value: any) => void} show
 * @param {import("./live.js").How} [how]
 */
export function follow(context, where, host, what, show, how) {
  context.watch(where, (value, error) => {
    if (!error) return show(value);
    const text = error.status === 404 ? `${what} is not there: it has gone, or is not for you to see.` : visible(error.reason);
    return put(host, h("div", { class: "missing", role: "alert" }, h("p", null, text)));
  }, how);
}

export function muted(text) {
  return h("span", { class: "muted" }, text);
}

/** A rate of a queue or an exchange, by the key of its statistics. */
export function rateOf(row, key) {
  return row.message_stats ? rate(row.message_stats[`${key}_details`]?.rate ?? 0) : muted(NOTHING);
}

/** Letters of what is so. @param {[boolean, string, string][]} all whether it is, the letters, what they mean */
export function marks(all) {
  return h("span", { class: "marks" }, all.filter(([is]) => is).map(([, letters, title]) => h("abbr", { title }, letters)));
}

/** What a queue or an exchange was declared as, and its policy. */
export function declaredBadges(value) {
  return [
    ["durable", "auto_delete", "exclusive", "internal"].filter((each) => value[each]).map((each) => badge(each.replace("_", "-"))),
    value.policy ? h("a", { class: "badge", href: href("policies") }, "policy ", name(value.policy)) : null,
  ];
}

export function nodeState(node) {
  return stateBadge(node.running ? (node.being_drained ? "in maintenance" : "running") : "down");
}

/** Memory of a node; `unlimited` stands behind the number where there is no limit. */
export function memoryOf(node, unlimited = "") {
  if (!node.mem_limit) return `${bytes(node.mem_used)}${unlimited}`;
  return meter(node.mem_used, node.mem_limit, `${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`, node.mem_alarm);
}

/** A share as a bar with its number. */
export function meter(part, whole, label, bad) {
  const share = whole > 0 ? Math.min(Math.max(part / whole, 0), 1) : 0;
  const bar = h("span", { class: bad ? "meter bad" : "meter", role: "img", "aria-label": label }, h("span", { style: { width: `${Math.round(share * 100)}%` } }));
  return h("span", { class: "metered" }, bar, h("span", null, label));
}

/** Put children in place of what stands there, unless it would be the same. @param {any} told another one for each content */
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
