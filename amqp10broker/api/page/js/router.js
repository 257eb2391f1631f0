/**
 * Where the page is: `#/view/parameter/parameter?query`, each part percent-encoded.
 *
 * @typedef {{view: string, parameters: string[], query: URLSearchParams}} Place
 */

/** @param {string} hash as in `location.hash` @returns {Place} */
export function parse(hash) {
  const [path, ...query] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...parameters] = path.split("/").map(decoded);
  return { view, parameters, query: new URLSearchParams(query.join("?")) };
}

/**
 * The address of a view.
 *
 * @param {string} view its name in `views/index.js`
 * @param {...(string | number)} parameters
 * @returns {string} for `href`
 */
export function href(view, ...parameters) {
  return `#/${[view, ...parameters].map((each) => encodeURIComponent(each)).join("/")}`;
}

/**
 * The address of the timeline of a link of AMQP 1.0, or of a consumer or channel of AMQP 0-9-1.
 *
 * @param {string} connection its name
 * @param {number} channel of the session, or the channel's number
 * @param {string} [link] its name, or the consumer's tag; without one it is the whole channel
 * @param {"sender" | "receiver"} [role] of the client at a link of AMQP 1.0
 */
export function timeline(connection, channel, link, role) {
  return href("timeline", connection, channel, ...(link === undefined ? [] : [link]), ...(role ? [role] : []));
}

/**
 * The address with another query, which no view is drawn anew for.
 *
 * @param {Place} place
 * @param {Object<string, string | number | boolean | null>} values those that are empty are left out
 */
export function remember(place, values) {
  for (const [key, value] of Object.entries(values)) {
    if (value === null || value === "" || value === false) place.query.delete(key);
    else place.query.set(key, String(value));
  }
  const query = place.query.toString();
  history.replaceState(null, "", href(place.view, ...place.parameters) + (query && `?${query}`));
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

