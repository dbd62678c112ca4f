/** Recording: what one pipeline did of late: rates of its nodes, pressure on its edges, latencies. */
import { edgeKey, pressures } from "./blockage.js";
import { counted, quantile, together } from "./quantile.js";
import { Series } from "./series.js";

export const KEPT_SECONDS = 900;
const PRESSURE_LOOKS = 10;
const LATENCY_SECONDS = 1.9;
const COUNTERS = ["records", "filtered", "refused", "acked", "retries"];

export class Recording {
  #nodes = new Map();
  #pressures = new Map();
  #settling = new Map();
  #lookedAt = null;
  latencies = new Series(KEPT_SECONDS);
  totals = new Series(KEPT_SECONDS);

  /** Note how a pipeline is at a time. */
  push(at, pipeline) {
    if (pipeline.progress) this.totals.push({ at, ...pipeline.progress });
    for (const node of pipeline.nodes) this.#pushNode(at, node);
    for (const [edge, look] of pressures(pipeline.nodes, pipeline.edges)) this.#pushPressure(edge, look);
    this.#pushLatency(at, pipeline.nodes.filter((node) => node.kind === "source"));
  }

  /** Take over what the server remembers of the time in which nobody watched. */
  fill({ interval_seconds: interval, bounds, samples }) {
    this.totals.fill(samples.map(({ at, read, acked, dead_letters }) => ({ at, read, acked, dead_letters })), interval / 2);
    const latencies = samples.slice(1).map(({ at, settling }, i) => ({ at, ...quantiles(bounds, counted({ counts: samples[i].settling }, { counts: settling })) }));
    this.latencies.fill(latencies, interval / 2);
  }

  /** How many of what a counter of a node counts there are per second; null when that cannot be told. */
  nodeRate(id, counter = "records") {
    return this.#nodes.get(id)?.rate(counter) ?? null;
  }

  nodeSeries(id) {
    return this.#nodes.get(id) ?? null;
  }

  /** Records per second from one node to another. */
  edgeRate(from, to) {
    // What a node with one input takes is what crossed its edge, also when a condition kept some away.
    if (to.inputs.length === 1) return this.nodeRate(to.id, "taken");
    return this.nodeRate(from.id, "passed");
  }

  /** How hard an edge has been pushed back of late, from 0 to 1. */
  edgePressure(from, to) {
    const looks = this.#pressures.get(edgeKey(from, to)) ?? [];
    return looks.length ? looks.reduce((sum, look) => sum + look, 0) / looks.length : 0;
  }

  #pushNode(at, node) {
    if (!this.#nodes.has(node.id)) this.#nodes.set(node.id, new Series(KEPT_SECONDS));
    const counters = Object.fromEntries(COUNTERS.map((name) => [name, node[name]]));
    const destination = node.kind === "destination";
    const taken = destination ? node.records + node.refused : node.records;
    const passed = node.records - node.filtered - (node.kind === "processor" ? node.refused : 0);
    this.#nodes.get(node.id).push({ at, ...counters, taken, passed });
  }

  #pushPressure(edge, look) {
    const looks = this.#pressures.get(edge) ?? [];
    this.#pressures.set(edge, [...looks, look].slice(-PRESSURE_LOOKS));
  }

  #pushLatency(at, sources) {
    // Few records are settled in half a second: the slowest of them says little.
    if (at - (this.#lookedAt ?? 0) < LATENCY_SECONDS) return;
    this.#lookedAt = at;
    const before = sources.map((source) => this.#settling.get(source.id));
    for (const source of sources) this.#settling.set(source.id, source.settling);
    if (before.some((each) => each === undefined) || sources.length === 0) return;
    const counts = together(sources.map((source, i) => counted(before[i], source.settling)));
    this.latencies.push({ at, ...quantiles(sources[0].settling.bounds, counts) });
  }
}

function quantiles(bounds, counts) {
  const [p50, p95, p99] = [0.5, 0.95, 0.99].map((q) => quantile(q, bounds, counts));
  return { p50, p95, p99 };
}
