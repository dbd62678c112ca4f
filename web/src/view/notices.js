/** Notices: how things went, in a corner, read out when they come. */
import { html } from "../html.js";
import { dismiss, notices } from "../notices.js";
import { useStore } from "../store.js";
import { Icon } from "./icon.js";

export function Notices() {
  const shown = useStore(notices);
  return html`<section class="notices" aria-label="Notices" aria-live="polite" aria-relevant="additions">
    ${shown.map(
      ({ id, kind, text, suggestion }) => html`<div class="notice" key=${id} data-kind=${kind}>
        <${Icon} name=${kind === "failed" ? "warning" : "done"} />
        <p>${text}${suggestion && html`<span class="notice-suggestion">${suggestion}</span>`}</p>
        <button class="quiet square" type="button" aria-label="Dismiss" onClick=${() => dismiss(id)}><${Icon} name="close" /></button>
      </div>`,
    )}
  </section>`;
}
