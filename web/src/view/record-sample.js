/** RecordSample: one record as it came to a node and as it left it. */
import { useState } from "preact/hooks";
import { difference } from "../difference.js";
import { moment, plural } from "../format.js";
import { html } from "../html.js";
import { Difference } from "./difference.js";

export function RecordSample({ sample, open }) {
  const { at, message, before, after, outcome, error, pieces = 0, cut = [] } = sample;
  const [shown, setShown] = useState(open);
  const results = after ?? [];
  const source = before === null;
  return html`<li class="record-sample" data-outcome=${outcome}>
    <details open=${shown} onToggle=${(event) => setShown(event.currentTarget.open)}>
      <summary>
        <span class="outcome" data-outcome=${outcome}>${outcome}</span>
        <span class="record-sample-id">${message.source} #${[message.sequence, ...message.piece].join(".")}</span>
        <span class="record-sample-change">${summary(before, after)}</span>
        <time title=${moment(at)}>${new Date(at * 1000).toLocaleTimeString()}</time>
      </summary>
      ${shown && error && html`<p class="record-sample-error">${error}</p>`}
      ${shown && results.length === 0 && html`<${Difference} before=${before} after=${before} alone />`}
      ${shown && results.map((result, i) => html`<div>
        ${results.length > 1 && html`<h4>Piece ${i + 1} of ${results.length}</h4>`}
        <${Difference} before=${source ? result : before} after=${result} alone=${source} />
      </div>`)}
      ${shown && pieces > results.length && results.length > 0 && html`<p class="note">and ${plural(pieces - results.length, "more piece")}</p>`}
      ${shown && cut.length > 0 && html`<p class="note">Too long to be shown whole: ${cut.join(", ")}</p>`}
    </details>
  </li>`;
}

function summary(before, after) {
  if (!after || after.length === 0) return "";
  if (before === null) return "read";
  if (after.length > 1) return `${after.length} pieces`;
  const changed = difference(before, after[0]).filter(({ change }) => change !== "same").length;
  return changed === 0 ? "as it came" : plural(changed, "field");
}
