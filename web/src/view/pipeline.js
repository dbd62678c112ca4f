/** PipelinePage: one pipeline, as it is this moment. */
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get } from "../api.js";
import { command, possible } from "../commands.js";
import { html } from "../html.js";
import { useKeys } from "../keys.js";
import { connection, details } from "../live.js";
import { href } from "../route.js";
import { useStore } from "../store.js";
import { Charts } from "./charts.js";
import { Empty, Loading } from "./empty.js";
import { Events } from "./events.js";
import { DefinitionProblem, FileProblems, PipelineError, RequestError } from "./error.js";
import { Graph } from "./graph.js";
import { Letters } from "./letters.js";
import { NodePanel } from "./node-panel.js";
import { PipelineHead } from "./pipeline-head.js";
import { PipelineTiles } from "./pipeline-tiles.js";
import { Positions } from "./positions.js";

export function PipelinePage({ at }) {
  const seen = useStore(details);
  const { phase, error } = useStore(connection);
  useEffect(() => void (document.title = `${at.id} · conduit-py`), [at.id]);
  const arrived = seen?.pipeline.id === at.id;
  // Asked before the heading of the empty page gives way to that of the pipeline, which takes over its focus.
  const atHeading = document.activeElement?.matches("main h1");
  useLayoutEffect(() => void (atHeading && document.querySelector("main h1")?.focus({ preventScroll: true })), [arrived]);
  if (arrived) return html`<${Pipeline} seen=${seen} at=${at} />`;
  return html`
    <h1 class="lonely" tabindex="-1">${at.id}</h1>
    ${phase === "refused" ? html`<${Refused} id=${at.id} error=${error} />` : html`<${Loading} what=${at.id} />`}
  `;
}

function Refused({ id, error }) {
  if (error.status !== 404) return html`<${RequestError} error=${error} />`;
  return html`<${MaybeInBrokenFile} /><${Empty} title=${`There is no pipeline ${id}`} text="It may have been removed, or the address may be wrong.">
    <a class="button" href=${href([])}>All pipelines</a>
  <//>`;
}

/** The problems of the files, asked for: a stream of a pipeline that is not there says nothing about them. */
function MaybeInBrokenFile() {
  const [problems, setProblems] = useState([]);
  useEffect(() => void get("pipelines").then((answer) => setProblems(answer.problems), () => {}), []);
  return html`<${FileProblems} problems=${problems} />`;
}

function Pipeline({ seen, at }) {
  const { pipeline } = seen;
  const status = pipeline.status;
  useKeys(
    {
      s: () => command(possible(status)[0], pipeline.id),
      r: () => possible(status).includes("restart") && command("restart", pipeline.id),
    },
    [status, pipeline.id],
  );
  return html`<div class="pipeline" data-panel=${at.node ? "open" : "closed"}>
    <${PipelineHead} pipeline=${pipeline} now=${seen.at} tab=${at.tab} />
    ${pipeline.error && html`<${PipelineError} id=${pipeline.id} error=${pipeline.error} status=${status} now=${seen.at} />`}
    ${pipeline.definition && html`<${DefinitionProblem} problem=${pipeline.definition} />`}
    ${at.tab === "overview" && html`<${Overview} seen=${seen} node=${at.node} />`}
    ${at.tab === "dead-letters" && html`<${Letters} query=${at.query} pipeline=${pipeline.id} />`}
    ${at.tab === "positions" && html`<${Positions} pipeline=${pipeline} />`}
  </div>`;
}

function Overview({ seen, node }) {
  const { pipeline } = seen;
  const shown = node && pipeline.nodes.find((each) => each.id === node);
  return html`
    <${PipelineTiles} seen=${seen} />
    <${Graph} seen=${seen} chosen=${node} />
    <${Charts} seen=${seen} />
    <${Events} events=${pipeline.events} now=${seen.at} />
    ${shown && html`<${NodePanel} key=${node} pipeline=${pipeline} node=${shown} />`}
  `;
}
