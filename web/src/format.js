/** format: numbers, durations and times as people read them. */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
// Made once: each row of a long list shows a time, and `toLocaleString` makes one every time.
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

export const NONE = "–";

/** A count in at most six characters: 9,999 then 10.0k, 1.23M. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10_000 ? grouped.format(value) : compact(value);
}

/** Every digit of a count. */
export function exact(value) {
  return value === null || value === undefined ? NONE : grouped.format(value);
}

/** Records per second, without the unit. */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  if (value < 10) return value.toFixed(1).replace(/\.0$/, "");
  return value < 10_000 ? grouped.format(value) : compact(value);
}

function compact(value) {
  const [size, unit] = UNITS.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${(value / size).toPrecision(3)}${unit}`;
}

/** How long something took or takes: 850 µs, 12 ms, 1.2 s, 3 min 20 s, 2 h 5 min, 3 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short(seconds * 1000)} ms`;
  if (seconds < 60) return `${short(seconds)} s`;
  return long(Math.round(seconds));
}

function short(value) {
  return value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : String(Math.round(value));
}

function long(seconds) {
  const steps = [
    [86_400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ];
  const [size, unit, next, nextUnit] = steps.find(([size]) => seconds >= size);
  const rest = Math.floor((seconds % size) / next);
  return rest ? `${Math.floor(seconds / size)} ${unit} ${rest} ${nextUnit}` : `${Math.floor(seconds / size)} ${unit}`;
}

/** How long ago, in one unit: it is read at a glance. */
export function ago(at, now) {
  const seconds = Math.max(0, now - at);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** The day and time of seconds since 1970, where the reader is. */
export function moment(at) {
  return moments.format(at * 1000);
}

/** The machine's form of a time, for `<time datetime>`. */
export function iso(at) {
  return new Date(at * 1000).toISOString();
}

export function plural(n, one, many = `${one}s`) {
  return `${exact(n)} ${n === 1 ? one : many}`;
}
