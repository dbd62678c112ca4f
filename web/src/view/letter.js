/** Letter: one dead letter: why, the record as it stood, and a way to mend it. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, path, put } from "../api.js";
import { html } from "../html.js";
import { Loading } from "./empty.js";
import { RequestFault } from "./fault.js";

export function Letter({ id }) {
  const [state, setState] = useState({ letter: null, error: null });
  const load = useCallback(() => {
    get(path("dead-letters", id)).then((letter) => setState({ letter, error: null }), (error) => setState({ letter: null, error }));
  }, [id]);
  useEffect(load, [load]);
  return html`
    <h1 class="lonely" tabindex="-1">Dead letter ${id}</h1>
    ${state.error && html`<${RequestFault} error=${state.error} />`}
    ${!state.error && !state.letter && html`<${Loading} what="the letter" />`}
    ${state.letter && html`<pre>${JSON.stringify(state.letter, null, 2)}</pre>`}
  `;
}
