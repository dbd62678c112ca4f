/** FleetToolbar: which pipelines are shown. */
import { html } from "../html.js";
import { exact } from "../format.js";
import { Icon } from "./icon.js";
import { STATUSES } from "./status.js";

export function FleetToolbar({ text, status, counts, total, shown, onChange }) {
  const present = STATUSES.filter((each) => counts[each] || each === status);
  return html`<div class="toolbar" role="search" aria-label="Filter pipelines">
    <label class="search">
      <${Icon} name="search" /><span class="unseen">Filter by name, description, error</span>
      <input type="search" data-filter value=${text} placeholder="Filter ( / )" spellcheck=${false} autocomplete="off"
        onInput=${(event) => onChange({ q: event.target.value })}
        onKeyDown=${(event) => event.key === "Escape" && (onChange({ q: "" }), event.target.blur())} />
    </label>
    <div class="chips" role="group" aria-label="Status">
      <${Chip} on=${!status} name="all" count=${total} onClick=${() => onChange({ status: "" })} />
      ${present.map(
        (each) => html`<${Chip} key=${each} on=${status === each} name=${each} count=${counts[each] ?? 0} onClick=${() => onChange({ status: status === each ? "" : each })} />`,
      )}
    </div>
    <span class="toolbar-note" role="status">${shown === total ? "" : `${exact(shown)} of ${exact(total)} shown`}</span>
  </div>`;
}

export function Chip({ on, name, count, onClick }) {
  return html`<button type="button" class="chip" aria-pressed=${on} data-status=${name} onClick=${onClick}>${name}<span class="chip-count">${exact(count)}</span></button>`;
}
