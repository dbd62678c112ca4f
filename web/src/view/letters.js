/** Letters: the records that could not be handled: by cause, one by one, and all that one can do about them. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get } from "../api.js";
import { exact, plural } from "../format.js";
import { html } from "../html.js";
import { discard, replay } from "../letter-commands.js";
import { filterOf, search } from "../letters-query.js";
import { href, replace } from "../route.js";
import { Empty, Loading } from "./empty.js";
import { RequestFault } from "./fault.js";
import { Icon } from "./icon.js";
import { LetterCauses } from "./letter-causes.js";
import { LetterTable } from "./letter-table.js";

const PAGE = 50;

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
  const done = (changed) => changed && (setChosen(new Set()), load());
  const which = chosen.size ? { ids: [...chosen] } : { filter };
  const amount = chosen.size || total;
  if (error) return html`<${RequestFault} error=${error}><button type="button" class="small" onClick=${load}>Try again</button><//>`;
  return html`<section class="letters" aria-label="Dead letters">
    <${LetterCauses} causes=${causes} cause=${query.cause ?? ""} showPipeline=${pipeline === null} onChoose=${(cause) => change({ cause })} />
    <div class="toolbar" role="search" aria-label="Filter dead letters">
      <label class="search"><${Icon} name="search" /><span class="unseen">Text in the error or the record</span>
        <input type="search" data-filter placeholder="Text in the error ( / )" value=${query.text ?? ""} spellcheck="false"
          onChange=${(event) => change({ text: event.target.value })} onKeyDown=${(event) => event.key === "Escape" && change({ text: "" })} />
      </label>
      <span class="toolbar-note" role="status">${loading ? "Loading…" : chosen.size ? `${exact(chosen.size)} selected` : plural(total, "dead letter")}</span>
      <div class="toolbar-end" role="group" aria-label="Commands">
        <button type="button" onClick=${load}>Refresh</button>
        <button type="button" class="primary" disabled=${!amount} onClick=${() => replay(which, amount).then(done)}>Replay ${chosen.size ? exact(chosen.size) : "all"}…</button>
        <button type="button" class="danger-quiet" disabled=${!amount} onClick=${() => discard(which, amount).then(done)}>Discard ${chosen.size ? exact(chosen.size) : "all"}…</button>
      </div>
    </div>
    ${loading && letters.length === 0 && html`<${Loading} what="the dead letters" />`}
    ${!loading && letters.length === 0 && html`<${NoLetters} filtered=${Object.keys(filter).length > (pipeline === null ? 0 : 1)} onClear=${() => change({ cause: "", text: "", node: "", state: "" })} />`}
    ${letters.length > 0 && html`<${LetterTable} letters=${letters} chosen=${chosen} onChoose=${setChosen} showPipeline=${pipeline === null} />`}
    ${next && html`<p class="more"><button type="button" onClick=${more}>Show more</button></p>`}
  </section>`;
}

function NoLetters({ filtered, onClear }) {
  if (filtered) return html`<${Empty} title="No dead letter matches"><button type="button" onClick=${onClear}>Show all</button><//>`;
  return html`<${Empty} title="No dead letters" text="Records that a node refuses are kept here, for pipelines whose dead letters go to the journal." />`;
}

/** The letters of a filter, a page at a time, and their causes. An answer to an older question is left out. */
function useLetters(filter) {
  const key = search(filter);
  const [state, setState] = useState({ letters: [], total: 0, next: null, causes: [], error: null, loading: true });
  const load = useCallback(() => {
    let current = true;
    setState((before) => ({ ...before, loading: true }));
    const causes = search({ pipeline: filter.pipeline });
    Promise.all([get(`dead-letters?${search(filter, { limit: PAGE })}`), get(`dead-letters/causes${causes ? `?${causes}` : ""}`)]).then(
      ([page, { causes }]) => current && setState({ ...page, causes, error: null, loading: false }),
      (error) => current && setState((before) => ({ ...before, error, loading: false })),
    );
    return () => void (current = false);
  }, [key]);
  useEffect(load, [load]);
  const more = async () => {
    const page = await get(`dead-letters?${search(filter, { limit: PAGE, cursor: state.next })}`);
    setState((before) => ({ ...before, letters: [...before.letters, ...page.letters], next: page.next }));
  };
  return { ...state, load, more };
}
