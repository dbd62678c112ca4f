/** FleetRow: a pipeline in one line. */
import { memo } from "../memo.js";
import { command, LABELS, possible } from "../commands.js";
import { engineText } from "../engine.js";
import { ago, count, iso, moment, rate as inWords } from "../format.js";
import { html } from "../html.js";
import { history } from "../live.js";
import { href } from "../route.js";
import { CommandButton } from "./command-button.js";
import { Icon } from "./icon.js";
import { Sparkline } from "./sparkline.js";
import { Status } from "./status.js";

const SPARK_SECONDS = 120;
const SPARK_STEP = 3;

export const FleetRow = memo(function FleetRow({ pipeline, rate, at, active }) {
  const { id, description, status, stopped_by, progress, since } = pipeline;
  const place = engineText(pipeline);
  const [main] = possible(status);
  const live = ["running", "recovering", "stopping"].includes(status);
  const onKeyDown = (event) => {
    if (event.key !== "s" || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    command(main, id);
  };
  return html`<div role="row" class="fleet-row" data-row=${id} data-status=${status} onKeyDown=${onKeyDown}>
    <span role="cell" class="cell-name">
      <a href=${href(["pipelines", id])} data-roving=${id} tabindex=${active ? 0 : -1} title=${description || id}>${id}</a>
      ${(place || description) && html`<small>${[place, description].filter(Boolean).join(" · ")}</small>`}
    </span>
    <span role="cell" class="cell-status"><${Status} status=${status} by=${stopped_by} /></span>
    <span role="cell" class="cell-rate">
      ${live && html`<${Spark} id=${id} at=${at} />`}
      <span class="number" aria-label=${live ? `${inWords(rate)} records per second` : "not running"}>${live ? inWords(rate) : ""}${live && html`<small>/s</small>`}</span>
    </span>
    <span role="cell" class="cell-flight number" data-label="in flight">${progress && live ? count(progress.in_flight) : ""}</span>
    <span role="cell" class="cell-letters number" data-label="dead letters" data-some=${Boolean(progress?.dead_letters)}>${progress ? count(progress.dead_letters) : ""}</span>
    <span role="cell" class="cell-why"><${Why} pipeline=${pipeline} live=${live} /></span>
    <time role="cell" class="cell-since" datetime=${iso(since)} title=${moment(since)}>${ago(since, at)}</time>
    <span role="cell" class="cell-action">
      <${CommandButton} class="small" tabindex=${active ? 0 : -1} onClick=${() => command(main, id)} aria-label=${`${LABELS[main]} ${id}`}>
        <${Icon} name=${main} />${main === "force" ? "Force" : LABELS[main]}
      <//>
    </span>
  </div>`;
}, same);

function Why({ pipeline, live }) {
  const { error, progress, status } = pipeline;
  if (error && ["degraded", "recovering"].includes(status)) {
    return html`<span class="why" data-kind="error" title=${error.message}>${error.message}</span>`;
  }
  if (pipeline.definition) return html`<span class="why" data-kind="warning" title=${pipeline.definition.message}>${pipeline.definition.message}</span>`;
  if (status === "waiting") return html`<time class="why" datetime=${iso(pipeline.next_run)}>next run ${moment(pipeline.next_run)}</time>`;
  if (live && progress?.blocked_on) return html`<span class="why" title=${progress.blocked_on}>${progress.blocked_on}</span>`;
  return null;
}

const Spark = memo(
  ({ id }) => html`<${Sparkline} rates=${history(id)?.rates("acked", SPARK_SECONDS, SPARK_STEP)[1] ?? []} />`,
  // Once in two seconds is enough for a line of two minutes.
  (before, after) => before.id === after.id && Math.floor(before.at / 2) === Math.floor(after.at / 2),
);

/** Whether a row looks the same: a pipeline that does nothing is drawn again only as its times grow. */
function same(before, after) {
  if (before.active !== after.active || before.rate !== after.rate) return false;
  if (Math.floor(before.at / 5) !== Math.floor(after.at / 5)) return false;
  const [a, b] = [before.pipeline, after.pipeline];
  return a === b || (a.progress === null && b.progress === null && a.status === b.status && a.since === b.since && a.error?.at === b.error?.at);
}
