/** Connections, and one of them with its sessions and links, or channels. */

import { path } from "../api.js";
import { name, put } from "../dom.js";
import { byteRate, bytes, count, moment, peer } from "../format.js";
import { badge, heading, stateBadge } from "../parts.js";
import { href } from "../router.js";
import { link, table } from "../table.js";
import { drawConnection } from "./connection.js";

/** @type {import("./index.js").View} */
export const view = {
  title: ([connection]) => (connection === undefined ? "Connections" : `Connection ${connection}`),
  draw(host, [connection], context) {
    if (connection !== undefined) return drawConnection(host, connection, context);
    const rows = table(context, {
      id: "connections",
      label: "Connections",
      path: context.vhost ? path("vhosts", context.vhost, "connections") : "/connections",
      paged: true,
      fields: ["name"],
      rowKey: (row) => row.name,
      rowHref: (row) => href("connections", row.name),
      filterBy: "address",
      empty: context.can("monitoring") ? "No client is connected." : "You have no connection here.",
      columns: COLUMNS,
    });
    put(host, heading("Connections"), rows.element);
    return undefined;
  },
};

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

