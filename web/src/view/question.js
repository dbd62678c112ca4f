/** Question: the dialog that asks before something is done. */
import { html } from "../html.js";
import { question } from "../question.js";
import { useStore } from "../store.js";
import { Dialog } from "./dialog.js";

export function Question() {
  const asked = useStore(question);
  if (!asked) return null;
  const { title, text, details, confirm, danger, idle, answer } = asked;
  return html`<${Dialog} key=${title} title=${title} onClose=${() => answer(false)}>
    ${text && html`<p>${text}</p>`}
    ${details}
    <div class="dialog-actions">
      <button type="button" data-first=${danger ? "" : null} onClick=${() => answer(false)}>Cancel</button>
      <button type="button" class=${danger ? "danger" : "primary"} data-first=${danger ? null : ""} disabled=${idle} onClick=${() => answer(true)}>${confirm}</button>
    </div>
  <//>`;
}
