/** Events: what happened to a pipeline of late, the newest first: who started it, why it failed, what a reload changed. */
import { ago, iso, moment } from "../format.js";
import { html } from "../html.js";

export function Events({ events, now }) {
  if (events.length === 0) return null;
  return html`<section class="card events" aria-label="Events">
    <h2>Events <small>since the server was started</small></h2>
    <ol>
      ${events.toReversed().map(
        ({ at, event, level, text }) => html`<li key=${`${at} ${event}`} data-level=${level}>
          <time datetime=${iso(at)} title=${moment(at)}>${ago(at, now)}</time><b>${event}</b><span>${text}</span>
        </li>`,
      )}
    </ol>
  </section>`;
}
