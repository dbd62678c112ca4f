/** lettersQuery: which dead letters are meant, in the address, to the server and in words. */

const NAMES = ["pipeline", "node", "cause", "text", "state"];

/** The part of a query that says which letters: it goes into the address of a request and into a filter. */
export function filterOf(query, pipeline = null) {
  const given = NAMES.filter((name) => query[name]).map((name) => [name, query[name]]);
  return { ...Object.fromEntries(given), ...(pipeline === null ? {} : { pipeline }) };
}

/** A filter, and further parameters, after `?`. */
export function search(filter, more = {}) {
  return new URLSearchParams(Object.entries({ ...filter, ...more }).filter(([, value]) => value)).toString();
}
