/** exactJson: JSON whose numbers stay as they were written. JavaScript would round 2^53 + 1, and take 1.0 for 1. */

/** Whether this browser can; without it records are shown but not edited. */
export const isExact = typeof JSON.rawJSON === "function";

/** A value whose numbers, where they would not come back as they were, are kept as text for `JSON.stringify`. */
export function parseExact(text) {
  if (!isExact) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value,
  );
}

/** An object whose members of these names are exact, and all others as usual: times and counts are numbers to us. */
export function parseRecords(text, names) {
  const exact = parseExact(text);
  return { ...JSON.parse(text), ...Object.fromEntries(names.map((name) => [name, exact[name]])) };
}

/** Whether a value is a number that was kept as text. */
export function isRaw(value) {
  return isExact && JSON.isRawJSON(value);
}
