/** Empty: nothing to show, and why; Loading: nothing yet. */
import { html } from "../html.js";

export function Empty({ title, text, children }) {
  return html`<div class="empty">
    <h2>${title}</h2>
    ${text && html`<p>${text}</p>`}
    ${children && html`<p class="empty-actions">${children}</p>`}
  </div>`;
}

export function Loading({ what }) {
  return html`<div class="loading" role="status"><span class="spinner" aria-hidden="true"></span>Loading ${what}…</div>`;
}
