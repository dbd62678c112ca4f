/** Chart: lines over time on a canvas, with the newest values beside their names. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { useStore } from "../store.js";
import { repaint } from "../theme.js";

const HEIGHT = 190;
// As close as they fit: by itself it goes from one minute to five, which leaves a phone with a single time.
const TICK_SECONDS = [5, 10, 15, 30, 60, 120, 180, 300, 600];

/** `lines` are [name, number of its colour]; `data` is [times, values of the first line, …]. */
export function Chart({ title, unit, lines, data, format, span, at }) {
  const place = useRef(null);
  const plot = useRef(null);
  const painted = useStore(repaint);
  const range = useRef([0, 1]);
  range.current = [at - span, at];
  useEffect(() => {
    plot.current = draw(place.current, lines, format, range);
    plot.current.setData(data);
    const observer = new ResizeObserver(([{ contentRect }]) => plot.current?.setSize({ width: Math.floor(contentRect.width), height: HEIGHT }));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [painted]);
  useEffect(() => plot.current?.setData(data), [at, span]);
  const newest = data.slice(1).map((values) => values.at(-1) ?? null);
  const words = lines.map(([name], i) => `${name} ${format(newest[i])}`).join(", ");
  return html`<figure class="card chart">
    <figcaption>
      <h3>${title} <small>${unit}</small></h3>
      <ul class="series">
        ${lines.map(([name, colour], i) => html`<li data-colour=${colour}>${name} <b class="number">${format(newest[i])}</b></li>`)}
      </ul>
    </figcaption>
    <div class="plot" ref=${place} role="img" aria-label=${`${title}, ${unit}: now ${words}`}></div>
    ${data.slice(1).every((values) => values.every((value) => value === null)) && html`<p class="plot-empty">Nothing was recorded in this time.</p>`}
  </figure>`;
}

function draw(place, lines, format, range) {
  const colour = (name) => getComputedStyle(place).getPropertyValue(name).trim();
  const probe = (number) => getComputedStyle(place.closest("figure").querySelector(`[data-colour="${number}"]`)).borderLeftColor;
  const [ink, rule] = [getComputedStyle(place).color, getComputedStyle(place).borderTopColor];
  const axis = { stroke: ink, font: `11px ${colour("--font")}`, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      padding: [8, 28, 0, 0],
      hooks: { draw: [(plot) => mark(place, plot)] },
      scales: { x: { range: () => range.current }, y: { range: (_, low, high) => [0, (high ?? 0) > 0 ? high * 1.15 : 1] } },
      axes: [
        { ...axis, size: 26, space: 76, incrs: TICK_SECONDS, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 58, space: 36, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : format(tick))) },
      ],
      series: [
        {},
        ...lines.map(([label, number], i) => ({ label, stroke: probe(number), width: 1.75, fill: i === 0 ? faint(probe(number)) : undefined, points: { show: false } })),
      ],
    },
    null,
    place,
  );
}

/** What a canvas has drawn cannot be read from it: its seconds, and when the first value was. */
function mark(place, { data, scales }) {
  const times = data[0].filter((at, i) => at >= scales.x.min && data.slice(1).some((values) => values[i] !== null));
  place.dataset.seconds = Math.round(scales.x.max - scales.x.min);
  place.dataset.since = times[0] ?? "";
}

function clock(at) {
  const time = new Date(at * 1000).toTimeString();
  return at % 60 ? time.slice(0, 8) : time.slice(0, 5);
}

function faint(colour) {
  return colour.replace(/^rgb\((.*)\)$/, (_, parts) => `rgba(${parts.includes(",") ? parts : parts.split(" ").join(", ")}, 0.1)`);
}
