/** LetterRecord: the record as it stood at a node that refuses it, which can be mended. */
import { useState } from "preact/hooks";
import { path, put } from "../api.js";
import { isExact, parseExact } from "../exact-json.js";
import { html } from "../html.js";
import { letterOf } from "../letter-commands.js";
import { say } from "../notices.js";
import { useFocus, useFocusAfter } from "../use-focus.js";
import { CommandButton } from "./command-button.js";
import { Difference } from "./difference.js";

export function LetterRecord({ letter, held, onLetter }) {
  const [draft, setDraft] = useState(null);
  const button = useFocusAfter(draft !== null);
  return html`<section class="card letter-record" aria-label=${`Record at ${held.node}`}>
    <header>
      <h2>Record <small>as it stood at ${held.node}</small></h2>
      ${draft === null && isExact && html`<${CommandButton} class="small" pressed=${button} onClick=${() => setDraft(JSON.stringify(held.record, null, 2))}>Edit<//>`}
    </header>
    ${draft === null ? html`<${Shown} held=${held} />` : html`<${Editor} letter=${letter} held=${held} draft=${draft} onDraft=${setDraft} onLetter=${onLetter} />`}
  </section>`;
}

function Shown({ held }) {
  return html`
    ${held.original
      ? html`<p class="note">Edited: before and after.</p><${Difference} before=${held.original} after=${held.record} />`
      : html`<${Difference} before=${held.record} after=${held.record} alone />`}
    ${held.base64.length > 0 && html`<p class="note">Bytes, in base64: ${held.base64.join(", ")}</p>`}
    ${held.cut.length > 0 && html`<p class="note">Too long to be shown whole: ${held.cut.join(", ")}</p>`}
  `;
}

function Editor({ letter, held, draft, onDraft, onLetter }) {
  const [problem, setProblem] = useState(null);
  const field = useFocus();
  const save = async (event) => {
    event.preventDefault();
    const record = parsed(draft, setProblem);
    if (record === undefined) return;
    try {
      onLetter(await put(`${path("dead-letters", letter.id)}/record`, { record, node: held.node }, letterOf));
      onDraft(null);
      say("Record saved; replay sends it");
    } catch (error) {
      setProblem([error.message, error.suggestion].filter(Boolean).join(" — "));
    }
  };
  const onKeyDown = (event) => event.key === "Escape" && (event.preventDefault(), onDraft(null));
  return html`<form onSubmit=${save} onKeyDown=${onKeyDown}>
    <label class="unseen" for="record">The record as JSON</label>
    <textarea id="record" ref=${field} rows=${Math.min(24, draft.split("\n").length + 1)} spellcheck=${false} value=${draft}
      aria-invalid=${problem !== null} aria-describedby="record-problem" onInput=${(event) => onDraft(event.target.value)}></textarea>
    <p id="record-problem" class="field-error" role="alert">${problem ?? ""}</p>
    <div class="dialog-actions">
      <button type="button" onClick=${() => onDraft(null)}>Cancel</button>
      <button type="submit" class="primary">Save record</button>
    </div>
  </form>`;
}

/** The record, or undefined after saying what is wrong with the text. */
function parsed(text, complain) {
  try {
    const record = parseExact(text);
    if (record !== null && typeof record === "object" && !Array.isArray(record)) return record;
    complain("A record is a JSON object.");
  } catch (error) {
    complain(`This is not JSON: ${error.message}`);
  }
  return undefined;
}
