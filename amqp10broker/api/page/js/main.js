/** The page: log-in, frame, and the view that the address names. */

import { Api, ApiError, suffices } from "./api.js";
import { show } from "./dialogs.js";
import { h, name, put, visible } from "./dom.js";
import { Live, retryAfterMs } from "./live.js";
import { button, terms } from "./parts.js";
import { href, parse } from "./router.js";
import { VIEWS } from "./views/index.js";

/**
 * What a view may use.
 *
 * @typedef {object} Context
 * @property {Api} api requests of the user
 * @property {{name: string, tags: string[]}} me the user
 * @property {any} broker names and versions: `/overview` without statistics
 * @property {string[]} vhosts names of the virtual hosts that the user sees
 * @property {string} vhost the one that was chosen; empty: all
 * @property {import("./router.js").Place} place of the view
 * @property {(tag: string) => boolean} can whether the user's tags suffice
 * @property {(tag: string) => string | null} refused why not; null if they do
 * @property {(path: string, hear: import("./live.js").Hear, how?: import("./live.js").How) => () => void} watch hears what stands at a path until
 *   the view ends
 * @property {(text: string) => void} tell says that something was done
 * @property {(hash: string) => void} go
 * @property {(text: string, hash?: string) => void} done tells of it, and goes elsewhere, or looks at all paths now
 * @property {() => void} again looks at all paths now: something was done
 * @property {(key: string, act: () => void) => void} onKey until the view ends
 * @property {(act: () => void) => void} onSize when the window has another size, until the view ends
 */

/** The log-in is kept for this tab alone, and goes with each request. */
const LOGIN_KEY = "amqp10broker.login";
const VHOST_KEY = "amqp10broker.vhost";
const TOLD_MS = 5000;
const FIRST = VIEWS[0].name;

