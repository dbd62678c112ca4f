/** PipelineTiles: a pipeline in eight numbers. */
import { count, duration, exact, moment, rate } from "../format.js";
import { html } from "../html.js";
import { recording } from "../live.js";
import { Tile } from "./tile.js";

export function PipelineTiles({ seen }) {
  const { pipeline } = seen;
  const { totals, latencies } = recording(pipeline.id);
  const { progress } = pipeline;
  if (!progress) return null;
  const alive = ["running", "recovering", "stopping"].includes(pipeline.status);
  const windows = pipeline.nodes.reduce((sum, node) => sum + node.window, 0);
  const of = (name) => (alive ? rate(totals.rate(name)) : "0");
  return html`<dl class="tiles" aria-label="Numbers">
    <${Tile} name="Read" value=${of("read")} unit="/s" title=${`${exact(progress.read)} in all`} />
    <${Tile} name="Delivered" value=${of("acked")} unit="/s" title=${`${exact(progress.acked)} in all`} />
    <${Tile} name="Latency p99" value=${alive ? duration(latest(latencies)) : "–"} title="from read to acked" />
    <${Tile} name="In flight" value=${count(progress.in_flight)} unit=${windows ? `of ${count(windows)}` : null} />
    <${Tile} name="Filtered" value=${count(progress.filtered)} title=${exact(progress.filtered)} />
    <${Tile} name="Dead letters" value=${count(progress.dead_letters)} kind=${progress.dead_letters ? "warn" : null} title=${exact(progress.dead_letters)} />
    <${Tile} name="Recoveries" value=${count(progress.recoveries)} kind=${progress.recoveries ? "warn" : null} />
    ${pipeline.status === "waiting"
      ? html`<${Tile} name="Next run" value=${moment(pipeline.next_run)} title=${progress.blocked_on} />`
      : html`<${Tile} name="Runs for" value=${duration(Math.floor(progress.elapsed_seconds) || progress.elapsed_seconds)} />`}
  </dl>`;
}

function latest(latencies) {
  const known = latencies.samples.slice(-10).filter(({ p99 }) => p99 !== null);
  return known.at(-1)?.p99 ?? null;
}
