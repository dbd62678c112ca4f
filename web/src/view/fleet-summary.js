/** FleetSummary: the server in six numbers. */
import { count, rate } from "../format.js";
import { html } from "../html.js";
import { history } from "../live.js";
import { Tile } from "./tile.js";

export function FleetSummary({ seen }) {
  const { pipelines } = seen;
  const of = (status) => pipelines.filter((pipeline) => pipeline.status === status).length;
  const sum = (name) => pipelines.reduce((total, { progress }) => total + (progress?.[name] ?? 0), 0);
  const rates = pipelines.map(({ id }) => history(id)?.rate("acked") ?? null).filter((each) => each !== null);
  const trouble = of("degraded") + of("recovering");
  return html`<dl class="tiles" aria-label="Summary">
    <${Tile} name="Running" value=${count(of("running"))} unit=${`of ${count(pipelines.length)}`} />
    <${Tile} name="In trouble" value=${count(trouble)} kind=${trouble ? "bad" : null} />
    <${Tile} name="Delivered" value=${rate(rates.length ? rates.reduce((a, b) => a + b, 0) : null)} unit="records/s" />
    <${Tile} name="In flight" value=${count(sum("in_flight"))} unit="records" />
    <${Tile} name="Dead letters" value=${count(sum("dead_letters"))} unit="since start" kind=${sum("dead_letters") ? "warn" : null} />
  </dl>`;
}
