/** The broker's HTTP API, asked as one user. No cookie is used: the log-in goes with each request. */

/** A request that was refused, or not answered. */
export class ApiError extends Error {
  /**
   * @param {number} status of HTTP, 0: there was no answer
   * @param {string} error the API's short identifier
   * @param {string} reason a sentence
   */
  constructor(status, error, reason) {
    super(reason);
    this.status = status;
    this.error = error;
    this.reason = reason;
  }

  /** The log-in is wrong or has ended; a missing right (`not_authorised`) is another thing. */
  get loggedOut() {
    return this.status === 401 && this.error !== "not_authorised";
  }
}

const SUFFICIENT = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

/** Whether tags of a user suffice. @param {string[]} tags @param {keyof SUFFICIENT} wanted */
export function suffices(tags, wanted) {
  return SUFFICIENT[wanted].some((each) => tags.includes(each));
}

/** A path of the API, percent-encoded. @param {...(string | number)} parts between slashes */
export function path(...parts) {
  return `/${parts.map((each) => encodeURIComponent(each)).join("/")}`;
}

/** A path with a query; values that are empty are left out. */
export function withQuery(where, values) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(key, String(value));
  }
  return query.size ? `${where}?${query}` : where;
}

/** The name of an exchange in paths: the default one has none of its own. */
export function exchangeInPath(exchange) {
  return exchange === "" ? "amq.default" : exchange;
}

/** Requests of one user. */
export class Api {
  /**
   * @param {string} authorization the value of the header
   * @param {(error: ApiError) => void} loggedOut is told when the log-in has ended
   */
  constructor(authorization, loggedOut) {
    this.authorization = authorization;
    this.loggedOut = loggedOut;
  }

  /** @param {string} user @param {string} password @returns {string} the value of the header */
  static basic(user, password) {
    const bytes = new TextEncoder().encode(`${user}:${password}`);
    return `Basic ${btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join(""))}`;
  }

  /**
   * Ask, and take the answer as it comes.
   *
   * @param {string} method of HTTP
   * @param {string} where below `/api`
   * @param {{body?: any, headers?: Object<string, string>, signal?: AbortSignal}} [options] the body goes as JSON
   * @returns {Promise<Response>}
   * @throws {ApiError}
   */
  async ask(method, where, { body, headers = {}, signal } = {}) {
    let response;
    try {
      response = await fetch(new URL(`api${where}`, document.baseURI), {
        method,
        headers: {
          authorization: this.authorization,
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
        signal,
      });
    } catch (fault) {
      if (signal?.aborted) throw fault;
      throw new ApiError(0, "unreachable", "the broker does not answer");
    }
    if (response.ok) return response;
    const error = await refusal(response);
    if (error.loggedOut) this.loggedOut(error);
    throw error;
  }

  async get(where, signal) {
    return (await this.ask("GET", where, { signal })).json();
  }

  put(where, body = {}) {
    return this.ask("PUT", where, { body });
  }

  /** @returns {Promise<any>} the answer's JSON, null without */
  async post(where, body = {}) {
    const text = await (await this.ask("POST", where, { body })).text();
    return text ? JSON.parse(text) : null;
  }

  delete(where, options) {
    return this.ask("DELETE", where, options);
  }
}

async function refusal(response) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    // Some refusals have no body.
  }
  if (told.reason === "Access refused.") told.reason = "Access refused: your permissions in this virtual host do not allow it, or the name is the broker's own (amq.).";
  const reason = typeof told.reason === "string" ? told.reason : response.statusText || `status ${response.status}`;
  return new ApiError(response.status, String(told.error ?? ""), reason);
}
