/** PipelineHead: its name, its status, what one can do to it, and its tabs. */
import { command, LABELS, possible } from "../commands.js";
import { engineText } from "../engine.js";
import { duration, iso, moment } from "../format.js";
import { html } from "../html.js";
import { href } from "../route.js";
import { useFocusKept } from "../use-focus.js";
import { CommandButton } from "./command-button.js";
import { Icon } from "./icon.js";
import { Status } from "./status.js";

const COMMANDS = ["start", "stop", "restart", "force"];

export function PipelineHead({ pipeline, now, tab }) {
  const { id, description, status, stopped_by, since, delivery, progress } = pipeline;
  const place = engineText(pipeline);
  const open = possible(status);
  return html`<header class="pipeline-head">
    <div class="pipeline-title">
      <nav class="crumbs" aria-label="Breadcrumb"><a href=${href([])}>Pipelines</a></nav>
      <h1 tabindex="-1">${id}</h1>
      <p class="pipeline-facts">
        <${Status} status=${status} by=${stopped_by} />
        <time datetime=${iso(since)} title=${`since ${moment(since)}`}>for ${duration(Math.max(1, Math.floor(now - since)))}</time>
        <span>${delivery.replaceAll("_", " ")}</span>
        ${place && html`<span>${place}</span>`}
        ${pipeline.engine === "spark" && progress?.blocked_on && html`<span role="status">waits for ${progress.blocked_on}</span>`}
      </p>
      ${description && html`<p class="pipeline-description">${description}</p>`}
    </div>
    <div class="pipeline-commands" role="group" aria-label="Commands" ...${useFocusKept(status)}>
      ${COMMANDS.filter((name) => open.includes(name)).map(
        (name) => html`<${CommandButton} key=${name} class=${name === "start" ? "primary" : name === "force" ? "danger-quiet" : ""} onClick=${() => command(name, id)}>
          <${Icon} name=${name} />${LABELS[name]}
        <//>`,
      )}
    </div>
    <nav class="tabs" aria-label=${`Parts of ${id}`}>
      <${Tab} to=${["pipelines", id]} here=${tab === "overview"} name="Overview" />
      <${Tab} to=${["pipelines", id, "dead-letters"]} here=${tab === "dead-letters"} name="Dead letters" />
      <${Tab} to=${["pipelines", id, "positions"]} here=${tab === "positions"} name="Positions" />
    </nav>
  </header>`;
}

function Tab({ to, here, name }) {
  return html`<a href=${href(to)} aria-current=${here ? "page" : undefined}>${name}</a>`;
}
