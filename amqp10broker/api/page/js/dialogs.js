/** Dialogues: forms that send something, confirmations, and what only informs. */

import { h, put, visible } from "./dom.js";
import { button } from "./parts.js";

/**
 * @typedef {object} Field
 * @property {string} name of the value
 * @property {string} label
 * @property {"text" | "password" | "number" | "select" | "flag" | "long" | "table" | "file"} [type] text if not given;
 *   `table` gives an object of keys and values with types
 * @property {any} [value] to begin with
 * @property {(string | {value: string, label: string})[]} [options] of a select, or suggestions for a text
 * @property {Object<string, "text" | "number" | "flag">} [keys] suggestions for keys of a table, with their types
 * @property {boolean} [required]
 * @property {boolean} [fixed] it cannot be changed
 * @property {string} [help]
 *
 * @typedef {object} Form
 * @property {string} title
 * @property {import("./dom.js").Child | import("./dom.js").Child[]} [text]
 * @property {Field[]} [fields]
 * @property {string} label of the button that sends
 * @property {boolean} [danger] something is lost by it
 * @property {string} [typed] must be typed in before, when what is lost is much
 * @property {(values: Object<string, any>) => any} run sends; what it throws is shown, and the form stays
 * @property {(values: Object<string, any>, answer: any) => void} done behind `run`, with what it returned
 */

let fieldNumber = 0;

/** The field of the virtual host. @param {import("./main.js").Context} context @param {string} [given] it is this one */
export function vhostField(context, given) {
  if (given !== undefined) return { name: "vhost", label: "Virtual host", value: given, fixed: true };
  return {
    name: "vhost",
    label: "Virtual host",
    type: "select",
    value: context.vhost || context.vhosts[0],
    options: context.vhosts.map((each) => ({ value: each, label: visible(each) })),
  };
}

/** Ask for values and send them. @param {Form} form */
export function ask(form) {
  const inputs = (form.fields ?? []).map((each) => [each, input(each)]);
  const typed = form.typed === undefined ? null : input({ name: "typed", label: "" });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const send = h("button", { type: "submit", class: form.danger ? "button danger" : "button primary" }, form.label);
  const allow = () => {
    send.disabled = typed !== null && typed.read() !== form.typed;
  };
  if (typed) {
    typed.control.addEventListener("input", allow);
    allow();
  }
  let sent = null;
  const submit = async (event) => {
    event.preventDefault();
    fault.hidden = true;
    send.disabled = true;
    try {
      const values = Object.fromEntries(inputs.map(([each, { read }]) => [each.name, read()]));
      sent = [values, await form.run(values)];
      dialog.close();
    } catch (error) {
      put(fault, visible(error.reason ?? error.message));
      fault.hidden = false;
      send.disabled = false;
    }
  };
  const dialog = opened(
    form.title,
    h(
      "form",
      { onsubmit: submit, novalidate: false },
      form.text ? h("div", { class: "said" }, form.text) : null,
      inputs.map(([each, made]) => row(each, made)),
      typed
        ? h(
            "div",
            { class: "field" },
            h("label", { for: typed.control.id }, "To confirm, type ", h("bdi", { class: "code" }, visible(form.typed))),
            typed.element,
          )
        : null,
      fault,
      h("div", { class: "actions" }, button("Cancel", () => dialog.close()), send),
    ),
    () => sent && form.done(...sent),
  );
  const first = dialog.querySelector("input:not([readonly]), select, textarea");
  (first ?? send).focus();
}

/** Show something. @param {string} title @param {...import("./dom.js").Child} children @returns {HTMLDialogElement} */
export function show(title, ...children) {
  const close = button("Close", () => dialog.close(), { kind: "primary" });
  const dialog = opened(title, [children, h("div", { class: "actions" }, close)], () => {});
  close.focus();
  return dialog;
}

