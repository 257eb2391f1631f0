// A broker for tests in Node: node --test examples/ready_file/broker.test.mjs

import assert from "node:assert";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

let child;
let broker;

before(async () => {
  const file = join(mkdtempSync(join(tmpdir(), "broker-")), "ready.json");
  child = spawn("amqp10broker", ["serve", "--port", "0", "--ready-file", file, "--log-level", "warning"]);
  while (!existsSync(file)) {
    assert.equal(child.exitCode, null, "the broker did not start");
    await sleep(50);
  }
  broker = JSON.parse(readFileSync(file, "utf8"));
});

after(() => child.kill("SIGTERM"));

test("the broker accepts connections", async () => {
  const socket = connect(broker.port, "127.0.0.1");
  socket.write("AMQP\x03\x01\x00\x00");
  const [header] = await new Promise((resolve, reject) => {
    socket.once("data", (...data) => resolve(data));
    socket.once("error", reject);
  });
  assert.equal(header.subarray(0, 4).toString(), "AMQP");
  socket.destroy();
});
