/** Fleet: every pipeline of the server in one list. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { counts, matches, ordered } from "../fleet-order.js";
import { html } from "../html.js";
import { connection, fleet, history } from "../live.js";
import { href, replace } from "../route.js";
import { useRoving } from "../roving.js";
import { useStore } from "../store.js";
import { Empty, Loading } from "./empty.js";
import { FileProblems, RequestError } from "./error.js";
import { FleetRow } from "./fleet-row.js";
import { FleetSummary } from "./fleet-summary.js";
import { FleetToolbar } from "./fleet-toolbar.js";

const ORDER_SECONDS = 4;
const COLUMNS = [
  ["name", "Pipeline"],
  ["attention", "Status"],
  ["rate", "Throughput"],
  ["flight", "In flight"],
  ["letters", "Dead letters"],
  [null, "What holds it up"],
  ["since", "Since"],
  [null, "Action"],
];

export function Fleet({ query }) {
  const seen = useStore(fleet);
  const { phase, error } = useStore(connection);
  useEffect(() => void (document.title = "Pipelines · conduit-py"), []);
  return html`
    <h1 class="unseen" tabindex="-1">Pipelines</h1>
    ${seen ? html`<${FleetList} seen=${seen} query=${query} />` : phase === "refused" ? html`<${RequestError} error=${error} />` : html`<${Loading} what="the pipelines" />`}
  `;
}

function FleetList({ seen, query }) {
  const text = query.q ?? "";
  const rows = useRows(seen, text, query.status ?? "", query.order ?? "attention");
  const roving = useRoving(rows.map(({ pipeline }) => pipeline.id));
  const change = (changed) => replace(href([], { ...query, ...changed }));
  if (seen.pipelines.length === 0) return html`<${FileProblems} problems=${seen.problems} /><${NoPipelines} />`;
  return html`
    <${FileProblems} problems=${seen.problems} />
    <${FleetSummary} seen=${seen} />
    <${FleetToolbar} text=${text} status=${query.status ?? ""} counts=${counts(seen.pipelines)} total=${seen.pipelines.length} shown=${rows.length} onChange=${change} />
    <div class="fleet" role="table" aria-label="Pipelines" aria-rowcount=${rows.length + 1} ref=${roving.container} onKeyDown=${roving.onKeyDown} onFocusIn=${roving.onFocusIn}>
      <${FleetHead} order=${query.order ?? "attention"} onOrder=${(order) => change({ order: order === "attention" ? "" : order })} />
      <div role="rowgroup" class="fleet-rows">
        ${rows.map(
          ({ pipeline, rate }) => html`<${FleetRow} key=${pipeline.id} pipeline=${pipeline} rate=${rate} at=${seen.at} active=${pipeline.id === roving.active} />`,
        )}
      </div>
    </div>
    ${rows.length === 0 && html`<${Empty} title="No pipeline matches" text="Nothing here has these words and this status.">
      <button type="button" onClick=${() => change({ q: "", status: "" })}>Show all</button>
    <//>`}
  `;
}

function FleetHead({ order, onOrder }) {
  return html`<div role="rowgroup" class="fleet-head">
    <div role="row" class="fleet-row">
      ${COLUMNS.map(([key, title]) =>
        key === null
          ? html`<span role="columnheader">${title === "Action" ? html`<span class="unseen">${title}</span>` : title}</span>`
          : html`<span role="columnheader" aria-sort=${order === key ? (key === "name" || key === "attention" ? "ascending" : "descending") : undefined}>
              <button type="button" class="order" onClick=${() => onOrder(key)}>${title}</button>
            </span>`,
      )}
    </div>
  </div>`;
}

function NoPipelines() {
  return html`<${Empty} title="No pipelines yet" text="The folder that this server was given has none, or all of its files have problems.">
    <code>conduit-py serve --pipelines DIR</code>
  <//>`;
}

/** The rows that are shown. Their order by numbers that always change is renewed every few seconds only. */
function useRows(seen, text, status, order) {
  const rows = seen.pipelines
    .filter((pipeline) => (!status || pipeline.status === status) && matches(pipeline, text))
    .map((pipeline) => ({ pipeline, rate: history(pipeline.id)?.rate("acked") ?? null, held: Boolean(pipeline.progress?.stalled_seconds > 5) }));
  const places = useRef(new Map());
  const turn = Math.floor(seen.at / ORDER_SECONDS);
  useMemo(() => {
    places.current = new Map(ordered(rows, order).map(({ pipeline }, i) => [pipeline.id, i]));
  }, [turn, order, rows.length, text, status]);
  const place = ({ pipeline }) => places.current.get(pipeline.id) ?? Infinity;
  return rows.sort((a, b) => place(a) - place(b));
}
