/** Snapshot: has a source of a running pipeline read a table as a whole, beside what it reads. */
import { useState } from "preact/hooks";
import { mayUseCode, role } from "../access.js";
import { path, post } from "../api.js";
import { html } from "../html.js";
import { complain, say } from "../notices.js";
import { useStore } from "../store.js";
import { useFocus, useFocusAfter } from "../use-focus.js";
import { CommandButton } from "./command-button.js";

export function Snapshot({ pipeline, node }) {
  const [open, setOpen] = useState(false);
  const button = useFocusAfter(open);
  const running = pipeline.status === "running";
  return html`<section class="snapshot" aria-label="Snapshot">
    ${open
      ? html`<${SnapshotForm} pipeline=${pipeline} node=${node} onClose=${() => setOpen(false)} />`
      : html`<${CommandButton} class="small" pressed=${button} disabled=${!running} title=${running ? null : "The pipeline does not run."} onClick=${() => setOpen(true)}>Read a table again…<//>`}
  </section>`;
}

function SnapshotForm({ pipeline, node, onClose }) {
  const [collection, setCollection] = useState("");
  const [where, setWhere] = useState("");
  const [sending, setSending] = useState(false);
  const first = useFocus();
  const withCondition = useStore(role, mayUseCode);
  const submit = async (event) => {
    event.preventDefault();
    setSending(true);
    try {
      const body = where.trim() === "" ? { collection } : { collection, where };
      const { durable } = await post(path("pipelines", pipeline.id, "sources", node.id, "snapshot"), body);
      say(durable ? `${node.id} reads ${collection} again` : `${node.id} has taken the request for ${collection}, which is not stored yet`);
      onClose();
    } catch (error) {
      setSending(false);
      complain(error);
    }
  };
  // Only the form: the panel would close too.
  const onKeyDown = (event) => event.key === "Escape" && (event.preventDefault(), onClose());
  return html`<form onSubmit=${submit} onKeyDown=${onKeyDown}>
    <label>Table <input ref=${first} required maxlength="500" value=${collection} placeholder="public.orders" spellcheck=${false} onInput=${(event) => setCollection(event.target.value)} /></label>
    ${withCondition && html`<label>Only rows where <input maxlength="10000" value=${where} placeholder="all rows" spellcheck=${false} onInput=${(event) => setWhere(event.target.value)} /></label>`}
    <p class="note">Its rows are read and delivered again, while changes are read as before.</p>
    <div class="dialog-actions">
      <button type="button" class="small" onClick=${onClose}>Cancel</button>
      <button type="submit" class="small primary" disabled=${sending}>Read it</button>
    </div>
  </form>`;
}
