/** Light or dark: as the system has it, unless this browser was told otherwise. */

const KEY = "amqp10broker.theme";
const MODES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

/** @returns {string} auto, light or dark */
export function mode() {
  const kept = localStorage.getItem(KEY);
  return MODES.includes(kept) ? kept : "auto";
}

/** Take the next mode. @returns {string} it */
export function next() {
  const chosen = MODES[(MODES.indexOf(mode()) + 1) % MODES.length];
  localStorage.setItem(KEY, chosen);
  apply();
  return chosen;
}

/** Begin, and follow the system. */
export function begin() {
  system.addEventListener("change", apply);
  apply();
}

function apply() {
  const chosen = mode();
  document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}
