/** layout: where the nodes and edges of a pipeline are drawn. */
import dagre from "@dagrejs/dagre";

const HEIGHT = 88;
const MARGIN = 12;

/**
 * {width, height, nodes: Map id → {x, y, width, height}, edges: [{from, to, path, label: {x, y, anchor, side}}]}, drawn
 * from left to right ("LR") or from top to bottom ("TB"), with nodes of a width.
 */
export function layout(nodes, edges, direction, width) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: direction, nodesep: 28, ranksep: direction === "LR" ? 96 : 56, marginx: MARGIN, marginy: MARGIN });
  for (const node of nodes) graph.setNode(node.id, { width, height: HEIGHT });
  for (const [from, to] of edges) graph.setEdge(from, to, {});
  lineUp(graph, nodes);
  dagre.layout(graph);
  const size = cropped(graph, nodes, direction);
  const places = new Map(nodes.map(({ id }) => [id, graph.node(id)]));
  return {
    ...size,
    nodes: places,
    edges: edges.map(([from, to]) => drawn([from, to], graph.edge(from, to).points, places, direction, alone(edges, to))),
  };
}

const ENDS = { source: "\0sources", destination: "\0destinations" };

/** All sources begin in one rank and all destinations end in one: each kind hangs on a node that is not drawn. */
function lineUp(graph, nodes) {
  for (const end of Object.values(ENDS)) graph.setNode(end, { width: 0, height: 0 });
  for (const { id, kind } of nodes) {
    if (kind === "source") graph.setEdge(ENDS.source, id, { weight: 50 });
    if (kind === "destination") graph.setEdge(id, ENDS.destination, { weight: 50 });
  }
}

/** Moves what is drawn to the edges, over the room of what is not; how large it then is. */
function cropped(graph, nodes, direction) {
  const [along, length] = direction === "LR" ? ["x", "width"] : ["y", "height"];
  const places = nodes.map(({ id }) => graph.node(id));
  const first = Math.min(...places.map((place) => place[along] - place[length] / 2)) - MARGIN;
  const last = Math.max(...places.map((place) => place[along] + place[length] / 2)) + MARGIN;
  for (const place of places) place[along] -= first;
  for (const edge of graph.edges()) for (const point of graph.edge(edge).points) point[along] -= first;
  const { width, height } = graph.graph();
  return { width, height, [length]: last - first };
}

/** The node to which a key leads from a place: along the edges, or to a neighbour of the same rank. */
export function neighbour(key, id, nodes, places, direction) {
  const along = direction === "LR" ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  const node = nodes.find((each) => each.id === id);
  if (key === along[0]) return node.inputs[0] ?? null;
  if (key === along[1]) return node.outputs[0] ?? null;
  return beside(key, id, places, direction);
}

function beside(key, id, places, direction) {
  const [rank, order] = direction === "LR" ? ["x", "y"] : ["y", "x"];
  const sign = key === "ArrowDown" || key === "ArrowRight" ? 1 : -1;
  const here = places.get(id);
  const others = [...places].filter(([, at]) => Math.abs(at[rank] - here[rank]) < 4 && sign * (at[order] - here[order]) > 0);
  others.sort(([, a], [, b]) => sign * (a[order] - b[order]));
  return others[0]?.[0] ?? null;
}

function alone(edges, to) {
  return edges.filter(([, end]) => end === to).length === 1;
}

function drawn([from, to], points, places, direction, single) {
  const [start, end] = ports(places.get(from), places.get(to), direction);
  // With three points the middle one is half way, where the curve goes by itself.
  const stops = points.length > 3 ? [start, ...points.slice(1, -1), end] : [start, end];
  const segments = stops.slice(1).map((stop, i) => curve(stops[i], stop, direction));
  return { from, to, path: `M${start.x},${start.y}${segments.join("")}`, label: label(start, end, direction, single) };
}

/**
 * Labels stand where edges are apart, before the next node, or behind the last one where several edges meet; and on the
 * side from which the edge bends away: {x, y, anchor, side: -1 above or left, 1 below or right}.
 */
function label(start, end, direction, single) {
  const [here, there] = single ? [end, start] : [start, end];
  if (direction === "LR") return { x: here.x + (single ? -8 : 8), y: here.y, anchor: single ? "end" : "start", side: there.y < here.y ? 1 : -1 };
  const side = there.x > here.x ? -1 : 1;
  return { x: here.x, y: here.y + (single ? -12 : 20), anchor: side < 0 ? "end" : "start", side };
}

function ports(from, to, direction) {
  return direction === "LR"
    ? [{ x: from.x + from.width / 2, y: from.y }, { x: to.x - to.width / 2, y: to.y }]
    : [{ x: from.x, y: from.y + from.height / 2 }, { x: to.x, y: to.y - to.height / 2 }];
}

function curve(a, b, direction) {
  const [mx, my] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
  return direction === "LR"
    ? `C${mx},${a.y} ${mx},${b.y} ${b.x},${b.y}`
    : `C${a.x},${my} ${b.x},${my} ${b.x},${b.y}`;
}
