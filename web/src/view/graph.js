/** Graph: a pipeline as it flows. The width of an edge is its rate, its colour the pressure back. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { level } from "../blockage.js";
import { rate } from "../format.js";
import { html } from "../html.js";
import { useKeys } from "../keys.js";
import { layout, neighbour } from "../layout.js";
import { recording } from "../live.js";
import { href } from "../route.js";
import { GraphNode } from "./graph-node.js";

const SMALLEST = 0.72;

export function Graph({ seen, chosen }) {
  const { pipeline } = seen;
  const [frame, width] = useWidth();
  const drawing = useDrawing(pipeline, width);
  const [active, setActive] = useState(null);
  const first = pipeline.nodes[0]?.id;
  const alive = ["running", "stopping"].includes(pipeline.status);
  const onKeyDown = (event) => {
    if (!event.key.startsWith("Arrow") || event.altKey || event.ctrlKey || event.metaKey) return;
    const id = event.target.closest("[data-node]")?.dataset.node;
    const next = id && neighbour(event.key, id, pipeline.nodes, drawing.nodes, drawing.direction);
    if (!id) return;
    event.preventDefault();
    if (next) focusNode(frame.current, next);
  };
  const stop = active ?? chosen ?? first;
  // Not from the panel of a node, whose own controls have the focus then.
  const enter = (event) => event.target.closest?.("aside") || focusNode(frame.current, stop);
  useKeys({ ArrowRight: enter, ArrowLeft: enter }, [stop]);
  return html`<section class="card graph" aria-label="Graph">
    <div class="graph-frame" ref=${frame} onKeyDown=${onKeyDown}>
      <div class="graph-size" style=${{ width: `${drawing.width * drawing.scale}px`, height: `${drawing.height * drawing.scale}px` }}>
        <div class="graph-canvas" style=${{ width: `${drawing.width}px`, height: `${drawing.height}px`, transform: `scale(${drawing.scale})` }}>
          <${Edges} pipeline=${pipeline} drawing=${drawing} alive=${alive} />
          <ul class="graph-nodes">
            ${pipeline.nodes.map((node) => {
              const place = drawing.nodes.get(node.id);
              return html`<li key=${node.id} style=${box(place)}>
                <${GraphNode} pipeline=${pipeline} node=${node} alive=${alive} chosen=${node.id === chosen}
                  stop=${node.id === stop} onFocus=${() => setActive(node.id)} />
              </li>`;
            })}
          </ul>
        </div>
      </div>
    </div>
    <${GraphFoot} pipeline=${pipeline} />
  </section>`;
}

function focusNode(frame, id) {
  frame.querySelector(`[data-node="${CSS.escape(id)}"]`)?.focus();
}

function Edges({ pipeline, drawing, alive }) {
  const seen = recording(pipeline.id);
  const nodes = new Map(pipeline.nodes.map((node) => [node.id, node]));
  return html`<svg class="graph-edges" width=${drawing.width} height=${drawing.height} aria-hidden="true" focusable="false">
    ${drawing.edges.map(({ from, to, path, label }) => {
      const flow = alive ? seen.edgeRate(nodes.get(from), nodes.get(to)) : 0;
      const pressed = alive ? level(seen.edgePressure(from, to)) : "free";
      return html`<g key=${`${from}\n${to}`} data-level=${pressed} data-flow=${flow > 0 ? speed(flow) : "none"} data-edge=${`${from} ${to}`}>
        <path class="edge" d=${path} stroke-width=${breadth(flow)} />
        ${flow > 0 && html`<path class="edge-flow" d=${path} />`}
        <text ...${beside(label, breadth(flow), drawing.direction)}>${flow === null ? "" : `${rate(flow)}/s`}</text>
      </g>`;
    })}
  </svg>`;
}

function GraphFoot({ pipeline }) {
  // "journal" is an old name of the API for letters that are kept.
  const { handler, records } = pipeline.dead_letters;
  return html`<footer class="graph-foot">
    <ul class="legend" aria-label="Edges">
      <li data-level="free">free</li>
      <li data-level="tight">tight</li>
      <li data-level="blocked">blocked by what follows</li>
      <li class="legend-note">width is records per second</li>
    </ul>
    <p>Dead letters go to <b>${handler === "journal" ? "the state" : handler}</b>${records ? html`: <a href=${href(["pipelines", pipeline.id, "dead-letters"])}>${rate(records)} since start</a>` : ""}</p>
  </footer>`;
}

function box({ x, y, width, height }) {
  return { left: `${x - width / 2}px`, top: `${y - height / 2}px`, width: `${width}px`, height: `${height}px` };
}

/** Where the text of a label is, clear of an edge of this breadth. */
function beside({ x, y, anchor, side }, breadth, direction) {
  const off = side * (6 + breadth / 2);
  return direction === "LR" ? { x, y: y + off + (side > 0 ? 8 : 0), "text-anchor": anchor } : { x: x + off, y, "text-anchor": anchor };
}

/** Ten times the rate is two steps wider: rates differ by more than any line could show. */
function breadth(flow) {
  return flow > 0 ? Math.min(12, 1.5 + 2 * Math.log10(1 + flow)) : 1.5;
}

function speed(flow) {
  return flow < 20 ? "slow" : flow < 2000 ? "steady" : "fast";
}

/** From left to right as long as it can be read so, else from top to bottom. */
function useDrawing(pipeline, width) {
  const narrow = width < 500;
  const shape = JSON.stringify([pipeline.nodes.map((node) => node.id), pipeline.edges]);
  const both = useMemo(
    () => ["LR", "TB"].map((direction) => ({ direction, ...layout(pipeline.nodes, pipeline.edges, direction, narrow ? 172 : 216) })),
    [shape, narrow],
  );
  const fit = (drawing) => Math.min(1, width / drawing.width);
  const drawing = fit(both[0]) >= SMALLEST || fit(both[0]) > fit(both[1]) ? both[0] : both[1];
  return { ...drawing, scale: Math.max(fit(drawing), 0.55) };
}

function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(1000);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
