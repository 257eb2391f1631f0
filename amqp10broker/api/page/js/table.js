/**
 * Tables of what the API lists: sorted, filtered and paged by the broker where it can, else here. Only rows that
 * are in sight are elements, so a list may have ten thousands of them.
 *
 * Keys, in a row: up and down, Page Up, Page Down, Home, End; Enter opens it. `[` and `]` turn pages, `/` filters.
 *
 * @typedef {object} Column
 * @property {string} key of the column, and of the object's value unless `fields` says others
 * @property {string} title
 * @property {(row: any) => import("./dom.js").Child | import("./dom.js").Child[]} cell
 * @property {string[]} [fields] keys (with dots) that the cell needs; [key] if not given
 * @property {string | false} [sort] the key to sort by; the first of `fields` if not given
 * @property {boolean} [number] it is a number, and stands at the right
 * @property {number} [width] in pixels; with any of them columns stay as wide as they are, and the first has the rest
 * @property {boolean} [spare] hidden unless it is asked for
 * @property {string} [help] what it means
 *
 * @typedef {object} Options
 * @property {string} id under which the choice of columns is kept
 * @property {string} label of the table, for who cannot see it
 * @property {string} [path] of the list; without it rows come by `show`
 * @property {boolean} [paged] the API sends pages of this list, and filters it by name
 * @property {Column[]} columns
 * @property {string[]} [fields] keys that rows need beside those of the columns in sight
 * @property {(row: any) => string} rowKey another one for each row
 * @property {(row: any) => string | null} [rowHref] the address of what the row stands for
 * @property {(row: any) => string} [rowText] what the filter looks at, where it is not the API that filters
 * @property {string} [filterBy] what the filter looks at, in words; the name if not given
 * @property {import("./dom.js").Child} [tools] beside the filter
 * @property {string} empty a sentence for no rows
 * @property {boolean} [plain] no filter and no choice of columns: it is short
 */

import { path, withQuery } from "./api.js";
import { h, name, put, visible } from "./dom.js";
import { at, count } from "./format.js";
import { heading } from "./parts.js";
import { remember } from "./router.js";

const ROW_PX = 34;
const AROUND = 12;
const [FIRST_PX, NUMBER_PX, TEXT_PX] = [170, 84, 104];
const PAGE_SIZES = [50, 100, 200, 500];
const FILTER_MS = 250;

/**
 * Make a table.
 *
 * @param {import("./main.js").Context} context of the view
 * @param {Options} options
 * @returns {{element: HTMLElement, show: (rows: any[]) => void, again: () => void}}
 */
