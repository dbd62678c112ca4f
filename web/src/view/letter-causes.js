/** LetterCauses: why records were refused, and how often each. */
import { ago, exact, moment } from "../format.js";
import { html } from "../html.js";

export function LetterCauses({ causes, cause, showPipeline, onChoose }) {
  if (causes.length === 0) return null;
  const most = Math.max(...causes.map(({ count }) => count));
  return html`<section class="card causes" aria-label="Causes">
    <h2>By cause</h2>
    <ul>
      ${causes.map(
        (each) => html`<li key=${`${each.pipeline}\n${each.node}\n${each.cause}`}>
          <button type="button" aria-pressed=${cause === each.cause} onClick=${() => onChoose(cause === each.cause ? "" : each.cause)}>
            <meter min="0" max=${most} value=${each.count} aria-hidden="true"></meter>
            <b class="number">${exact(each.count)}</b>
            <span class="cause-text">${each.cause}</span>
            <span class="cause-where">${showPipeline && each.pipeline ? `${each.pipeline} · ` : ""}${each.node ?? ""}</span>
            ${each.newest && html`<time title=${moment(each.newest)}>${ago(each.newest, Date.now() / 1000)}</time>`}
          </button>
        </li>`,
      )}
    </ul>
  </section>`;
}
