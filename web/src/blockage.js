/** blockage: what a node waits for, in words, and how hard an edge is pushed back. */

const WORDS = {
  channel: ["waits for room downstream", "held"],
  window: ["window full, waits for acks", "held"],
  "dead letters": ["stores a dead letter", "busy"],
  source: ["waits for new records", "idle"],
  "source ack": ["tells the source", "busy"],
  store: ["saves its position", "busy"],
  processor: ["processes", "busy"],
  write: ["writes", "busy"],
  flush: ["flushes", "busy"],
  answers: ["waits for answers", "idle"],
  commit: ["waits for the last commit", "busy"],
  "back-off": ["backs off before a retry", "held"],
};

/** What blocks a node: {text, mood}, the mood being "held", "busy" or "idle". */
export function blockage(waitingOn) {
  if (!waitingOn) return { text: "ready", mood: "idle" };
  const [text, mood] = WORDS[waitingOn] ?? [waitingOn, waitingOn.startsWith("back-off") ? "held" : "busy"];
  return { text, mood };
}

const HELD = new Set(["channel", "window"]);
const MERELY_FULL = 0.1;

/**
 * How hard every edge of a pipeline is pushed back at this moment, from 0 to 1: a Map by `edgeKey`. A channel that is
 * full for an instant is how batches travel; it is pressure when a source before it is kept from reading.
 */
export function pressures(nodes, edges) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const held = heldBack(nodes, byId);
  return new Map(edges.map(([from, to]) => [edgeKey(from, to), pressure(byId.get(from), byId.get(to), held)]));
}

export function edgeKey(from, to) {
  return `${from}\n${to}`;
}

/** The ids of the nodes that come after a source which waits for room. Nodes are in topological order. */
function heldBack(nodes, byId) {
  const held = new Set();
  for (const node of nodes) {
    const source = node.kind === "source" && HELD.has(node.waiting_on);
    if (source || node.inputs.some((input) => held.has(byId.get(input).id))) held.add(node.id);
  }
  return held;
}

function pressure(from, to, held) {
  const full = to.queue_size ? Math.min(1, to.queued / to.queue_size) : 0;
  // A node waits for the fullest of its outputs; one that shares the task of the next has no queue between.
  const waits = HELD.has(from.waiting_on) && (full === 1 || HELD.has(to.waiting_on) || from.outputs.length === 1);
  const here = waits ? 1 : full * 0.6;
  return held.has(from.id) ? here : Math.min(here, MERELY_FULL);
}

/** The level of a pressure that is drawn: one look is chance, so it is the mean of several. */
export function level(mean) {
  if (mean < 0.2) return "free";
  if (mean < 0.6) return "tight";
  return "blocked";
}
