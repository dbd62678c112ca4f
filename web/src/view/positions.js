/** Positions: from where the sources of a pipeline go on, and how to have them go on from elsewhere. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, path, put, remove } from "../api.js";
import { html } from "../html.js";
import { complain, say } from "../notices.js";
import { readable } from "../position.js";
import { ask } from "../question.js";
import { Loading } from "./empty.js";
import { RequestFault } from "./fault.js";

export function Positions({ pipeline }) {
  const [state, setState] = useState({ positions: null, error: null });
  const address = path("pipelines", pipeline.id, "positions");
  const load = useCallback(() => {
    get(address).then((answer) => setState({ ...answer, error: null }), (error) => setState({ positions: null, error }));
  }, [address]);
  useEffect(load, [load, pipeline.status]);
  const running = ["running", "recovering", "stopping"].includes(pipeline.status);
  const change = async (doing, said) => {
    try {
      setState({ ...(await doing()), error: null });
      say(said);
    } catch (error) {
      complain(error);
    }
  };
  if (state.error) return html`<${RequestFault} error=${state.error}><button type="button" class="small" onClick=${load}>Try again</button><//>`;
  if (!state.positions) return html`<${Loading} what="the positions" />`;
  return html`<section class="card positions" aria-label="Positions">
    <header><h2>Where each source goes on</h2><button type="button" class="small" onClick=${load}>Refresh</button></header>
    <p class="note">${running ? "Positions can be changed while the pipeline is stopped." : "The next start goes on after these positions. An earlier one has records read, and delivered, again."}</p>
    <ul>
      ${Object.entries(state.positions).map(
        ([source, position]) => html`<${SourcePosition} key=${source} source=${source} position=${position} locked=${running}
          onSet=${(to) => change(() => put(`${address}/${encodeURIComponent(source)}`, { position: to }), `Position of ${source} set`)}
          onReset=${() => change(() => remove(`${address}/${encodeURIComponent(source)}`), `${source} starts from the beginning`)} />`,
      )}
    </ul>
  </section>`;
}

function SourcePosition({ source, position, locked, onSet, onReset }) {
  const [draft, setDraft] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const text = `${source} goes on after the position that you gave, wherever it was before.`;
    if (await ask({ title: `Set the position of ${source}?`, text, confirm: "Set position", danger: true })) onSet(draft.trim());
    setDraft(null);
  };
  const reset = async () => {
    const text = "It reads everything again from the beginning. What it delivered before arrives a second time.";
    if (await ask({ title: `Reset ${source}?`, text, confirm: "Reset", danger: true })) onReset();
  };
  return html`<li>
    <div><b>${source}</b>${position === null ? html`<span class="note">the beginning</span>` : html`<code>${readable(position)}</code><code class="raw" title="as base64">${position}</code>`}</div>
    ${draft === null
      ? html`<div class="position-actions">
          <button type="button" class="small" disabled=${locked} onClick=${() => setDraft(position ?? "")}>Set…</button>
          <button type="button" class="small danger-quiet" disabled=${locked || position === null} onClick=${reset}>Reset…</button>
        </div>`
      : html`<form onSubmit=${submit}>
          <label>Position, in base64 <input autofocus value=${draft} spellcheck="false" onInput=${(event) => setDraft(event.target.value)} /></label>
          <button type="button" class="small" onClick=${() => setDraft(null)}>Cancel</button>
          <button class="small primary" type="submit">Set</button>
        </form>`}
  </li>`;
}
