/** Positions: from where the sources of a pipeline go on, and how to have them go on from elsewhere. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, path, post, put, remove } from "../api.js";
import { ago, moment } from "../format.js";
import { html } from "../html.js";
import { complain, say } from "../notices.js";
import { readable } from "../position.js";
import { ask } from "../question.js";
import { useFocus, useFocusAfter } from "../use-focus.js";
import { CommandButton } from "./command-button.js";
import { Loading } from "./empty.js";
import { RequestError } from "./error.js";

export function Positions({ pipeline }) {
  const [state, setState] = useState({ positions: null, error: null });
  const address = path("pipelines", pipeline.id, "positions");
  const load = useCallback(() => {
    get(address).then((answer) => setState({ ...answer, error: null }), (error) => setState({ positions: null, error }));
  }, [address]);
  useEffect(load, [load, pipeline.status]);
  const running = ["running", "recovering", "stopping", "waiting"].includes(pipeline.status);
  const change = async (doing, said) => {
    try {
      setState({ ...(await doing()), error: null });
      say(said);
    } catch (error) {
      complain(error);
    }
  };
  if (state.error) return html`<${RequestError} error=${state.error}><button type="button" class="small" onClick=${load}>Try again</button><//>`;
  if (!state.positions) return html`<${Loading} what="the positions" />`;
  return html`<section class="card positions" aria-label="Positions">
    <header><h2>Where each source goes on</h2><button type="button" class="small" onClick=${load}>Refresh</button></header>
    <p class="note">${running ? "Positions can be changed while the pipeline is stopped." : "The next start goes on after these positions. An earlier one has records read, and delivered, again."}</p>
    <ul>
      ${Object.entries(state.positions).map(
        ([source, position]) => html`<${SourcePosition} key=${source} source=${source} position=${position} locked=${running}
          onSet=${(to) => change(() => put(`${address}/${encodeURIComponent(source)}`, { position: to }), `Position of ${source} set`)}
          address=${`${address}/${encodeURIComponent(source)}`}
          onReplay=${(at) => change(() => post(`${address}/${encodeURIComponent(source)}/replay`, { from: new Date(Math.ceil(at * 1000)).toISOString() }), `${source} goes on from ${moment(at)}`)}
          onReset=${() => change(() => remove(`${address}/${encodeURIComponent(source)}`), `${source} starts from the beginning`)} />`,
      )}
    </ul>
  </section>`;
}

function SourcePosition({ source, position, locked, address, onSet, onReset, onReplay }) {
  const [draft, setDraft] = useState(null);
  const button = useFocusAfter(draft !== null);
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
          <${Replay} source=${source} address=${address} locked=${locked || position === null} onReplay=${onReplay} />
          <${CommandButton} class="small" pressed=${button} disabled=${locked} onClick=${() => setDraft(position ?? "")}>Set…<//>
          <${CommandButton} class="small danger-quiet" disabled=${locked || position === null} onClick=${reset}>Reset…<//>
        </div>`
      : html`<${Draft} draft=${draft} onDraft=${setDraft} onSubmit=${submit} />`}
  </li>`;
}

function Draft({ draft, onDraft, onSubmit }) {
  const field = useFocus();
  const onKeyDown = (event) => event.key === "Escape" && (event.preventDefault(), onDraft(null));
  return html`<form onSubmit=${onSubmit} onKeyDown=${onKeyDown}>
    <label>Position, in base64 <input ref=${field} value=${draft} spellcheck=${false} onInput=${(event) => onDraft(event.target.value)} /></label>
    <button type="button" class="small" onClick=${() => onDraft(null)}>Cancel</button>
    <button class="small primary" type="submit">Set</button>
  </form>`;
}

/** The points of the past to which a source can be set back, once they are asked for. */
function Replay({ source, address, locked, onReplay }) {
  const [points, setPoints] = useState(null);
  const load = () => get(`${address}/history`).then(({ points }) => setPoints(points.toReversed()), complain);
  const choose = async (event) => {
    const at = Number(event.target.value);
    const text = `${source} reads again what was settled since ${moment(at)}. It arrives a second time.`;
    setPoints(null);
    if (await ask({ title: `Replay ${source}?`, text, confirm: "Replay", danger: true })) onReplay(at);
  };
  if (points === null) return html`<${CommandButton} class="small" disabled=${locked} onClick=${load}>Replay from…<//>`;
  if (points.length === 0) return html`<span class="note">no earlier points</span>`;
  return html`<${Points} source=${source} points=${points} onChoose=${choose} />`;
}

function Points({ source, points, onChoose }) {
  const field = useFocus();
  return html`<select ref=${field} aria-label=${`Replay ${source} from`} onChange=${onChoose}>
    <option>choose a time</option>
    ${points.map(({ at }) => html`<option value=${at} key=${at}>${moment(at)} (${ago(at, Date.now() / 1000)})</option>`)}
  </select>`;
}
