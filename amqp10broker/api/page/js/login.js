/** The log-in. What was given is kept for this tab alone, and goes with each request. */

import { Api, ApiError } from "./api.js";
import { h, put, visible } from "./dom.js";

const KEY = "amqp10broker.login";

/** @returns {string | null} the value of the header that this tab has kept */
export function kept() {
  return sessionStorage.getItem(KEY);
}

/** Forget the log-in of this tab. */
export function forget() {
  sessionStorage.removeItem(KEY);
}

/**
 * What a refused log-in means to its user.
 *
 * @param {ApiError} error
 * @returns {string}
 */
export function reasonOf(error) {
  if (error.reason === "Not management user") {
    return "This user may not use this page: it has none of the tags management, policymaker, monitoring and administrator.";
  }
  if (error.status === 401) return "The broker does not know this user with this password. guest may log in from the broker's own machine only.";
  if (error.status === 0) return "The broker does not answer. Is it running?";
  return `The broker refused: ${error.reason}`;
}

/**
 * Ask for a user.
 *
 * @param {Element} host
 * @param {string} reason why, empty at first
 * @returns {Promise<{authorization: string, me: {name: string, tags: string[]}}>} who has logged in
 */
export function logIn(host, reason) {
  return new Promise((resolve) => {
    const fault = h("p", { class: "fault", role: "alert", hidden: reason === "" }, visible(reason));
    const user = h("input", { id: "user", name: "username", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
    const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password" });
    const token = h("textarea", { id: "token", rows: 4, spellcheck: "false", autocomplete: "off" });
    const send = h("button", { type: "submit", class: "button primary wide" }, "Log in");
    const withUser = h("div", null, h("div", { class: "field" }, h("label", { for: "user" }, "User"), user), h("div", { class: "field" }, h("label", { for: "password" }, "Password"), password));
    const withToken = h("div", { hidden: true }, h("div", { class: "field" }, h("label", { for: "token" }, "Token (OAuth 2)"), token));
    const other = h(
      "button",
      {
        type: "button",
        class: "plain-link",
        onclick: () => {
          withUser.hidden = !withUser.hidden;
          withToken.hidden = !withToken.hidden;
          user.required = withToken.hidden;
          token.required = withUser.hidden;
          put(other, withToken.hidden ? "Log in with a token" : "Log in with a password");
          (withToken.hidden ? user : token).focus();
        },
      },
      "Log in with a token",
    );
    const submit = async (event) => {
      event.preventDefault();
      fault.hidden = true;
      send.disabled = true;
      const authorization = withToken.hidden ? Api.basic(user.value, password.value) : `Bearer ${token.value.trim()}`;
      try {
        const me = await new Api(authorization, () => {}).get("/whoami");
        sessionStorage.setItem(KEY, authorization);
        resolve({ authorization, me });
      } catch (error) {
        put(fault, visible(error instanceof ApiError ? reasonOf(error) : error.message));
        fault.hidden = false;
        send.disabled = false;
        password.value = "";
        (withToken.hidden ? password : token).focus();
      }
    };
    put(
      host,
      h(
        "main",
        { class: "login", id: "main" },
        h(
          "form",
          { class: "card", onsubmit: submit, "aria-label": "Log in" },
          h("img", { src: "icon.svg", alt: "", width: 40, height: 40 }),
          h("h1", null, "amqp10broker"),
          fault,
          withUser,
          withToken,
          send,
          other,
        ),
      ),
    );
    user.focus();
  });
}