/** Run until the log-in ends. @returns {Promise<string>} why it did */
function run(authorization, me) {
  return new Promise((resolve) => {
    const ended = new AbortController();
    const leave = (reason) => {
      if (ended.signal.aborted) return;
      ended.abort();
      leaveView();
      live.stop();
      sessionStorage.removeItem(LOGIN_KEY);
      resolve(reason);
    };
    const api = new Api(authorization, () => leave("The log-in has ended: the user has gone, or its password or token is not valid any more."));
    const pulse = h("button", { type: "button", class: "pulse", onclick: () => live.pause(!live.paused) });
    const live = new Live(api, (state) => drawPulse(pulse, state));
    drawPulse(pulse, "live");

    const can = (tag) => suffices(me.tags, tag);
    const seen = VIEWS.filter((each) => can(each.tag));
    const host = h("main", { id: "main", tabindex: "-1" });
    const navigation = h("nav", { "aria-label": "Views" });
    const alarms = h("div", { class: "alarms", role: "alert" });
    const vhostChoice = h("select", { "aria-label": "Virtual host", onchange: () => choose(vhostChoice.value) });
    const cluster = h("span", { class: "cluster" });
    const shared = { api, me, can, broker: {}, vhosts: [], vhost: sessionStorage.getItem(VHOST_KEY) ?? "" };
    let leaveView = () => {};
    let drawn = 0;
    let keys = new Map();

    const choose = (vhost) => {
      shared.vhost = vhost;
      sessionStorage.setItem(VHOST_KEY, vhost);
      draw();
    };

    /** Virtual hosts come and go, also by what is done here. */
    const nameVhosts = async () => {
      const names = (await api.get("/vhosts?columns=name")).map((each) => each.name);
      if (JSON.stringify(names) === JSON.stringify(shared.vhosts)) return;
      shared.vhosts = names;
      if (!names.includes(shared.vhost)) shared.vhost = "";
      put(
        vhostChoice,
        h("option", { value: "" }, "all"),
        names.map((each) => h("option", { value: each, selected: each === shared.vhost }, visible(each))),
      );
    };

    const draw = async () => {
      leaveView();
      // It is known for the next view at the latest.
      nameVhosts().catch(() => {});
      const mine = ++drawn;
      const place = parse(location.hash);
      const entry = VIEWS.find((each) => each.name === (place.view || FIRST));
      drawNavigation(navigation, seen, entry?.name);
      const ends = [];
      keys = new Map();
      leaveView = () => {
        leaveView = () => {};
        for (const end of ends.splice(0)) end();
      };
      if (!entry || !can(entry.tag)) {
        const text = entry ? `This view needs the tag ${entry.tag}, which ${me.name} does not have.` : "There is no such view.";
        put(host, h("p", { class: "missing" }, visible(text)));
        return;
      }
      let view;
      try {
        ({ view } = await entry.load());
      } catch {
        put(host, h("p", { class: "missing", role: "alert" }, "This view could not be loaded: the broker does not answer."));
        return;
      }
      // Another view was asked for meanwhile.
      if (mine !== drawn || ended.signal.aborted) return;
      const title = typeof view.title === "function" ? view.title(place.parameters) : view.title;
      document.title = `${visible(title)} \u00b7 amqp10broker`;
      host.replaceChildren();
      host.scrollTop = 0;
      const context = {
        ...shared,
        place: { ...place, view: entry.name },
        refused: (tag) => (can(tag) ? null : `needs the tag ${tag}`),
        watch: (path, hear, how) => {
          const stop = live.watch(path, hear, how);
          ends.push(stop);
          return stop;
        },
        again: () => live.again(),
        tell,
        go,
        done: (text, hash) => {
          tell(text);
          if (hash) go(hash);
          else live.again();
        },
        onKey: (key, act) => keys.set(key, act),
        onSize: (act) => {
          window.addEventListener("resize", act);
          ends.push(() => window.removeEventListener("resize", act));
        },
      };
      const end = view.draw(host, place.parameters, context);
      if (end) ends.push(end);
      host.focus({ preventScroll: true });
    };

    put(
      document.body,
      h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); host.focus(); } }, "Skip to the content"),
      h(
        "header",
        { class: "top" },
        h("a", { class: "brand", href: href(FIRST) }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "amqp10broker"),
        cluster,
        h("span", { class: "space" }),
        h("label", { class: "vhost" }, "Virtual host ", vhostChoice),
        pulse,
        themeButton(),
        h("button", { type: "button", class: "button small", "aria-label": "Keys", title: "Keys (?)", onclick: () => showKeys(seen) }, "?"),
        h("span", { class: "me", title: me.tags.join(", ") }, name(me.name)),
        button("Log out", () => leave(""), { kind: "small" }),
      ),
      navigation,
      alarms,
      host,
      h("div", { class: "told", role: "status", id: "told" }),
    );

    let behind = "";
    window.addEventListener("hashchange", draw, { signal: ended.signal });
    document.addEventListener(
      "keydown",
      (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
        if (event.target.closest("input, select, textarea")) {
          if (event.key === "Escape") event.target.blur();
          return;
        }
        const { key } = event;
        const view = behind === "g" ? seen.find((each) => each.key === key) : null;
        behind = behind === "g" ? "" : key === "g" ? "g" : "";
        const act = view ? () => go(href(view.name)) : behind ? null : keys.get(key) ?? { "?": () => showKeys(seen), p: () => live.pause(!live.paused), r: () => live.again() }[key];
        if (!act) return;
        event.preventDefault();
        act();
      },
      { signal: ended.signal },
    );

    const begin = async () => {
      [shared.broker] = await Promise.all([api.get("/overview?disable_stats=true"), nameVhosts()]);
      put(cluster, name(shared.broker.cluster_name));
      await draw();
      live.watch("/health/checks/alarms", (value, error) => drawAlarms(alarms, error, can("monitoring")));
    };
    const attempt = (failures) =>
      begin().catch((error) => {
        if (ended.signal.aborted) return;
        put(host, h("p", { class: "missing", role: "alert" }, visible(error.reason ?? error.message)));
        if (error.status !== 0) return;
        drawPulse(pulse, "lost");
        setTimeout(() => ended.signal.aborted || attempt(failures + 1), retryAfterMs(failures));
      });
    attempt(0);
  });
}

function drawPulse(element, state) {
  const words = { live: ["\u25cf", "live", "What is shown is kept up to date. Press to pause (p)."], paused: ["\u2016", "paused", "Press to go on (p)."], lost: ["\u25b2", "no answer", "The broker does not answer; it is asked again and again."] };
  const [sign, word, title] = words[state];
  element.dataset.state = state;
  element.title = title;
  put(element, h("span", { "aria-hidden": "true" }, sign), ` ${word}`);
}

function drawNavigation(element, views, current) {
  const groups = [...new Set(views.map((each) => each.group))];
  put(
    element,
    groups.map((group) => [
      group ? h("h2", null, group) : null,
      h(
        "ul",
        null,
        views
          .filter((each) => each.group === group)
          .map((each) => h("li", null, h("a", { href: href(each.name), "aria-current": each.name === current ? "page" : null }, each.label))),
      ),
    ]),
  );
}

function drawAlarms(element, error, mayLook) {
  if (!error || error.status !== 503) {
    element.replaceChildren();
    return;
  }
  put(
    element,
    h("p", null, h("b", null, "Alarm: "), visible(error.reason.replace(/^alarms are on: /, "")), ". Publishers are held back until it ends. ", mayLook ? h("a", { href: href("nodes") }, "What to do") : null),
  );
}

// --- light or dark: as the system has it, unless this browser was told otherwise ------------------------

