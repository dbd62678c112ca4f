/** Shortcuts: every key that does something. */
import { html } from "../html.js";
import { SHORTCUTS } from "../keys.js";
import { Dialog } from "./dialog.js";

export function Shortcuts({ open, onClose }) {
  if (!open) return null;
  const areas = [...new Set(SHORTCUTS.map(({ area }) => area))];
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose} wide>
    <div class="shortcuts">
      ${areas.map(
        (area) => html`<section>
          <h3>${area}</h3>
          <dl>
            ${SHORTCUTS.filter((each) => each.area === area).map(
              ({ keys, does }) => html`<div><dt>${keys.map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${does}</dd></div>`,
            )}
          </dl>
        </section>`,
      )}
    </div>
    <div class="dialog-actions">
      <a class="small" href="licences.txt" target="_blank" rel="noreferrer">Licences of what this page is made with</a>
      <button type="button" class="primary" data-first onClick=${onClose}>Close</button>
    </div>
  <//>`;
}
