/** Definitions: everything that is declared, as one file, out and in. */

import { ask, show } from "../dialogs.js";
import { h, put, save, visible } from "../dom.js";
import { count } from "../format.js";
import { button, heading, panel } from "../parts.js";
import { ofVhost } from "../table.js";

const PARTS = ["vhosts", "users", "permissions", "topic_permissions", "policies", "parameters", "global_parameters", "exchanges", "queues", "bindings"];

/** @type {import("./index.js").View} */
export const view = {
  title: "Definitions",
  draw(host, parameters, context) {
    const where = ofVhost("definitions", context.vhost);
    const what = context.vhost ? `in virtual host ${context.vhost}` : "in the whole broker";
    put(
      host,
      heading("Definitions"),
      h(
        "div",
        { class: "columns" },
        panel(
          "Download",
          h("p", { class: "hint" }, `Everything that is declared ${visible(what)}: for a backup, or for another broker. No messages. Passwords are hashes: keep the file private.`),
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
  save(JSON.stringify(document_, null, 2), `definitions-${new Date().toISOString().slice(0, 10)}.json`);
}

function upload(where, context) {
  ask({
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
      return { definitions, leftOut: report?.skipped ?? [] };
    },
    done: (_, { definitions, leftOut }) => {
      const told = PARTS.filter((each) => definitions[each]?.length).map((each) => `${count(definitions[each].length)} ${each.replace("_", " ")}`).join(", ");
      if (leftOut.length) show("Left out", h("ul", null, leftOut.map((each) => h("li", null, visible(each)))));
      else context.tell(told ? `Declared: ${told}.` : "The file declares nothing.");
    },
  });
}
