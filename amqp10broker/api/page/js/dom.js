/**
 * Elements without markup: what comes from the broker is only ever text.
 *
 * @typedef {Node | string | number | null | undefined | false} Child
 */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate"]);

/**
 * Make an element.
 *
 * @param {string} tag
 * @param {Object<string, any> | null} [attributes] `onclick` and the like are listeners, `style` is an object of
 *   CSS properties (the page's policy forbids the attribute); true sets an attribute, false and null leave it out
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an element of a picture; see `h`. @returns {SVGElement} */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put other children in place of those that an element has. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/**
 * Text as a person can see it: characters that have no form, or that would turn others around, by their number.
 *
 * @param {unknown} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replace(HIDDEN, (each) => {
    const code = each.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/**
 * A name that users gave: cut where there is no room, isolated from the direction of other text, whole in its title.
 *
 * @param {unknown} text
 * @param {string} [empty] stands for an empty name
 * @returns {HTMLElement}
 */
export function name(text, empty = "(empty)") {
  if (text === "" || text === null || text === undefined) return h("span", { class: "muted" }, empty);
  const shown = visible(text);
  return h("bdi", { class: "name", title: shown }, shown);
}

/** Save JSON as a file of the browser. @param {string} text @param {string} file its name */
export function save(text, file) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href, download: file }).click();
  // The browser has its own hold of it by then.
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, each] of Object.entries(value)) element.style.setProperty(property, each);
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((each) => each !== null && each !== undefined && each !== false && each !== "")
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each))));
}
