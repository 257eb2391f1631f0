/** Numbers, times and values as text. What is not known is a dash, never a zero. */

export const NOTHING = "\u2013";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** @param {number | null | undefined} value @returns {string} with separators between thousands */
export function count(value) {
  return typeof value === "number" ? WHOLE.format(value) : NOTHING;
}

/** @param {number | null | undefined} value @returns {string} such as 12.3k, for little room */
export function short(value) {
  if (typeof value !== "number") return NOTHING;
  const size = Math.abs(value);
  for (const [least, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= least) return `${FINE.format(value / (sign === "k" ? 1e3 : least))}${sign}`;
  }
  return size < 100 ? FINE.format(value) : WHOLE.format(value);
}

/** @param {number | null | undefined} value per second @returns {string} */
export function rate(value) {
  return typeof value === "number" ? `${short(value)}/s` : NOTHING;
}

/** @param {number | null | undefined} value @returns {string} in binary units */
export function bytes(value) {
  if (typeof value !== "number") return NOTHING;
  let rest = value;
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (Math.abs(rest) >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest < 10 && unit > 0 ? FINE.format(rest) : WHOLE.format(rest)} ${units[unit]}`;
}

/** @param {number | null | undefined} value bytes per second @returns {string} */
export function byteRate(value) {
  return typeof value === "number" ? `${bytes(value)}/s` : NOTHING;
}

/** @param {number | null | undefined} seconds @returns {string} its two largest units */
export function duration(seconds) {
  if (typeof seconds !== "number") return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${FINE.format(seconds)} s`;
  const whole = Math.floor(seconds);
  for (const [size, sign, below, name] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole >= size) return `${Math.floor(whole / size)} ${sign} ${Math.floor((whole % size) / below)} ${name}`;
  }
  return `${whole} s`;
}

/** @param {number} ms since the epoch @returns {string} the time of day */
export function timeOfDay(ms) {
  return TIME.format(ms);
}

/** @param {number | null | undefined} ms since the epoch @returns {string} day and time */
export function moment(ms) {
  if (typeof ms !== "number" || ms === 0) return NOTHING;
  const at = new Date(ms);
  const two = (each) => String(each).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${TIME.format(at)}`;
}

/** @param {string} text the name of a connection or channel @returns {string} without the broker's own address */
export function peer(text) {
  return text.replace(/ -> \S+/, "");
}

/** @param {unknown} value @returns {string} of arguments and definitions: short, on one line */
export function brief(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** @param {any} row @param {string} path keys with dots @returns {any} undefined if nothing stands there */
export function at(row, path) {
  return path.split(".").reduce((value, key) => value?.[key], row);
}
