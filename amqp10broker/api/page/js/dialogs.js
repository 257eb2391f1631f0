/** Dialogues: forms that send something, confirmations, and what only informs. */

import { h, put, visible } from "./dom.js";

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
 * @property {(values: Object<string, any>) => Promise<any>} run sends; what it throws is shown, and the form stays
 */

let fieldNumber = 0;

/**
 * Ask for values and send them.
 *
 * @param {Form} form
 * @returns {Promise<boolean>} whether it was sent
 */
export function ask(form) {
  return new Promise((resolve) => {
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
    let done = false;
    const submit = async (event) => {
      event.preventDefault();
      fault.hidden = true;
      send.disabled = true;
      try {
        const values = {};
        for (const [each, { read }] of inputs) values[each.name] = read();
        await form.run(values);
        done = true;
        dialog.close();
      } catch (error) {
        put(fault, visible(error.reason ?? error.message));
        fault.hidden = false;
        send.disabled = false;
      }
    };
    const cancel = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel");
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
        h("div", { class: "actions" }, cancel, send),
      ),
      () => resolve(done),
    );
    const first = dialog.querySelector("input:not([readonly]), select, textarea");
    (first ?? send).focus();
  });
}

/**
 * Show something.
 *
 * @param {string} title
 * @param {...import("./dom.js").Child} children
 * @returns {HTMLDialogElement}
 */
export function show(title, ...children) {
  const close = h("button", { type: "button", class: "button primary", onclick: () => dialog.close() }, "Close");
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
  if (field.type === "select") {
    const options = field.options.map((each) => (typeof each === "string" ? { value: each, label: each } : each));
    const control = h(
      "select",
      { id, name: field.name },
      options.map(({ value, label }) => h("option", { value, selected: value === field.value }, label)),
    );
    return { element: control, control, read: () => control.value };
  }
  if (field.type === "flag") {
    const control = h("input", { id, type: "checkbox", name: field.name, checked: Boolean(field.value) });
    return { element: control, control, read: () => control.checked };
  }
  if (field.type === "long") {
    const control = h("textarea", { ...common, rows: 6, spellcheck: "false", value: field.value ?? "" });
    return { element: control, control, read: () => control.value };
  }
  if (field.type === "file") {
    const control = h("input", { ...common, type: "file", accept: "application/json,.json" });
    return { element: control, control, read: () => control.files[0] };
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

/** Keys and values, each with its type. */
function table(id, field) {
  const lines = h("div", { class: "pairs" });
  const known = field.keys ?? {};
  const list = h("datalist", { id: `${id}-keys` }, Object.keys(known).map((each) => h("option", { value: each })));
  const add = (key = "", value = "", type = "text") => {
    const keyInput = h("input", { value: key, placeholder: "key", list: list.id, "aria-label": "key", spellcheck: "false" });
    const valueInput = h("input", { value, placeholder: "value", "aria-label": "value", spellcheck: "false" });
    const typeInput = h(
      "select",
      { "aria-label": "type of the value" },
      [["text", "text"], ["number", "number"], ["flag", "true/false"], ["json", "JSON"]].map(([each, label]) =>
        h("option", { value: each, selected: each === type }, label),
      ),
    );
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
  const more = h("button", { id, type: "button", class: "button small", onclick: () => add().focus() }, "Add a line");
  const read = () => Object.fromEntries([...lines.children].map((each) => each.read()).filter(([key]) => key !== ""));
  return { element: h("div", { class: "table-field" }, list, lines, more), control: more, read };
}

function typeOf(value) {
  if (typeof value === "string") return "text";
  if (typeof value === "number") return "number";
  return typeof value === "boolean" ? "flag" : "json";
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
