/** CommandButton: a button for what the role `operate` may do; for others it is off and says why. */
import { allowed, REASON_ID, useRefusal } from "../access.js";
import { html } from "../html.js";

/** As `button`, with `onClick` called only if the role allows it. `pressed` is a reference to the element. */
export function CommandButton({ pressed, onClick, disabled = false, children, ...more }) {
  const why = useRefusal();
  // Not `disabled` for a role: what is disabled takes no focus, so that screen readers would never say why.
  const off = why === null ? {} : { "aria-disabled": "true", "aria-describedby": REASON_ID, title: why };
  return html`<button type="button" ref=${pressed} disabled=${disabled} ...${more} ...${off} onClick=${(event) => allowed() && onClick(event)}>${children}</button>`;
}