export function table(context, options) {
  const state = stateOf(context, options);
  const chosen = choiceOf(options);
  let rows = [];
  let rowKeys = [];
  let facts = null;
  let all = [];
  let active = null;
  let stop = () => {};
  let loaded = false;

  const head = h("thead");
  const body = h("tbody");
  const widths = h("colgroup");
  const grid = h("table", { "aria-label": options.label }, widths, head, body);
  const frame = h("div", { class: "rows", tabindex: "-1" }, grid);
  const status = h("span", { class: "muted", role: "status" });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const pager = h("div", { class: "pager" });
  const made = new Map();

  // Of one virtual host, all rows would say the same.
  const oneHost = !options.plain && (context.vhost !== "" || context.vhosts.length < 2);
  const columns = () => options.columns.filter((each) => chosen.has(each.key) && !(oneHost && each.key === "vhost"));

  const wanted = () => {
    const fields = columns().flatMap((each) => each.fields ?? [each.key]);
    return [...new Set([...(options.fields ?? []), ...fields])].join(",");
  };

  const source = () => {
    if (!options.paged) return options.path;
    return withQuery(options.path, {
      columns: wanted(),
      page: state.page,
      page_size: state.size,
      name: state.name,
      use_regex: state.regex && state.name !== "",
      sort: state.sort,
      sort_reverse: state.desc,
    });
  };

  const again = () => {
    stop();
    if (!options.path) return arrange();
    frame.setAttribute("aria-busy", "true");
    stop = context.watch(source(), (value, error) => {
      frame.removeAttribute("aria-busy");
      if (error) return failed(error);
      fault.hidden = true;
      if (options.paged) {
        loaded = true;
        facts = value;
        take(value.items);
      } else show(value);
    });
  };

  const failed = (error) => {
    if (error.error === "page_out_of_range" && state.page > 1) return firstPage();
    put(fault, visible(error.reason));
    fault.hidden = false;
  };

  const show = (value) => {
    loaded = true;
    all = value;
    arrange();
  };

  /** Filter and sort what came whole. */
  const arrange = () => {
    const told = rule(state);
    const text = options.rowText ?? options.rowKey;
    const found = told ? all.filter((each) => told(text(each))) : [...all];
    if (state.sort) {
      found.sort((one, other) => compared(at(one, state.sort), at(other, state.sort)));
      if (state.desc) found.reverse();
    }
    facts = { total_count: all.length, filtered_count: found.length, page: 1, page_count: 1 };
    take(found);
  };

  const take = (found) => {
    const seen = new Map();
    rows = found;
    rowKeys = found.map((each) => {
      const key = options.rowKey(each);
      const before = seen.get(key) ?? 0;
      seen.set(key, before + 1);
      return before ? `${key} ${before}` : key;
    });
    draw();
  };

  const firstPage = () => {
    state.page = 1;
    changed();
  };

  const changed = () => {
    keep(context, options, state);
    if (options.paged) again();
    else arrange();
  };

  // --- the head -----------------------------------------------------------------------------------

  const drawHead = () => {
    const seen = columns();
    if (seen.some((each) => each.width)) {
      const [, ...rest] = seen.map((each) => each.width ?? (each.number ? NUMBER_PX : TEXT_PX));
      put(widths, h("col"), rest.map((each) => h("col", { style: { width: `${each}px` } })));
      grid.classList.add("fixed");
      grid.style.minWidth = `${rest.reduce((sum, each) => sum + each, FIRST_PX)}px`;
    }
    put(
      head,
      h(
        "tr",
        null,
        seen.map((each) => {
          const by = sortKey(each);
          const sorted = by && state.sort === by;
          const label = h("span", { title: each.help }, each.title);
          const content = by
            ? h(
                "button",
                {
                  type: "button",
                  onclick: () => {
                    // First the way that is looked for: names from a, numbers from the most.
                    const first = Boolean(each.number);
                    state.desc = sorted ? !state.desc : first;
                    state.sort = by;
                    drawHead();
                    firstPage();
                  },
                },
                label,
                h("span", { class: "order", "aria-hidden": "true" }, sorted ? (state.desc ? "\u25be" : "\u25b4") : ""),
              )
            : label;
          const order = sorted ? (state.desc ? "descending" : "ascending") : null;
          return h("th", { scope: "col", class: each.number ? "number" : null, "aria-sort": order }, content);
        }),
      ),
    );
  };

  // --- the rows -----------------------------------------------------------------------------------

  const draw = () => {
    const height = frame.clientHeight || 600;
    const first = Math.max(Math.floor(frame.scrollTop / ROW_PX) - AROUND, 0);
    const last = Math.min(first + Math.ceil(height / ROW_PX) + 2 * AROUND, rows.length);
    const seen = columns();
    const keys = new Set();
    const elements = [];
    for (let place = first; place < last; place += 1) {
      const key = rowKeys[place];
      keys.add(key);
      elements.push(rowElement(key, rows[place], place, seen));
    }
    for (const key of made.keys()) if (!keys.has(key)) made.delete(key);
    // Without its focus, the browser would scroll to the beginning.
    const focused = document.activeElement.closest?.("tr[data-key]");
    if (focused && body.contains(focused) && !keys.has(focused.dataset.key)) frame.focus({ preventScroll: true });
    arranged(body, [gap(first), ...elements, gap(rows.length - last)].filter(Boolean));
    grid.setAttribute("aria-rowcount", String(rows.length + 1));
    if (loaded && rows.length === 0) {
      const filtered = (facts?.total_count ?? 0) > 0;
      put(body, h("tr", { class: "none" }, h("td", { colspan: seen.length }, filtered ? "None of them fits the filter." : options.empty)));
    }
    if (active === null || !keys.has(active)) setActive(elements[0] ?? null);
    drawPager();
  };

  const gap = (many) =>
    many > 0 ? h("tr", { class: "gap", "aria-hidden": "true" }, h("td", { colspan: columns().length, style: { height: `${many * ROW_PX}px` } })) : null;

  const rowElement = (key, row, place, seen) => {
    const known = made.get(key);
    const told = JSON.stringify(row);
    const element = known?.element ?? h("tr", { tabindex: "-1", "data-key": key });
    element.setAttribute("aria-rowindex", String(place + 2));
    if (known?.told !== told) {
      const held = element.contains(document.activeElement) && document.activeElement !== element;
      put(element, seen.map((each) => h("td", { class: each.number ? "number" : null }, each.cell(row))));
      if (held) element.focus();
    }
    element.row = row;
    made.set(key, { element, told });
    return element;
  };

  const setActive = (element) => {
    body.querySelector('tr[tabindex="0"]')?.setAttribute("tabindex", "-1");
    element?.setAttribute("tabindex", "0");
    active = element?.dataset.key ?? null;
  };

  const go = (place) => {
    const bounded = Math.min(Math.max(place, 0), rows.length - 1);
    if (bounded < 0) return;
    const top = bounded * ROW_PX;
    const room = frame.clientHeight - head.offsetHeight;
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (top + ROW_PX > frame.scrollTop + room) frame.scrollTop = top + ROW_PX - room;
    draw();
    const element = made.get(rowKeys[bounded])?.element;
    if (!element) return;
    setActive(element);
    element.focus({ preventScroll: true });
  };

  frame.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  body.addEventListener("focusin", (event) => setActive(event.target.closest("tr[data-key]")));
  frame.addEventListener("keydown", (event) => {
    const element = event.target.closest("tr[data-key]");
    if ((!element && event.target !== frame) || event.altKey || event.ctrlKey || event.metaKey) return;
    const place = element ? Number(element.getAttribute("aria-rowindex")) - 2 : Math.ceil(frame.scrollTop / ROW_PX) - 1;
    const page = Math.max(Math.floor(frame.clientHeight / ROW_PX) - 2, 1);
    const places = { ArrowDown: place + 1, ArrowUp: place - 1, PageDown: place + page, PageUp: place - page, Home: 0, End: rows.length - 1 };
    if (event.key in places) {
      event.preventDefault();
      go(places[event.key]);
    } else if (event.key === "Enter" && event.target === element) {
      event.preventDefault();
      open(element);
    }
  });
  body.addEventListener("click", (event) => {
    if (event.target.closest("a, button, input, select, summary") || String(getSelection())) return;
    const element = event.target.closest("tr[data-key]");
    if (element && options.rowHref) open(element);
  });

  const open = (element) => {
    const where = options.rowHref?.(element.row);
    if (where) location.hash = where;
    else element.querySelector("a, button")?.click();
  };

  // --- the pager, the filter, the choice of columns -------------------------------------------------

  const turn = (page) => {
    state.page = page;
    frame.scrollTop = 0;
    changed();
  };

  const turner = (act, disabled, page, label) =>
    h("button", { type: "button", class: "button small", "data-act": act, disabled, onclick: () => turn(page) }, label);

  const drawPager = () => {
    if (!facts) return;
    const { total_count: total, filtered_count: found, page, page_count: pages } = facts;
    const begin = (page - 1) * state.size;
    const range = options.paged && pages > 1 ? `${count(begin + 1)}\u2013${count(Math.min(begin + state.size, found))} of ${count(found)}` : count(found);
    put(status, found === total ? range : `${range}, of ${count(total)} in all`);
    const held = pager.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    put(
      pager,
      options.paged && total > PAGE_SIZES[0]
        ? h(
            "label",
            { class: "size" },
            "Rows ",
            h(
              "select",
              {
                "data-act": "size",
                onchange: (event) => {
                  state.size = Number(event.target.value);
                  turn(1);
                },
              },
              PAGE_SIZES.map((each) => h("option", { value: each, selected: each === state.size }, each)),
            ),
          )
        : null,
      pages > 1
        ? [
            turner("back", page <= 1, page - 1, "Previous"),
            h("span", { class: "muted" }, `page ${count(page)} of ${count(pages)}`),
            turner("on", page >= pages, page + 1, "Next"),
          ]
        : null,
    );
    if (held) pager.querySelector(`[data-act="${held}"]`)?.focus();
  };

  let waiting = 0;
  const filter = h("input", {
    type: "search",
    class: "filter",
    placeholder: `Filter by ${options.filterBy ?? "name"}`,
    "aria-label": `Filter ${options.label}`,
    value: state.name,
    spellcheck: "false",
    oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        state.name = filter.value;
        firstPage();
      }, FILTER_MS);
    },
  });
  const regex = h("input", {
    type: "checkbox",
    checked: state.regex,
    onchange: () => {
      state.regex = regex.checked;
      firstPage();
    },
  });
  const choice = h(
    "details",
    { class: "choice" },
    h("summary", { class: "button small" }, "Columns"),
    h(
      "div",
      { class: "menu" },
      options.columns.filter((each) => each.title).map((each) =>
        h(
          "label",
          null,
          h("input", {
            type: "checkbox",
            checked: chosen.has(each.key),
            onchange: (event) => {
              if (event.target.checked) chosen.add(each.key);
              else chosen.delete(each.key);
              localStorage.setItem(`amqp10broker.columns.${options.id}`, JSON.stringify([...chosen]));
              made.clear();
              drawHead();
              draw();
              if (options.paged) again();
            },
          }),
          " ",
          each.title,
        ),
      ),
    ),
  );
  const outside = (event) => {
    if (!choice.contains(event.target)) choice.open = false;
  };
  choice.addEventListener("toggle", () => {
    if (choice.open) document.addEventListener("pointerdown", outside);
    else document.removeEventListener("pointerdown", outside);
  });
  choice.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    choice.open = false;
    choice.querySelector("summary").focus();
  });
  if (!options.plain) {
    context.onKey("/", () => filter.focus());
    context.onKey("[", () => facts?.page > 1 && turn(facts.page - 1));
    context.onKey("]", () => facts?.page < facts?.page_count && turn(facts.page + 1));
  }

  drawHead();
  const bar = options.plain
    ? null
    : h("div", { class: "bar" }, filter, h("label", { class: "regex", title: "the filter is a regular expression" }, regex, " regex"), status, h("span", { class: "space" }), choice, options.tools);
  const element = h("div", { class: options.plain ? "table plain" : "table" }, bar, fault, frame, pager);
  if (options.path) again();
  context.onSize(draw);
  return { element, show, again };
}

