/** Difference: two records side by side, field by field; what did not change is folded away. */
import { difference } from "../difference.js";
import { plural } from "../format.js";
import { html } from "../html.js";

const MARKS = { added: "+", removed: "−", changed: "~", same: "" };
const LONG = 400;

/** With `alone` there is one record only, and all of it is shown. */
export function Difference({ before, after, alone = false }) {
  const fields = difference(before ?? {}, after ?? {});
  const changed = alone ? fields : fields.filter(({ change }) => change !== "same");
  const same = alone ? [] : fields.filter(({ change }) => change === "same");
  return html`<div class="difference">
    ${changed.length > 0 && html`<${Fields} fields=${changed} alone=${alone} />`}
    ${same.length > 0 && html`<details class="same"><summary>${plural(same.length, "field")} unchanged</summary><${Fields} fields=${same} alone /></details>`}
  </div>`;
}

function Fields({ fields, alone }) {
  return html`<table class="fields">
    <thead><tr><th scope="col">field</th>${alone ? html`<th scope="col">value</th>` : html`<th scope="col">before</th><th scope="col">after</th>`}</tr></thead>
    <tbody>
      ${fields.map(
        ({ path, change, before, after }) => html`<tr key=${path} data-change=${alone ? "same" : change}>
          <th scope="row">${!alone && html`<span class="mark-change" role="img" aria-label=${change}>${MARKS[change]}</span>`}${path || "record"}</th>
          <td class="before">${cut(before)}</td>
          ${!alone && html`<td class="after">${cut(after)}</td>`}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function cut(text) {
  if (text === undefined) return "";
  return text.length > LONG ? `${text.slice(0, LONG)}…` : text;
}
