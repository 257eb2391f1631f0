/** What can be done with queues and messages, in dialogues. */

import { exchangeInPath, path, withQuery } from "../api.js";
import { ask, show } from "../dialogs.js";
import { h, name, put, visible } from "../dom.js";
import { count } from "../format.js";
import { pairs } from "../parts.js";
import { href } from "../router.js";
import { QUEUE_ARGUMENTS } from "../tables.js";

const ACK_MODES = [
  { value: "ack_requeue_true", label: "Put them back (redelivered next time)" },
  { value: "ack_requeue_false", label: "Take them: acknowledge" },
  { value: "reject_requeue_true", label: "Reject, and put them back (counts as a failed delivery)" },
  { value: "reject_requeue_false", label: "Reject: dead-letter or drop" },
];

/** Fields of the virtual host where one is to be chosen. */
export function vhostField(context) {
  return {
    name: "vhost",
    label: "Virtual host",
    type: "select",
    value: context.vhost || context.vhosts[0],
    options: context.vhosts.map((each) => ({ value: each, label: visible(each) })),
  };
}

/** @param {import("../main.js").Context} context */
export async function declareQueue(context) {
  let made = null;
  const done = await ask({
    title: "Declare a queue",
    label: "Declare",
    fields: [
      vhostField(context),
      { name: "name", label: "Name", required: true },
      {
        name: "type",
        label: "Type",
        type: "select",
        value: context.broker.default_queue_type,
        options: [
          { value: "classic", label: "classic: on one node" },
          { value: "quorum", label: "quorum: replicated, for what must not be lost" },
          { value: "stream", label: "stream: a log that is read again and again" },
        ],
      },
      { name: "durable", label: "Durable: it outlives the broker", type: "flag", value: true, help: "Quorum queues and streams always are." },
      { name: "auto_delete", label: "Auto-delete: it goes with its last consumer", type: "flag" },
      { name: "arguments", label: "Arguments", type: "table", keys: QUEUE_ARGUMENTS },
    ],
    run: async ({ vhost, name: queue, type, durable, auto_delete, arguments: given }) => {
      await context.api.put(path("queues", vhost, queue), { durable, auto_delete, arguments: { "x-queue-type": type, ...given } });
      made = [vhost, queue];
    },
  });
  if (!done) return;
  context.tell(`Queue ${made[1]} was declared.`);
  context.go(href("queues", ...made));
}

/**
 * @param {import("../main.js").Context} context
 * @param {string} vhost
 * @param {string} exchange empty: the default one
 * @param {string} routingKey to begin with
 */
export async function publish(context, vhost, exchange, routingKey) {
  let routed = false;
  const done = await ask({
    title: exchange === "" ? "Publish to the queue" : "Publish",
    text: exchange === "" ? ["By the default exchange, with the queue's name as routing key."] : ["To exchange ", name(exchange), "."],
    label: "Publish",
    fields: [
      { name: "routing_key", label: "Routing key", value: routingKey, fixed: exchange === "" },
      { name: "payload", label: "Payload", type: "long" },
      {
        name: "payload_encoding",
        label: "The payload is",
        type: "select",
        value: "string",
        options: [
          { value: "string", label: "text, sent as UTF-8" },
          { value: "base64", label: "base64 of bytes" },
        ],
      },
      { name: "durable", label: "Persistent", type: "flag", value: true },
      { name: "properties", label: "Properties", type: "table", keys: PROPERTIES },
      { name: "headers", label: "Headers", type: "table" },
    ],
    run: async ({ durable, properties, headers, ...message }) => {
      const all = { delivery_mode: durable ? 2 : 1, ...properties, ...(Object.keys(headers).length ? { headers } : {}) };
      ({ routed } = await context.api.post(path("exchanges", vhost, exchangeInPath(exchange), "publish"), { ...message, properties: all }));
    },
  });
  if (!done) return;
  context.tell(routed ? "Published: a queue has taken the message." : "Published, but no queue takes it: nothing is bound for this routing key.");
  context.again();
}