/**
 * A view of what there is of a kind, and of one of them.
 *
 * @param {string} title
 * @param {string} one what one of them is called
 * @param {number} parameters how many name one
 * @param {(context: import("./main.js").Context) => Partial<Options>} list
 * @param {(host: HTMLElement, context: import("./main.js").Context, ...parameters: string[]) => void} drawOne
 */
export function listView(title, one, parameters, list, drawOne) {
  return {
    title: (given) => (given.length < parameters ? title : `${one} ${given[parameters - 1]}`),
    draw(host, given, context) {
      if (given.length >= parameters) return drawOne(host, context, ...given);
      put(host, heading(title), table(context, { label: title, paged: true, ...list(context) }).element);
      return undefined;
    },
  };
}

/** The path of what there is of a kind, in a virtual host or, if that is empty, in all. */
export function ofVhost(kind, vhost) {
  return vhost ? path(kind, vhost) : path(kind);
}

/** The column of what can be done with a row. */
export function acts(cell) {
  return { key: "act", title: "", sort: false, number: true, cell };
}

/** The column of the way to a timeline. */
export function timelines(where, width) {
  return { key: "timeline", width, title: "", sort: false, cell: (row) => h("a", { class: "button small", tabindex: "-1", href: where(row) }, "Timeline") };
}