function opened(title, content, closed) {
  const heading = h("h2", { id: `dialog-${++fieldNumber}` }, title);
  const dialog = h("dialog", { "aria-labelledby": heading.id }, heading, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function row(field, { element, control }) {
  const help = field.help ? h("p", { class: "help", id: `${control.id}-help` }, field.help) : null;
  if (help) control.setAttribute("aria-describedby", help.id);
  if (field.type === "flag") {
    return h("div", { class: "field flag" }, element, h("label", { for: control.id }, field.label), help);
  }
  return h("div", { class: "field" }, h("label", { for: control.id }, field.label), element, help);
}

/** A field's element, its control (which the label names) and how to read it. */
function input(field) {
  const id = `field-${++fieldNumber}`;
  const common = { id, name: field.name, required: field.required, readonly: field.fixed, autocomplete: "off" };
  const alone = (control, read = () => control.value) => ({ element: control, control, read });
  if (field.type === "select") return alone(h("select", { id, name: field.name }, options(field.options, field.value)));
  if (field.type === "flag") {
    const control = h("input", { id, type: "checkbox", name: field.name, checked: Boolean(field.value) });
    return alone(control, () => control.checked);
  }
  if (field.type === "long") return alone(h("textarea", { ...common, rows: 6, spellcheck: "false", value: field.value ?? "" }));
  if (field.type === "file") {
    const control = h("input", { ...common, type: "file", accept: "application/json,.json" });
    return alone(control, () => control.files[0]);
  }
  if (field.type === "table") return table(id, field);
  const numeric = field.type === "number";
  const list = field.options ? h("datalist", { id: `${id}-list` }, field.options.map((each) => h("option", { value: each }))) : null;
  const control = h("input", {
    ...common,
    type: numeric ? "number" : field.type ?? "text",
    step: numeric ? "1" : null,
    value: field.value ?? "",
    list: list?.id,
    spellcheck: "false",
    autocapitalize: "off",
  });
  const read = () => (numeric ? (control.value === "" ? null : Number(control.value)) : control.value);
  return { element: list ? h("span", null, control, list) : control, control, read };
}

function options(all, chosen) {
  return all.map((each) => {
    const { value, label } = typeof each === "string" ? { value: each, label: each } : each;
    return h("option", { value, selected: value === chosen }, label);
  });
}

/** Keys and values, each with its type. */
function table(id, field) {
  const lines = h("div", { class: "pairs" });
  const known = field.keys ?? {};
  const list = h("datalist", { id: `${id}-keys` }, Object.keys(known).map((each) => h("option", { value: each })));
  const add = (key = "", value = "", type = "text") => {
    const keyInput = h("input", { value: key, placeholder: "key", list: list.id, "aria-label": "key", spellcheck: "false" });
    const valueInput = h("input", { value, placeholder: "value", "aria-label": "value", spellcheck: "false" });
    const typeInput = h("select", { "aria-label": "type of the value" }, options(TYPES, type));
    keyInput.addEventListener("change", () => {
      if (known[keyInput.value]) typeInput.value = known[keyInput.value];
    });
    const gone = h("button", { type: "button", class: "button small", "aria-label": "leave this line out", onclick: () => line.remove() }, "\u00d7");
    const line = h("div", { class: "pair" }, keyInput, valueInput, typeInput, gone);
    line.read = () => [keyInput.value, typedValue(keyInput.value, valueInput.value, typeInput.value)];
    lines.append(line);
    return keyInput;
  };
  for (const [key, value] of Object.entries(field.value ?? {})) add(key, typeof value === "string" ? value : JSON.stringify(value), typeOf(value));
  const more = button("Add a line", () => add().focus(), { kind: "small" });
  more.id = id;
  const read = () => Object.fromEntries([...lines.children].map((each) => each.read()).filter(([key]) => key !== ""));
  return { element: h("div", { class: "table-field" }, list, lines, more), control: more, read };
}

const TYPES = ["text", "number", { value: "flag", label: "true/false" }, { value: "json", label: "JSON" }];

function typeOf(value) {
  return { string: "text", number: "number", boolean: "flag" }[typeof value] ?? "json";
}

function typedValue(key, text, type) {
  if (type === "text") return text;
  if (type === "number" && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (type === "flag" && (text === "true" || text === "false")) return text === "true";
  if (type === "json") {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`the value of ${key} is not JSON`);
    }
  }
  throw new Error(`the value of ${key} must be ${type === "number" ? "a number" : "true or false"}`);
}
