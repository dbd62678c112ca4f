/** Tap: the records that pass through a node, before and after it, as they pass. */
import { useEffect, useRef, useState } from "preact/hooks";
import { allowed } from "../access.js";
import { path } from "../api.js";
import { parseRecords } from "../exact-json.js";
import { exact, plural } from "../format.js";
import { html } from "../html.js";
import { useKeys } from "../keys.js";
import { follow } from "../stream.js";
import { CommandButton } from "./command-button.js";
import { RecordSample } from "./record-sample.js";
import { RequestError } from "./error.js";
import { Icon } from "./icon.js";

const KEPT = 50;
const RATES = [1, 5, 20];

export function Tap({ pipeline, node }) {
  if (pipeline.engine === "spark") {
    return html`<section class="tap" aria-label="Record tap"><p class="tap-state">Records pass through the executors of Spark, so they cannot be seen here.</p></section>`;
  }
  return html`<${LiveTap} pipeline=${pipeline} node=${node} />`;
}

function LiveTap({ pipeline, node }) {
  const [on, setOn] = useState(false);
  const [perSecond, setPerSecond] = useState(RATES[1]);
  const { samples, schemas, missed, state, clear } = useTap(on, pipeline.id, node.id, perSecond);
  useKeys({ t: () => allowed() && setOn((was) => !was) }, []);
  return html`<section class="tap" aria-label="Record tap">
    <header>
      <h3>Records</h3>
      <label>at most <select value=${perSecond} onChange=${(event) => setPerSecond(Number(event.target.value))}>
        ${RATES.map((each) => html`<option value=${each}>${each}</option>`)}
      </select> a second</label>
      ${samples.length > 0 && !on && html`<button type="button" class="small quiet" onClick=${clear}>Clear</button>`}
      <${CommandButton} class=${on ? "" : "primary"} onClick=${() => setOn(!on)}><${Icon} name=${on ? "stop" : "tap"} />${on ? "Stop tap" : "Tap"}<//>
    </header>
    ${state.phase === "refused" && html`<${RequestError} error=${state.error} />`}
    <p class="tap-state" role="status">${stateText(on, state, samples.length, pipeline.status)}</p>
    ${missed > 0 && html`<p class="tap-dropped">${plural(missed, "record")} passed by unseen: the tap shows samples and never slows the pipeline.</p>`}
    ${schemas.map((schema) => html`<${SourceSchema} key=${schema.collection} schema=${schema} />`)}
    <ol class="record-samples" aria-label="Tapped records, newest first">
      ${samples.map(({ key, sample }, i) => html`<${RecordSample} key=${key} sample=${sample} open=${i === 0} />`)}
    </ol>
  </section>`;
}

/** The fields of a collection as its source announced them. */
function SourceSchema({ schema }) {
  return html`<details class="source-schema">
    <summary>Schema of <b>${schema.collection}</b>, version ${schema.version}: ${plural(schema.fields.length, "field")}</summary>
    <table>
      <thead><tr><th>Field</th><th>Type</th><th>In the source</th><th></th></tr></thead>
      <tbody>${schema.fields.map(({ name, type, native, key, nullable }) => html`<tr>
        <td>${name}</td><td>${type}</td><td>${native}</td><td>${[key && "key", nullable === false && "not null"].filter(Boolean).join(", ")}</td>
      </tr>`)}</tbody>
    </table>
  </details>`;
}

function stateText(on, state, shown, status) {
  if (!on) return shown ? `Stopped. ${exact(shown)} shown.` : "See records before and after this node while the pipeline runs. It is not slowed down.";
  if (state.phase === "live" && shown === 0) return status === "running" ? "Waiting for a record…" : "Waiting: the pipeline does not run.";
  return { connecting: "Connecting…", waiting: "Broken off, trying again…", live: `Tapping. ${exact(shown)} shown.` }[state.phase] ?? "";
}

/** The records keep their numbers as they were; what is about them is read as usual. */
function eventOf(data) {
  return parseRecords(data, ["before", "after"]);
}

/** The newest records first, at most `KEPT`; a new node or rate begins anew. */
function useTap(on, pipeline, node, perSecond) {
  const [samples, setSamples] = useState([]);
  const [schemas, setSchemas] = useState([]);
  const [missed, setMissed] = useState(0);
  const [state, setState] = useState({ phase: "off" });
  const number = useRef(0);
  const clear = () => (setSamples([]), setSchemas([]), setMissed(0));
  useEffect(() => {
    if (!on) return undefined;
    clear();
    const show = (name, data) => {
      if (data.source_schema) setSchemas((before) => [data.source_schema, ...before.filter(({ collection }) => collection !== data.source_schema.collection)].slice(0, KEPT));
      if (name === "record") setSamples((before) => [{ key: ++number.current, sample: data }, ...before].slice(0, KEPT));
      setMissed((before) => before + (name === "record" ? data.skipped : data.count));
    };
    const stream = follow(`${path("pipelines", pipeline, "nodes", node, "tap")}?rate=${perSecond}`, { onEvent: show, onState: setState, parse: eventOf });
    return () => (stream.close(), setState({ phase: "off" }));
  }, [on, pipeline, node, perSecond]);
  return { samples, schemas, missed, state, clear };
}
