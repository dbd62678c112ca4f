/** fleetOrder: which pipelines are shown, and in which order. */

const URGENCY = ["degraded", "recovering", "stopping", "running", "waiting", "created", "stopped", "completed"];

// Made once: `localeCompare` makes one for every two names.
const names = new Intl.Collator("en", { numeric: true });

/** What each order compares, smaller first. */
const KEYS = {
  attention: (row) => [URGENCY.indexOf(row.pipeline.status), row.held ? 0 : 1],
  name: () => [],
  rate: (row) => [-(row.rate ?? -1)],
  flight: (row) => [-(row.pipeline.progress?.in_flight ?? -1)],
  letters: (row) => [-(row.pipeline.progress?.dead_letters ?? -1)],
  since: (row) => [-row.pipeline.since],
};

export const ORDERS = Object.keys(KEYS);

/** The rows in an order; equals by name. */
export function ordered(rows, order) {
  const key = KEYS[order] ?? KEYS.attention;
  return rows
    .map((row) => [key(row), row])
    .sort(([a, rowA], [b, rowB]) => compare(a, b) || names.compare(rowA.pipeline.id, rowB.pipeline.id))
    .map(([, row]) => row);
}

function compare(a, b) {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : a[at] - b[at];
}

/** Whether every word of a text is somewhere in what is known of a pipeline. */
export function matches(pipeline, text) {
  const { id, description, status, error, progress } = pipeline;
  const known = [id, description, status, error?.message, error?.code, progress?.blocked_on].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => known.includes(word));
}

/** How many pipelines there are of each status. */
export function counts(pipelines) {
  const found = {};
  for (const { status } of pipelines) found[status] = (found[status] ?? 0) + 1;
  return found;
}
