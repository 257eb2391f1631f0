/**
 * All views. To add one, write `views/NAME.js`, which exports `view`, and a line here.
 *
 * @typedef {object} View
 * @property {string | ((parameters: string[]) => string)} title of the window
 * @property {(host: HTMLElement, parameters: string[], context: import("../main.js").Context) => void | (() => void)}
 *   draw fills the host; `parameters` are the parts of the address behind the view's name (`#/queues/%2F/a` gives
 *   `["/", "a"]`); what it returns ends it. Watches and keys of the context end by themselves.
 *
 * @typedef {object} Entry
 * @property {string} name the first part of its address
 * @property {string} label in the navigation
 * @property {string} group of the navigation
 * @property {"management" | "policymaker" | "monitoring" | "administrator"} tag the least that a user needs
 * @property {string} key that, after g, leads there
 * @property {() => Promise<{view: View}>} load
 */

/** @type {Entry[]} in the order of the navigation */
export const VIEWS = [
  { name: "overview", label: "Overview", group: "", tag: "management", key: "o", load: () => import("./overview.js") },
  { name: "waiting", label: "Waiting", group: "Flow", tag: "management", key: "w", load: () => import("./waiting.js") },
  { name: "timeline", label: "Timelines", group: "Flow", tag: "management", key: "t", load: () => import("./timeline.js") },
  { name: "connections", label: "Connections", group: "Clients", tag: "management", key: "c", load: () => import("./connections.js") },
  { name: "channels", label: "Channels", group: "Clients", tag: "management", key: "h", load: () => import("./channels.js") },
  { name: "consumers", label: "Consumers", group: "Clients", tag: "management", key: "s", load: () => import("./consumers.js") },
  { name: "queues", label: "Queues", group: "Messages", tag: "management", key: "q", load: () => import("./queues.js") },
  { name: "exchanges", label: "Exchanges", group: "Messages", tag: "management", key: "e", load: () => import("./exchanges.js") },
  { name: "policies", label: "Policies", group: "Administration", tag: "management", key: "l", load: () => import("./policies.js") },
  { name: "vhosts", label: "Virtual hosts", group: "Administration", tag: "management", key: "v", load: () => import("./vhosts.js") },
  { name: "users", label: "Users", group: "Administration", tag: "administrator", key: "u", load: () => import("./users.js") },
  { name: "definitions", label: "Definitions", group: "Administration", tag: "administrator", key: "d", load: () => import("./definitions.js") },
  { name: "nodes", label: "Nodes", group: "Administration", tag: "monitoring", key: "n", load: () => import("./nodes.js") },
];
