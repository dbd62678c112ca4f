/** lettersQuery: which dead letters are meant, in the address and to the server. */

const NAMES = ["pipeline", "node", "cause", "text", "state"];

/** The part of a query that says which letters: it goes into the address of a request and into a filter. */
export function filterOf(query, pipeline = null) {
  const given = NAMES.filter((name) => query[name]).map((name) => [name, query[name]]);
  return { ...Object.fromEntries(given), ...(pipeline === null ? {} : { pipeline }) };
}

/** A filter, and further parameters, with the `?` before them if there are any. */
export function search(filter, more = {}) {
  const given = Object.entries({ ...filter, ...more }).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