const THEME_KEY = "amqp10broker.theme";
const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

function themeOf() {
  const kept = localStorage.getItem(THEME_KEY);
  return THEMES.includes(kept) ? kept : "auto";
}

function applyTheme() {
  const chosen = themeOf();
  document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}

function themeButton() {
  const element = button(`Theme: ${themeOf()}`, () => {
    localStorage.setItem(THEME_KEY, THEMES[(THEMES.indexOf(themeOf()) + 1) % THEMES.length]);
    applyTheme();
    put(element, `Theme: ${themeOf()}`);
  }, { kind: "small" });
  return element;
}

function showKeys(views) {
  const rows = [
    ["?", "this list"],
    ["/", "to the filter"],
    ["\u2191 \u2193", "between rows; Page Up, Page Down, Home, End"],
    ["Enter", "open the row"],
    ["[ ]", "previous and next page"],
    ["p", "pause, and go on"],
    ["r", "look now"],
    ["Esc", "leave a field or a dialogue"],
    ...views.map((each) => [`g ${each.key}`, each.label]),
  ];
  show("Keys", terms("keyboard", rows.map(([key, what]) => [h("kbd", null, key), what])));
}

function go(hash) {
  location.hash = hash;
}

/** Say that something was done, for a while. */
function tell(text) {
  const line = h("p", null, visible(text));
  document.querySelector("#told").append(line);
  setTimeout(() => line.remove(), TOLD_MS);
}

// --- the log-in -------------------------------------------------------------------------------------

/** What a refused log-in means to its user. @param {ApiError} error @returns {string} */
function reasonOf(error) {
  if (error.reason === "Not management user") {
    return "This user may not use this page: it has none of the tags management, policymaker, monitoring and administrator.";
  }
  if (error.status === 401) return "The broker does not know this user with this password. guest may log in from the broker's own machine only.";
  if (error.status === 0) return "The broker does not answer. Is it running?";
  return `The broker refused: ${error.reason}`;
}

/** Ask for a user; why, empty at first. @returns {Promise<{authorization: string, me: {name: string, tags: string[]}}>} */
function logIn(host, reason) {
  return new Promise((resolve) => {
    const fault = h("p", { class: "fault", role: "alert", hidden: reason === "" }, visible(reason));
    const user = h("input", { id: "user", name: "username", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
    const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password" });
    const token = h("textarea", { id: "token", rows: 4, spellcheck: "false", autocomplete: "off" });
    const send = h("button", { type: "submit", class: "button primary wide" }, "Log in");
    const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
    const withUser = h("div", null, field("User", user), field("Password", password));
    const withToken = h("div", { hidden: true }, field("Token (OAuth 2)", token));
    const change = () => {
      withUser.hidden = !withUser.hidden;
      withToken.hidden = !withToken.hidden;
      user.required = withToken.hidden;
      token.required = withUser.hidden;
      put(other, withToken.hidden ? "Log in with a token" : "Log in with a password");
      (withToken.hidden ? user : token).focus();
    };
    const other = h("button", { type: "button", class: "plain-link", onclick: change }, "Log in with a token");
    const submit = async (event) => {
      event.preventDefault();
      fault.hidden = true;
      send.disabled = true;
      const authorization = withToken.hidden ? Api.basic(user.value, password.value) : `Bearer ${token.value.trim()}`;
      try {
        const me = await new Api(authorization, () => {}).get("/whoami");
        sessionStorage.setItem(LOGIN_KEY, authorization);
        resolve({ authorization, me });
      } catch (error) {
        put(fault, visible(error instanceof ApiError ? reasonOf(error) : error.message));
        fault.hidden = false;
        send.disabled = false;
        password.value = "";
        (withToken.hidden ? password : token).focus();
      }
    };
    put(
      host,
      h(
        "main",
        { class: "login", id: "main" },
        h(
          "form",
          { class: "card", onsubmit: submit, "aria-label": "Log in" },
          h("img", { src: "icon.svg", alt: "", width: 40, height: 40 }),
          h("h1", null, "amqp10broker"),
          fault,
          withUser,
          withToken,
          send,
          other,
        ),
      ),
    );
    user.focus();
  });
}

async function main() {
  system.addEventListener("change", applyTheme);
  applyTheme();
  let authorization = sessionStorage.getItem(LOGIN_KEY);
  let reason = "";
  for (;;) {
    let me = null;
    if (authorization) {
      try {
        me = await new Api(authorization, () => {}).get("/whoami");
      } catch (error) {
        reason = reasonOf(error);
        if (error.status === 401) sessionStorage.removeItem(LOGIN_KEY);
      }
    }
    if (!me) ({ authorization, me } = await logIn(document.body, reason));
    reason = await run(authorization, me);
    authorization = null;
  }
}

main();