const PROPERTIES = {
  content_type: "text",
  content_encoding: "text",
  priority: "number",
  correlation_id: "text",
  reply_to: "text",
  expiration: "text",
  message_id: "text",
  timestamp: "number",
  type: "text",
  user_id: "text",
  app_id: "text",
};

/** @param {import("../main.js").Context} context @param {string} vhost @param {string} queue */
export async function getMessages(context, vhost, queue) {
  let got = null;
  const done = await ask({
    title: "Get messages",
    text: ["For a look at what is in ", name(queue), ". No program should live on it."],
    label: "Get",
    fields: [
      { name: "count", label: "How many, at most", type: "number", value: 1, required: true },
      { name: "ackmode", label: "And then", type: "select", value: ACK_MODES[0].value, options: ACK_MODES },
      { name: "encoding", label: "Show payloads as", type: "select", value: "auto", options: [{ value: "auto", label: "text where they are UTF-8" }, { value: "base64", label: "base64" }] },
      { name: "truncate", label: "Show of each payload, in bytes", type: "number", value: 50_000 },
    ],
    run: async (values) => {
      got = await context.api.post(path("queues", vhost, queue, "get"), { ...values, truncate: values.truncate ?? 50_000 });
    },
  });
  if (!done) return;
  context.again();
  show(
    got.length ? `${count(got.length)} ${got.length === 1 ? "message" : "messages"}` : "The queue has no message ready",
    got.length ? h("p", { class: "said muted" }, `${count(got[got.length - 1].message_count)} more are ready behind them.`) : null,
    got.map((each, place) => messageOf(each, place)),
  ).classList.add("broad");
}

function messageOf(message, place) {
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const payload = h("pre", { class: "payload", tabindex: "0" });
  put(payload, visiblePayload(message));
  return h(
    "article",
    { class: "message" },
    h(
      "header",
      null,
      h("b", null, `${place + 1}`),
      h("span", null, "exchange ", name(message.exchange, "(default)")),
      h("span", null, "routing key ", name(message.routing_key)),
      h("span", null, `${count(message.payload_bytes)} bytes`),
      message.payload_encoding === "base64" ? h("span", null, "shown as base64") : null,
      message.redelivered ? h("span", null, "redelivered") : null,
    ),
    Object.keys(properties).length ? pairs(properties) : null,
    headers && Object.keys(headers).length ? pairs(headers) : null,
    payload,
  );
}

/** Lines and tabs are part of how a payload reads; all else that has no form is shown. */
function visiblePayload({ payload }) {
  if (payload === "") return "(empty)";
  return payload.split(/([\n\t])/).map((each) => (each === "\n" || each === "\t" ? each : visible(each))).join("");
}

/** @param {import("../main.js").Context} context @param {any} queue as the API has it */
export async function purge(context, queue) {
  const done = await ask({
    title: "Purge the queue?",
    text: ["All messages that are ready are lost: ", h("b", null, count(queue.messages_ready)), " now. Those that consumers hold stay."],
    label: "Purge",
    danger: true,
    typed: queue.name,
    run: () => context.api.delete(path("queues", queue.vhost, queue.name, "contents")),
  });
  if (!done) return;
  context.tell(`Queue ${queue.name} was purged.`);
  context.again();
}

/** @param {import("../main.js").Context} context @param {any} queue as the API has it */
export async function deleteQueue(context, queue) {
  const done = await ask({
    title: "Delete the queue?",
    text: ["With its messages, ", h("b", null, count(queue.messages)), " now, and its bindings. Consumers are cancelled: ", h("b", null, count(queue.consumers)), "."],
    fields: [
      { name: "unused", label: "Only if it has no consumers", type: "flag" },
      { name: "empty", label: "Only if it has no messages", type: "flag" },
    ],
    label: "Delete",
    danger: true,
    typed: queue.name,
    run: ({ unused, empty }) => context.api.delete(withQuery(path("queues", queue.vhost, queue.name), { "if-unused": unused, "if-empty": empty })),
  });
  if (!done) return;
  context.tell(`Queue ${queue.name} was deleted.`);
  context.go(href("queues"));
}
