/** GraphNode: a node with its rate and what blocks it. */
import { blockage } from "../blockage.js";
import { count, rate } from "../format.js";
import { html } from "../html.js";
import { recording } from "../live.js";
import { href } from "../route.js";
import { Icon } from "./icon.js";

export function GraphNode({ pipeline, node, alive, chosen, stop, onFocus }) {
  const flow = alive ? recording(pipeline.id).nodeRate(node.id) : 0;
  const { text, mood } = alive ? blockage(node.waiting_on) : { text: "not running", mood: "off" };
  const failed = pipeline.error?.node === node.id && pipeline.status !== "running";
  // A second click on an open node closes it.
  const to = chosen ? ["pipelines", pipeline.id] : ["pipelines", pipeline.id, "nodes", node.id];
  return html`<a class="graph-node" href=${href(to)} data-node=${node.id} data-kind=${node.kind} data-mood=${failed ? "failed" : mood}
    aria-current=${chosen ? "true" : undefined} tabindex=${stop ? 0 : -1} onFocus=${onFocus} title=${`${node.id}: ${text}`}>
    <span class="node-top">
      <${Icon} name=${node.kind} /><b>${node.id}</b>
      ${node.refused > 0 && html`<span class="node-refused" title="refused">${count(node.refused)}<span class="unseen"> refused</span></span>`}
    </span>
    <span class="node-middle"><span class="node-label"><span class="unseen">${node.kind} </span>${node.label}</span><span class="number">${rate(flow)}<small>/s</small></span></span>
    <span class="node-block">${failed ? "failed" : text}</span>
  </a>`;
}
