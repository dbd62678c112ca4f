/** Status: the status of a pipeline as a word with a mark. */
import { html } from "../html.js";

/** Those that need somebody come first. */
export const STATUSES = ["degraded", "recovering", "stopping", "running", "waiting", "created", "stopped", "completed"];

export function Status({ status, by = null }) {
  return html`<span class="status" data-status=${status}>${status}${status === "stopped" && by ? html` <small>by ${by}</small>` : ""}</span>`;
}
