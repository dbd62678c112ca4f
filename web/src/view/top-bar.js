/** TopBar: where one is, how the connection is, and the two switches. */
import { html } from "../html.js";
import { href } from "../route.js";
import { leave, session } from "../session.js";
import { useStore } from "../store.js";
import { theme, turnTheme } from "../theme.js";
import { ConnectionLamp } from "./connection.js";
import { Icon } from "./icon.js";

export function TopBar({ page, onHelp }) {
  const colours = useStore(theme);
  const { token } = useStore(session);
  const here = (...pages) => (pages.includes(page) ? "page" : undefined);
  return html`
    <header class="top-bar">
      <a class="brand" href=${href([])}><${Mark} /><span>conduit-py</span></a>
      <nav aria-label="Pages">
        <a href=${href([])} aria-current=${here("fleet", "pipeline")}>Pipelines</a>
        <a href=${href(["dead-letters"])} aria-current=${here("letters", "letter")}>Dead letters</a>
      </nav>
      <div class="top-bar-end">
        <${ConnectionLamp} />
        ${token && html`<button class="quiet" type="button" onClick=${leave}>Sign out</button>`}
        <button class="quiet square" type="button" onClick=${turnTheme} aria-label=${`Colours: ${colours}. Change`} title=${`Colours: ${colours} (c)`}>
          <${Icon} name=${colours} />
        </button>
        <button class="quiet square" type="button" onClick=${onHelp} aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)">?</button>
      </div>
    </header>
  `;
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d="M3 7h6c5 0 1 10 6 10h6" /><path class="mark-second" d="M3 17h6c5 0 1-10 6-10h6" />
  </svg>`;
}
