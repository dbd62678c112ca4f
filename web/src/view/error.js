/** Errors: an error with its cause and what to do about it. */
import { ago, iso, moment } from "../format.js";
import { html } from "../html.js";
import { href } from "../route.js";
import { Icon } from "./icon.js";

const BROKEN = new Set(["degraded", "recovering"]);
const SHOWN_MAX = 20;

/** The error of a pipeline: which node, since when, and a suggestion. Quieter when the pipeline has got over it. */
export function PipelineError({ id, error, status, now }) {
  const where = error.node && html`<a href=${href(["pipelines", id, "nodes", error.node])}>${error.node}</a>`;
  const past = !BROKEN.has(status);
  return html`<section class="error" data-kind=${past ? "past" : null} aria-label=${past ? "Last error" : "Error"}>
    <${Icon} name="warning" />
    <div>
      <p class="error-message">${past && html`<span class="note">Last error: </span>`}${error.message}</p>
      ${error.suggestion && html`<p class="error-suggestion"><strong>Suggestion</strong> ${error.suggestion}</p>`}
      <p class="error-facts">
        ${where && html`<span>node ${where}</span>`}<code>${error.code}</code>
        <time datetime=${iso(error.at)} title=${moment(error.at)}>${ago(error.at, now)}</time>
      </p>
    </div>
  </section>`;
}

/** A problem in a file that was edited, or a secret that was rotated, while the pipeline ran: it goes on with what it had. */
export function DefinitionProblem({ problem }) {
  const place = placeOf(problem);
  return html`<section class="error" data-kind="definition" aria-label="Problem with the definition">
    <${Icon} name="warning" />
    <div>
      <p class="error-message">The newest definition is not in effect, and the pipeline goes on as it was: ${problem.message}</p>
      ${problem.suggestion && html`<p class="error-suggestion"><strong>Suggestion</strong> ${problem.suggestion}</p>`}
      <p class="error-facts">${place && html`<code>${place}</code>`}${problem.path && html`<code>${problem.path}</code>`}</p>
    </div>
  </section>`;
}

/** What is wrong with the pipeline files: of these definitions none is in effect. */
export function FileProblems({ problems }) {
  if (problems.length === 0) return null;
  return html`<section class="error" data-kind="definition" aria-label="Problems in the pipeline files">
    <${Icon} name="warning" />
    <div>
      <p class="error-message">What is defined here is not in effect: ${problems.length === 1 ? "a pipeline file has a problem" : `pipeline files have ${problems.length} problems`}.</p>
      ${problems.slice(0, SHOWN_MAX).map((problem) => html`<p class="error-facts"><code>${placeOf(problem)}</code>${problem.path && html`<code>${problem.path}</code>`}<span>${problem.message}</span>${problem.suggestion && html`<span>${problem.suggestion}</span>`}</p>`)}
      ${problems.length > SHOWN_MAX && html`<p class="error-facts">and ${problems.length - SHOWN_MAX} more</p>`}
    </div>
  </section>`;
}

function placeOf({ file, line }) {
  return [file, line].filter((part) => part !== null && part !== undefined).join(":");
}

/** What a request was refused with. */
export function RequestError({ error, children }) {
  return html`<section class="error" role="alert">
    <${Icon} name="warning" />
    <div>
      <p class="error-message">${error.message}</p>
      ${error.suggestion && html`<p class="error-suggestion"><strong>Suggestion</strong> ${error.suggestion}</p>`}
      <p class="error-facts"><code>${error.code ?? "internal"}</code>${children}</p>
    </div>
  </section>`;
}
