/** Charts: throughput and latency of a pipeline over time. */
import { useState } from "preact/hooks";
import { duration, rate } from "../format.js";
import { html } from "../html.js";
import { recording } from "../live.js";
import { Chart } from "./chart.js";

const SPANS = [
  [60, "1 min"],
  [300, "5 min"],
  [900, "15 min"],
];
const POINTS = 240;
const STEP_SECONDS = 2;

export function Charts({ seen }) {
  const [span, setSpan] = useState(300);
  const { totals, latencies } = recording(seen.pipeline.id);
  if (totals.length === 0) return null;
  return html`<section class="over-time" aria-label="Over time">
    <header>
      <h2>Over time</h2>
      <div class="spans" role="group" aria-label="Time shown">
        ${SPANS.map(([seconds, name]) => html`<button type="button" class="chip" key=${seconds} aria-pressed=${span === seconds} onClick=${() => setSpan(seconds)}>${name}</button>`)}
      </div>
    </header>
    <div class="charts">
    <${Chart} title="Throughput" unit="records per second" format=${rate} span=${span} at=${seen.at}
      lines=${[["read", 1], ["delivered", 2], ["dead letters", 3]]} data=${throughput(totals, span)} />
    <${Chart} title="Latency" unit="from read to acked" format=${duration} span=${span} at=${seen.at}
      lines=${[["p50", 1], ["p95", 2], ["p99", 3]]} data=${latency(latencies, span)} />
    </div>
  </section>`;
}

function throughput(totals, span) {
  const rates = ["read", "acked", "dead_letters"].map((name) => totals.rates(name, span, step(span)));
  return [rates[0][0], ...rates.map(([, values]) => values)];
}

function latency(latencies, span) {
  const samples = latencies.every(step(span), span);
  return [samples.map(({ at }) => at), ...["p50", "p95", "p99"].map((name) => samples.map((sample) => sample[name]))];
}

function step(span) {
  return Math.max(STEP_SECONDS, Math.ceil(span / POINTS));
}
