/** Connection: whether what is shown is what is, and when it will be again. */
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";
import { connection, fleet, retry } from "../live.js";
import { session } from "../session.js";
import { useStore } from "../store.js";

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  waiting: "Disconnected",
  refused: "Refused",
  resting: "Paused",
};

export function ConnectionLamp() {
  const { phase } = useStore(connection);
  return html`<span class="lamp" data-phase=${phase} title=${WORDS[phase]}><span>${WORDS[phase]}</span></span>`;
}

/** Shown when the stream has broken off: what is on the page is old, and says so. */
export function ConnectionBanner() {
  const { phase, error, retryAt } = useStore(connection);
  const known = useStore(fleet, (value) => value !== null);
  const { asking } = useStore(session);
  const broken = (phase === "waiting" || (phase === "connecting" && known && lost())) && !asking;
  useRemember(phase);
  const seconds = useCountdown(broken ? retryAt : null);
  return html`<div class="banner-place" role="status">
    ${broken &&
    html`<div class="banner" data-kind="offline">
      <p>
        <strong>Connection lost.</strong> ${error?.message ? `${sentence(error.message)} ` : ""}${known ? "What you see is from before. " : ""}
        <span aria-hidden="true">${seconds === null ? "Trying again…" : `Trying again in ${seconds} s.`}</span>
      </p>
      <button type="button" onClick=${retry}>Try now</button>
    </div>`}
  </div>`;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** While it tries again the banner stays, or it would flicker with every attempt. */
let wasLost = false;
const lost = () => wasLost;

function useRemember(phase) {
  if (phase === "waiting") wasLost = true;
  if (phase === "live" || phase === "refused") wasLost = false;
}

function useCountdown(until) {
  const left = () => (until === null ? null : Math.max(0, Math.ceil((until - Date.now()) / 1000)));
  const [seconds, set] = useState(left);
  useEffect(() => {
    set(left());
    if (until === null) return undefined;
    const timer = setInterval(() => set(left()), 250);
    return () => clearInterval(timer);
  }, [until]);
  return seconds;
}
