/** Letter: one dead letter: why, the record as it stood, and a way to mend it. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, path } from "../api.js";
import { ago, exact, iso, moment, plural } from "../format.js";
import { html } from "../html.js";
import { discard, letterOf, replay } from "../letter-commands.js";
import { go, href } from "../route.js";
import { CommandButton } from "./command-button.js";
import { Empty, Loading } from "./empty.js";
import { RequestError } from "./error.js";
import { Icon } from "./icon.js";
import { LetterRecord } from "./letter-record.js";

const RENEW_SECONDS = 2;

export function Letter({ id }) {
  const { letter, error, load, take } = useLetter(id);
  useEffect(() => void (document.title = `Dead letter ${id} · conduit-py`), [id]);
  return html`<div class="letter">
    <nav class="crumbs" aria-label="Breadcrumb"><a href=${href(["dead-letters"])}>Dead letters</a>${letter && html` / <a href=${href(["pipelines", letter.pipeline, "dead-letters"])}>${letter.pipeline}</a>`}</nav>
    <h1 tabindex="-1">Dead letter <code>${id}</code></h1>
    ${error && error.status === 404 && html`<${Gone} />`}
    ${error && error.status !== 404 && html`<${RequestError} error=${error} />`}
    ${!error && !letter && html`<${Loading} what="the letter" />`}
    ${!error && letter && html`<${Whole} letter=${letter} onChange=${load} onLetter=${take} />`}
  </div>`;
}

function Gone() {
  return html`<${Empty} title="This dead letter is gone" text="It was delivered, discarded, or its time was over.">
    <a class="button" href=${href(["dead-letters"])}>All dead letters</a>
  <//>`;
}

function Whole({ letter, onChange, onLetter }) {
  const { id, pipeline, nodes, error, state, attempts, edited, first_at, source, piece, queued_for } = letter;
  const which = { ids: [id] };
  const leave = (done) => done && go(href(["pipelines", pipeline, "dead-letters"]));
  return html`
    <p class="pipeline-facts">
      <span class="letter-state" data-state=${state}>${state}${queued_for.length ? ` for ${queued_for.join(", ")}` : ""}</span>
      <span>from ${source}${piece.length ? `, piece ${piece.join(".")}` : ""}</span>
      <span>${plural(attempts, "attempt")}</span>
      ${edited && html`<span>edited</span>`}
      <time datetime=${iso(first_at)} title=${moment(first_at)}>first refused ${ago(first_at, Date.now() / 1000)}</time>
    </p>
    <section class="error" aria-label="Error"><${Icon} name="warning" />
      <div><p class="error-message">${error}</p>
        <p class="error-facts">${nodes.map((node) => html`<span key=${node}>node <a href=${href(["pipelines", pipeline, "nodes", node])}>${node}</a></span>`)}</p></div>
    </section>
    <div class="letter-commands" role="group" aria-label="Commands">
      <${CommandButton} class="primary" onClick=${() => replay(which).then((done) => done && onChange())}>Replay…<//>
      ${nodes.length > 1 && nodes.map((node) => html`<${CommandButton} key=${node} onClick=${() => replay(which, [node]).then((done) => done && onChange())}>Replay to ${node} only…<//>`)}
      <${CommandButton} class="danger-quiet" onClick=${() => discard(which).then(leave)}>Discard…<//>
    </div>
    ${letter.records.map((each) => html`<${LetterRecord} key=${each.node} letter=${letter} held=${each} onLetter=${onLetter} />`)}
    <${History} history=${letter.history} />
  `;
}

function History({ history }) {
  return html`<section class="card history" aria-label="History">
    <h2>History</h2>
    <ol>
      ${history.toReversed().map(
        (refusal) => html`<li key=${`${refusal.at} ${refusal.node}`}>
          <time datetime=${iso(refusal.at)} title=${moment(refusal.at)}>${moment(refusal.at)}</time>
          <span>attempt ${refusal.attempt}${refusal.tries > 1 ? `, ${exact(refusal.tries)} tries` : ""}</span>
          <b>${refusal.node}</b><span class="history-error">${refusal.error}</span>
        </li>`,
      )}
    </ol>
  </section>`;
}

/** The letter, asked for again while it is on its way: it is soon either gone or back. */
function useLetter(id) {
  const [state, setState] = useState({ letter: null, error: null });
  const load = useCallback(
    () => get(path("dead-letters", id), letterOf).then((letter) => setState({ letter, error: null }), (error) => setState({ letter: null, error })),
    [id],
  );
  useEffect(() => void load(), [load]);
  const queued = state.letter?.state === "queued";
  useEffect(() => {
    if (!queued) return undefined;
    const timer = setInterval(load, RENEW_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [queued, load]);
  return { ...state, load, take: (letter) => setState({ letter, error: null }) };
}
