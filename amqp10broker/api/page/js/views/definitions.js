/** Definitions: everything that is declared, as one file, out and in. */

import { path } from "../api.js";
import { ask, show } from "../dialogs.js";
import { h, put, visible } from "../dom.js";
import { count } from "../format.js";
import { button, heading, panel } from "../parts.js";

const PARTS = ["vhosts", "users", "permissions", "topic_permissions", "policies", "parameters", "global_parameters", "exchanges", "queues", "bindings"];

/** @type {import("./index.js").View} */
export const view = {
  title: "Definitions",
  draw(host, parameters, context) {
    const where = context.vhost ? path("definitions", context.vhost) : "/definitions";
    const what = context.vhost ? `in virtual host ${context.vhost}` : "in the whole broker";
    put(
      host,
      heading("Definitions"),
      h(
        "div",
        { class: "columns" },
        panel(
          "Download",
          h("p", { class: "hint" }, `Everything that is declared ${visible(what)}: for a backup, or for another broker. No messages. Passwords as hashes: keep the file where nobody else reads it.`),
          button("Download", () => download(where, context), { kind: "primary" }),
        ),
        panel(
          "Upload",
          h("p", { class: "hint" }, `What a file of definitions says is declared ${visible(what)}. Exchanges, queues, bindings and policies that cannot be are left out and named; nothing is declared if anything else cannot be. What is there and stands in the file is overwritten; nothing is deleted.`),
          button("Upload a file", () => upload(where, context)),
        ),
      ),
    );
  },
};

async function download(where, context) {
  let document_;
  try {
    document_ = await context.api.get(where);
  } catch (error) {
    context.tell(error.reason);
    return;
  }
  const file = new Blob([JSON.stringify(document_, null, 2)], { type: "application/json" });
  const address = URL.createObjectURL(file);
  const day = new Date().toISOString().slice(0, 10);
  h("a", { href: address, download: `definitions-${day}.json` }).click();
  // The browser has its own hold of it by then.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

async function upload(where, context) {
  let told = "";
  let leftOut = [];
  const done = await ask({
    title: "Upload definitions",
    fields: [{ name: "file", label: "File (JSON)", type: "file", required: true }],
    label: "Upload",
    danger: true,
    run: async ({ file }) => {
      let definitions;
      try {
        definitions = JSON.parse(await file.text());
      } catch {
        throw new Error("the file is not JSON");
      }
      const report = await context.api.post(where, definitions);
      leftOut = report?.skipped ?? [];
      told = PARTS.filter((each) => definitions[each]?.length).map((each) => `${count(definitions[each].length)} ${each.replace("_", " ")}`).join(", ");
    },
  });
  if (!done) return;
  if (leftOut.length) show("Left out", h("ul", null, leftOut.map((each) => h("li", null, visible(each)))));
  else context.tell(told ? `Declared: ${told}.` : "The file declares nothing.");
}
