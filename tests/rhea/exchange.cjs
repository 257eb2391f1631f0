// What rhea does over a WebSocket, of Node's own: node exchange.cjs URL QUEUE. Prints one line a case, its name, a
// tab, and what came of it; rhea is found by NODE_PATH.
"use strict";

const rhea = require("rhea");

const [url, queue] = process.argv.slice(2);
const PROTOCOLS = ["binary", "AMQPWSB10", "amqp"]; // as rhea's own examples have them
const COUNT = 300;
const LARGE = 400000;

const container = rhea.create_container({ id: `rhea.${queue}` });

let closed; // how the last WebSocket ended

function watched(...given) {
  const socket = new WebSocket(...given);
  closed = new Promise((resolve) => socket.addEventListener("close", resolve));
  return socket;
}

function connect(options) {
  const websocket = container.websocket_connect(watched);
  const login = { username: "guest", password: "guest", reconnect: false };
  return container.connect({ connection_details: websocket(url, PROTOCOLS), ...login, ...options });
}

function say(name, result) {
  console.log(`${name}\t${result}`);
}

function until(emitter, event) {
  return new Promise((resolve) => emitter.once(event, resolve));
}

async function exchange() {
  const connection = connect();
  const receiver = connection.open_receiver({ source: queue, credit_window: 20 });
  const sender = connection.open_sender(queue);
  const numbers = [];
  let sent = 0;
  let accepted = 0;
  const all = new Promise((resolve) => {
    const look = () => accepted === COUNT && numbers.length === COUNT && resolve();
    sender.on("sendable", () => {
      while (sender.sendable() && sent < COUNT) {
        sender.send({ message_id: sent, body: "x".repeat(sent === 7 ? LARGE : 10) });
        sent += 1;
      }
    });
    sender.on("accepted", () => { accepted += 1; look(); });
    receiver.on("message", ({ message }) => {
      numbers.push(message.body.length === (message.message_id === 7 ? LARGE : 10) ? message.message_id : -1);
      look();
    });
  });
  await all;
  say("messages come in order", numbers.every((number, at) => number === at));
  connection.close();
  say("the websocket ends", (await closed).code);
}

async function wrongPassword() {
  const connection = connect({ password: "wrong" });
  const { error } = await until(connection, "connection_error");
  say("a wrong password", error.condition);
}

async function request() {
  const connection = connect();
  const answers = connection.open_receiver({ source: { dynamic: true } });
  await until(answers, "receiver_open");
  const questions = connection.open_receiver(queue);
  questions.on("message", ({ message }) => {
    connection.open_sender(message.reply_to).send({ body: message.body.toUpperCase() });
  });
  connection.open_sender(queue).send({ reply_to: answers.source.address, body: "question" });
  const { message } = await until(answers, "message");
  say("a request", message.body);
  connection.close();
  await closed;
}

(async () => {
  await exchange();
  await request();
  await wrongPassword();
  process.exit(0);
})();
