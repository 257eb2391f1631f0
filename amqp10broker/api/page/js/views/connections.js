/** Connections, and one of them: who, since when, and what flows on it, in sessions with their links, or channels. */

import { path } from "../api.js";
import { History, chart } from "../chart.js";
import { ask } from "../dialogs.js";
import { h, name, put, visible } from "../dom.js";
import { byteRate, bytes, count, duration, moment, peer, short } from "../format.js";
import { badge, button, facts, follow, heading, muted, pairs, panel, refresh, stateBadge, terms, waitBadge, waitsInVain } from "../parts.js";
import { href, timeline } from "../router.js";
import { link, listView, table } from "../table.js";
import { CHANNEL_COLUMNS } from "./channels.js";

/** @type {import("./index.js").View} */
export const view = listView("Connections", "Connection", 1, listOf, drawOne);

function listOf(context) {
  return {
    id: "connections",
    path: context.vhost ? path("vhosts", context.vhost, "connections") : "/connections",
    fields: ["name"],
    rowKey: (row) => row.name,
    rowHref: (row) => href("connections", row.name),
    filterBy: "address",
    empty: context.can("monitoring") ? "No client is connected." : "You have no connection here.",
    columns: COLUMNS,
  };
}

const COLUMNS = [
  { key: "user_provided_name", title: "Client", help: "connection_name, or the container-id; else the address", cell: (row) => link(href("connections", row.name), row.user_provided_name || peer(row.name)) },
  { key: "name", width: 140, title: "Address", cell: (row) => name(peer(row.name)) },
  { key: "protocol", width: 104, title: "Protocol", cell: (row) => row.protocol },
  { key: "vhost", title: "Virtual host", cell: (row) => name(row.vhost) },
  { key: "user", width: 96, title: "User", cell: (row) => name(row.user) },
  { key: "state", width: 98, title: "State", cell: (row) => stateBadge(row.state) },
  { key: "channels", width: 92, title: "Channels", help: "channels, or sessions of AMQP 1.0", number: true, cell: (row) => count(row.channels) },
  { key: "recv_oct_details.rate", width: 100, title: "From client", number: true, cell: (row) => byteRate(row.recv_oct_details?.rate) },
  { key: "send_oct_details.rate", width: 100, title: "To client", number: true, cell: (row) => byteRate(row.send_oct_details?.rate) },
  { key: "send_pend", title: "Unsent", help: "bytes that the client's socket does not take", number: true, cell: (row) => (row.send_pend ? badge(bytes(row.send_pend), "warn") : "0") },
  { key: "recv_oct", title: "Received", number: true, spare: true, cell: (row) => bytes(row.recv_oct) },
  { key: "send_oct", title: "Sent", number: true, spare: true, cell: (row) => bytes(row.send_oct) },
  { key: "connected_at", title: "Since", spare: true, cell: (row) => moment(row.connected_at) },
  { key: "auth_mechanism", title: "SASL", spare: true, cell: (row) => row.auth_mechanism },
  { key: "ssl", title: "TLS", spare: true, cell: (row) => (row.ssl ? "yes" : "no") },
  { key: "transport", title: "Transport", spare: true, cell: (row) => ({ websocket: "WebSocket", tls: "TLS" })[row.transport] ?? "TCP" },
  { key: "peer_host", title: "Host", spare: true, cell: (row) => name(row.peer_host) },
  { key: "frame_max", title: "Frame max", spare: true, number: true, cell: (row) => count(row.frame_max) },
  { key: "node", title: "Node", spare: true, cell: (row) => name(row.node) },
];

const TEN = "AMQP 1-0";
const LINKS_MAX = 100;
/** One connection is little: it is looked at more often than lists are. */
const FOLLOWED = { interval: 1000, always: true };
const CURVES = [
  { key: "in", label: "from client" },
  { key: "out", label: "to client" },
];

function drawOne(host, context, connection) {
  const octets = new History();
  const octetChart = chart(octets, { label: "Bytes per second", curves: CURVES, format: byteRate, axis: (value) => `${short(value)} B` });
  const head = h("div");
  const about = h("div");
  const below = h("div", { class: "stack" });
  put(host, head, below, h("div", { class: "columns" }, octetChart.element, about));

  let drawn = null;
  follow(context, path("connections", connection), host, "This connection", (value) => {
    octets.push({ in: value.recv_oct_details?.rate, out: value.send_oct_details?.rate });
    octetChart.draw();
    refresh(head, [value.state, value.channels], () => headOf(value, context));
    refresh(about, { ...value, recv_oct_details: 0, send_oct_details: 0 }, () => aboutOf(value));
    if (drawn === null) {
      drawn = value.protocol;
      if (drawn === TEN) drawSessions(below, value, context);
      else drawChannels(below, value, context);
    }
  }, FOLLOWED);
}

function headOf(value, context) {
  const other = value.user !== context.me.name && !context.can("administrator");
  return heading(name(value.user_provided_name ?? value.name), {
    above: [h("a", { href: href("connections") }, "Connections"), " / from ", name(value.name.replace(" -> ", " to "))],
    badges: [stateBadge(value.state), badge(value.protocol.replace("1-0", "1.0")), value.transport === "websocket" ? badge("WebSocket") : null, value.ssl ? badge("TLS") : null],
    actions: [
      button("Close connection", () => close(value, context), {
        kind: "danger",
        refused: other && "another user's connection: needs the tag administrator",
      }),
    ],
  });
}

function close(value, context) {
  ask({
    title: "Close this connection?",
    text: h("p", null, name(value.name), " of user ", name(value.user), " is told the reason. Most clients connect again at once."),
    fields: [{ name: "reason", label: "Reason, for the client", value: "Closed by an operator" }],
    label: "Close connection",
    danger: true,
    run: ({ reason }) => context.api.delete(path("connections", value.name), { headers: reason ? { "x-reason": ascii(reason) } : {} }),
    done: () => context.done("The connection was closed.", href("connections")),
  });
}

