// rhea, doing what a test says: each line of standard input is a text of JSON that holds JavaScript, each line of
// standard output its value, or its error. `connect(options)` has all that its connection hears in `heard`; rhea is
// found by NODE_PATH.
"use strict";

const readline = require("readline");
const vm = require("vm");
const rhea = require("rhea");

const ERRORS = ["connection_error", "session_error", "sender_error", "receiver_error"];
const OTHERS = ["accepted", "disconnected", "receiver_drained", "receiver_flow"];

const context = vm.createContext({ connect, flow: require("rhea/lib/frames.js").flow, heard: [] });

function connect(options) {
  const connection = rhea.create_container({ id: "rhea" }).connect({ reconnect: false, ...options });
  const heard = context.heard = [];
  for (const event of OTHERS) connection.on(event, () => heard.push(event));
  for (const event of ERRORS) {
    const of = event.split("_")[0];
    connection.on(event, (told) => heard.push(`${of} ${told[of].error.condition}`));
  }
  connection.on("message", ({ message }) => heard.push(`message ${message.body}`));
  return connection;
}

function run(written) {
  try {
    const value = vm.runInContext(JSON.parse(written), context);
    return { value: typeof value === "object" && !Array.isArray(value) ? null : value };
  } catch (error) {
    return { error: String(error.stack) };
  }
}

readline.createInterface({ input: process.stdin })
  .on("line", (written) => console.log(JSON.stringify(run(written))))
  .on("close", () => process.exit(0));
