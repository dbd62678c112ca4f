/** Tile: one number with its name. */
import { html } from "../html.js";

export function Tile({ name, value, unit = null, kind = null, title = null }) {
  return html`<div class="tile" data-kind=${kind} title=${title}>
    <dt>${name}</dt>
    <dd><span class="tile-value">${value}</span>${unit && html` <small>${unit}</small>`}</dd>
  </div>`;
}