/** A cell with the name of something that has a view of its own; see `href` and `name`. */
export function link(where, text, empty) {
  return h("a", { href: where, tabindex: "-1" }, name(text, empty));
}

function sortKey(column) {
  return column.sort === false ? null : column.sort ?? (column.fields ?? [column.key])[0];
}

function stateOf(context, options) {
  const query = options.plain ? new URLSearchParams() : context.place.query;
  const size = Number(query.get("size"));
  return {
    page: Math.max(Number.parseInt(query.get("page") ?? "1", 10) || 1, 1),
    size: PAGE_SIZES.includes(size) ? size : 100,
    name: query.get("name") ?? "",
    regex: query.has("regex"),
    sort: query.get("sort") ?? "",
    desc: query.has("desc"),
  };
}

function keep(context, options, { page, size, name: text, regex, sort, desc }) {
  if (options.plain) return;
  remember(context.place, { page: page > 1 && page, size: size !== 100 && size, name: text, regex, sort, desc });
}

function choiceOf(options) {
  const shown = options.columns.filter((each) => !each.spare).map((each) => each.key);
  try {
    const kept = JSON.parse(localStorage.getItem(`amqp10broker.columns.${options.id}`));
    if (Array.isArray(kept) && kept.length) return new Set(kept);
  } catch {
    // What was kept is of no use.
  }
  return new Set(shown);
}

function rule({ name: text, regex }) {
  if (text === "") return null;
  if (!regex) return (each) => each.includes(text);
  try {
    const expression = new RegExp(text, "u");
    return (each) => expression.test(each);
  } catch {
    return () => false;
  }
}

function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (one === undefined || one === null) return other === undefined || other === null ? 0 : -1;
  if (other === undefined || other === null) return 1;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

/** Put children in order with as few moves as can be, so that focus and selection stay. */
function arranged(parent, children) {
  const kept = new Set(children);
  for (const each of [...parent.childNodes]) if (!kept.has(each)) each.remove();
  children.forEach((each, place) => {
    if (parent.childNodes[place] !== each) parent.insertBefore(each, parent.childNodes[place] ?? null);
  });
}