/** A header's value holds nothing else. */
function ascii(text) {
  return text.replace(/[^\x20-\x7e]/g, "?");
}

function aboutOf(value) {
  return panel(
    "About",
    facts([
      ["User", name(value.user)],
      ["Virtual host", name(value.vhost)],
      ["Since", moment(value.connected_at)],
      ["Container-id", value.container_id === undefined ? null : name(value.container_id)],
      ["SASL mechanism", value.auth_mechanism],
      ["Client's address", name(`${value.peer_host}:${value.peer_port}`)],
      ["Node", name(value.node)],
      ["Idle time-out", value.timeout ? duration(value.timeout) : "none"],
      ["Frame max", bytes(value.frame_max)],
      ["Channel max", count(value.channel_max)],
      ["Received", bytes(value.recv_oct)],
      ["Sent", bytes(value.send_oct)],
      ["Unsent", value.send_pend ? badge(bytes(value.send_pend), "warn") : "0 B"],
    ]),
    h("h2", null, "Client properties"),
    pairs(value.client_properties),
  );
}

// --- AMQP 1.0 ---------------------------------------------------------------------------------------

function drawSessions(host, connection, context) {
  const none = panel("Sessions", h("p", { class: "muted" }, "The client has no session."));
  put(host, none);
  const shown = new Map();
  context.watch(`${path("connections", connection.name)}/sessions`, (sessions, error) => {
    if (error || !sessions) return;
    for (const [key, each] of shown) {
      if (!sessions.some((one) => one.channel_number === key)) {
        each.element.remove();
        shown.delete(key);
      }
    }
    if (!sessions.length) {
      put(host, none);
      return;
    }
    none.remove();
    for (const session of sessions) {
      let one = shown.get(session.channel_number);
      if (!one) {
        one = sessionPanel(session.channel_number, connection, context);
        shown.set(session.channel_number, one);
        host.append(one.element);
      }
      one.show(session);
    }
  });
}

function sessionPanel(channel, connection, context) {
  const windows = h("div");
  const links = { receiver: h("div"), sender: h("div") };
  const element = panel(
    `Session ${channel}`,
    windows,
    h("h2", null, "Links to the client"),
    links.receiver,
    h("h2", null, "Links from the client"),
    links.sender,
  );
  const list = (role, all) =>
    refresh(links[role], all, () => {
      if (!all.length) return h("p", { class: "muted" }, role === "receiver" ? "The client has no receiving link." : "The client has no sending link.");
      const shown = all.length > LINKS_MAX ? [...all].sort((one, other) => (other.waits_for_s ?? -1) - (one.waits_for_s ?? -1)).slice(0, LINKS_MAX) : all;
      return [
        all.length > LINKS_MAX ? h("p", { class: "muted" }, `These ${LINKS_MAX} of ${count(all.length)} links wait longest.`) : null,
        shown.map((each) => linkItem(each, role, connection, channel)),
      ];
    });
  const show = (session) => {
    refresh(windows, { ...session, incoming_links: 0, outgoing_links: 0 }, () =>
      facts([
        ["Incoming window", windowOf(session.incoming_window, "the client may send no transfer")],
        ["Remote incoming window", windowOf(session.remote_incoming_window, "the broker cannot send transfers")],
        ["Next incoming id", count(session.next_incoming_id)],
        ["Next outgoing id", count(session.next_outgoing_id)],
        ["Unsettled to the client", count(session.outgoing_unsettled_deliveries)],
      ]),
    );
    list("receiver", session.outgoing_links);
    list("sender", session.incoming_links);
  };
  return { element, show };
}

/** One link, with what it waits for. */
function linkItem(each, role, connection, channel) {
  const receives = role === "receiver";
  const numbers = [
    ["credit", each.credit === 0 ? badge("0", waitsInVain(each) ? "warn" : "", "no credit: nothing is sent") : count(each.credit)],
    ["delivery-count", count(each.delivery_count)],
    receives ? ["queue credit", count(each.queue_credit)] : null,
    ["unsettled", count(receives ? each.unsettled : each.unconfirmed_messages)],
    receives && each.send_settled ? ["sent", "settled"] : null,
  ];
  const address = receives ? each.source_address : each.target_address;
  return h(
    "article",
    { class: "link-item" },
    h(
      "div",
      { class: "line" },
      h("span", { class: "strong" }, name(each.link_name)),
      h("span", { class: "muted" }, receives ? "from " : "to ", address ? name(address) : "any address"),
      each.queue_name ? link(href("queues", connection.vhost, each.queue_name), each.queue_name) : null,
      h("span", { class: "space" }),
      waitBadge(each),
      h("a", { class: "button small", href: timeline(connection.name, channel, each.link_name, role) }, "Timeline"),
    ),
    terms("numbers", numbers.filter(Boolean)),
    each.waits_why ? h("p", { class: "why" }, visible(each.waits_why)) : null,
  );
}

function windowOf(value, closed) {
  return value === 0 ? badge(`0: ${closed}`, "warn") : count(value);
}

// --- AMQP 0-9-1 -------------------------------------------------------------------------------------

function drawChannels(host, connection, context) {
  const channels = table(context, {
    id: "channels-of-connection",
    label: "Channels",
    plain: true,
    path: `${path("connections", connection.name)}/channels`,
    rowKey: (row) => row.name,
    rowHref: (row) => href("channels", row.name),
    empty: "The client has no open channel.",
    columns: CHANNEL_COLUMNS.filter((each) => !["vhost", "user"].includes(each.key)),
  });
  put(host, panel("Channels", channels.element));
}
