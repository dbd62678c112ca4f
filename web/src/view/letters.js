/** Letters: the records that could not be handled: by cause, one by one, and all that one can do about them. */
import { useEffect, useState } from "preact/hooks";
import { exact, plural } from "../format.js";
import { html } from "../html.js";
import { discard, replay } from "../letter-commands.js";
import { filterOf, search } from "../letters-query.js";
import { href, replace } from "../route.js";
import { useLetters } from "../use-letters.js";
import { CommandButton } from "./command-button.js";
import { Empty, Loading } from "./empty.js";
import { RequestError } from "./error.js";
import { Icon } from "./icon.js";
import { LetterCauses } from "./letter-causes.js";
import { LetterTable } from "./letter-table.js";

export function LettersPage({ query }) {
  useEffect(() => void (document.title = "Dead letters · conduit-py"), []);
  return html`<h1 class="lonely" tabindex="-1">Dead letters</h1><${Letters} query=${query} />`;
}

/** Those of one pipeline, or with none given of all. */
export function Letters({ query, pipeline = null }) {
  const filter = filterOf(query, pipeline);
  const { letters, total, next, causes, error, loading, load, more } = useLetters(filter);
  const [chosen, setChosen] = useState(new Set());
  useEffect(() => setChosen(new Set()), [search(filter)]);
  const here = pipeline === null ? ["dead-letters"] : ["pipelines", pipeline, "dead-letters"];
  const change = (changed) => replace(href(here, { ...query, ...changed }));
  const clear = { cause: "", text: "", node: "", state: "", ...(pipeline === null ? { pipeline: "" } : {}) };
  const filtered = Object.keys(filter).length > (pipeline === null ? 0 : 1);
  return html`<section class="letters" aria-label="Dead letters">
    <${LetterCauses} causes=${causes} query=${query} showPipeline=${pipeline === null} onChoose=${change} />
    <${LetterToolbar} query=${query} filter=${filter} chosen=${chosen} total=${total} loading=${loading} filtered=${filtered}
      onChange=${change} onClear=${() => change(clear)} onDone=${(changed) => changed && (setChosen(new Set()), load())} />
    ${error && html`<${RequestError} error=${error}><button type="button" class="small" onClick=${load}>Try again</button><//>`}
    ${loading && letters.length === 0 && html`<${Loading} what="the dead letters" />`}
    ${!loading && !error && letters.length === 0 && html`<${NoLetters} filtered=${filtered} onClear=${() => change(clear)} />`}
    ${letters.length > 0 && html`<${LetterTable} letters=${letters} chosen=${chosen} onChoose=${setChosen} showPipeline=${pipeline === null} />`}
    ${next !== null && html`<p class="more"><button type="button" onClick=${more}>Show more</button></p>`}
  </section>`;
}

function LetterToolbar({ query, filter, chosen, total, loading, filtered, onChange, onClear, onDone }) {
  const which = chosen.size ? { ids: [...chosen] } : { filter };
  const amount = chosen.size || total;
  const words = chosen.size ? exact(chosen.size) : filtered ? `these ${exact(total)}` : "all";
  return html`<div class="toolbar" role="search" aria-label="Filter dead letters">
    <label class="search"><${Icon} name="search" /><span class="unseen">Text in the error</span>
      <input type="search" data-filter placeholder="Text in the error ( / )" value=${query.text ?? ""} spellcheck=${false} autocomplete="off"
        onInput=${(event) => onChange({ text: event.target.value })} onKeyDown=${(event) => event.key === "Escape" && onChange({ text: "" })} />
    </label>
    <div class="chips" role="group" aria-label="State">
      ${["kept", "queued"].map(
        (state) => html`<button type="button" class="chip" key=${state} aria-pressed=${query.state === state} onClick=${() => onChange({ state: query.state === state ? "" : state })}>${state}</button>`,
      )}
    </div>
    <span class="toolbar-note" role="status">${loading ? "Loading…" : chosen.size ? `${exact(chosen.size)} selected` : plural(total, "dead letter")}</span>
    ${filtered && html`<button type="button" class="quiet small" onClick=${onClear}>Clear filter</button>`}
    <div class="toolbar-end" role="group" aria-label="Commands">
      <${CommandButton} class="primary" disabled=${!amount} onClick=${() => replay(which).then(onDone)}>Replay ${words}…<//>
      <${CommandButton} class="danger-quiet" disabled=${!amount} onClick=${() => discard(which).then(onDone)}>Discard ${words}…<//>
    </div>
  </div>`;
}

function NoLetters({ filtered, onClear }) {
  if (filtered) return html`<${Empty} title="No dead letter matches"><button type="button" onClick=${onClear}>Show all</button><//>`;
  return html`<${Empty} title="No dead letters" text="Records that a node refuses are kept here, for pipelines with DeadLetters.keep()." />`;
}
