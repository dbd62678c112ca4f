/** LetterCauses: why records were refused, and how often each. */
import { ago, exact, moment } from "../format.js";
import { html } from "../html.js";

const SHOWN = 8;

export function LetterCauses({ causes, query, showPipeline, onChoose }) {
  if (causes.length === 0) return null;
  const most = Math.max(...causes.map(({ count }) => count));
  const shown = causes.slice(0, SHOWN);
  return html`<section class="card causes" aria-label="Causes">
    <h2>By cause</h2>
    <ul>
      ${shown.map((each) => html`<${Cause} key=${`${each.pipeline}\n${each.node}\n${each.cause}`} cause=${each} most=${most} query=${query} showPipeline=${showPipeline} onChoose=${onChoose} />`)}
    </ul>
    ${causes.length > SHOWN && html`<p class="note">and ${exact(causes.length - SHOWN)} further causes</p>`}
  </section>`;
}

function Cause({ cause, most, query, showPipeline, onChoose }) {
  const { pipeline, node, count, last_at } = cause;
  const on = query.cause === cause.cause && query.node === node && (!showPipeline || query.pipeline === pipeline);
  const chosen = { cause: cause.cause, node, ...(showPipeline ? { pipeline } : {}) };
  const none = { cause: "", node: "", ...(showPipeline ? { pipeline: "" } : {}) };
  return html`<li>
    <button type="button" aria-pressed=${on} onClick=${() => onChoose(on ? none : chosen)} title=${cause.cause}>
      <meter min="0" max=${most} value=${count} aria-hidden="true"></meter>
      <b class="number">${exact(count)}</b>
      <span class="cause-text">${cause.cause}</span>
      <span class="cause-where">${showPipeline ? `${pipeline} · ` : ""}${node}</span>
      <time title=${moment(last_at)}>${ago(last_at, Date.now() / 1000)}</time>
    </button>
  </li>`;
}
