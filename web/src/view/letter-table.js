/** LetterTable: dead letters in a list, of which some can be chosen. */
import { ago, iso, moment } from "../format.js";
import { html } from "../html.js";
import { href } from "../route.js";
import { useRoving } from "../roving.js";

export function LetterTable({ letters, chosen, onChoose, showPipeline }) {
  const roving = useRoving(letters.map(({ id }) => id));
  const all = letters.every(({ id }) => chosen.has(id));
  const toggle = (id) => onChoose(toggled(chosen, id));
  return html`<div class="letter-table" role="table" aria-label="Dead letters" data-pipeline=${showPipeline} ref=${roving.container} onKeyDown=${roving.onKeyDown} onFocusIn=${roving.onFocusIn}>
    <div role="row" class="letter-row letter-head">
      <span role="columnheader"><input type="checkbox" aria-label="Select all that are shown" checked=${all} onChange=${() => onChoose(all ? new Set() : new Set(letters.map(({ id }) => id)))} /></span>
      <span role="columnheader">Error</span>
      ${showPipeline && html`<span role="columnheader">Pipeline</span>`}
      <span role="columnheader">Node</span><span role="columnheader">State</span><span role="columnheader">Refused</span>
    </div>
    ${letters.map((letter) => html`<${Row} key=${letter.id} letter=${letter} active=${letter.id === roving.active} chosen=${chosen.has(letter.id)} showPipeline=${showPipeline} onToggle=${() => toggle(letter.id)} />`)}
  </div>`;
}

function Row({ letter, active, chosen, showPipeline, onToggle }) {
  const { id, pipeline, nodes, error, state, last_at, attempts, edited } = letter;
  const onKeyDown = (event) => {
    if (event.key !== " " || event.target.type === "checkbox") return;
    event.preventDefault();
    onToggle();
  };
  return html`<div role="row" class="letter-row" data-row=${id} aria-selected=${chosen} onKeyDown=${onKeyDown}>
    <span role="cell"><input type="checkbox" tabindex=${active ? 0 : -1} checked=${chosen} onChange=${onToggle} aria-label=${`Select ${id}`} /></span>
    <span role="cell" class="letter-error"><a href=${href(["dead-letters", id])} data-roving=${id} tabindex=${active ? 0 : -1} title=${error}>${error}</a></span>
    ${showPipeline && html`<span role="cell"><a href=${href(["pipelines", pipeline])} tabindex=${active ? 0 : -1}>${pipeline}</a></span>`}
    <span role="cell">${nodes.join(", ")}</span>
    <span role="cell"><span class="letter-state" data-state=${state}>${state}</span>${(attempts > 1 || edited) && html` <small>${[attempts > 1 && `attempt ${attempts}`, edited && "edited"].filter(Boolean).join(", ")}</small>`}</span>
    <time role="cell" datetime=${iso(last_at)} title=${moment(last_at)}>${ago(last_at, Date.now() / 1000)}</time>
  </div>`;
}

function toggled(chosen, id) {
  const after = new Set(chosen);
  if (!after.delete(id)) after.add(id);
  return after;
}
