/** Sparkline: the throughput of the last minutes, as a line without axes. */
import { html } from "../html.js";

const [WIDTH, HEIGHT] = [96, 22];

export function Sparkline({ rates }) {
  const known = rates.map((rate) => rate ?? 0);
  const top = Math.max(...known, 1e-9);
  if (known.length < 2) return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true"></svg>`;
  const step = WIDTH / (known.length - 1);
  const line = known.map((rate, i) => `${(i * step).toFixed(1)},${(HEIGHT - 2 - (rate / top) * (HEIGHT - 4)).toFixed(1)}`).join(" ");
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    <polygon points=${`0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} /><polyline points=${line} />
  </svg>`;
}
