/** letterCommands: replay and discard dead letters; a dry run says first what would happen. */
import { post } from "./api.js";
import { parseRecords } from "./exact-json.js";
import { exact, plural } from "./format.js";
import { html } from "./html.js";
import { complain, say } from "./notices.js";
import { ask } from "./question.js";

/** Replay {ids} or {filter}, to all nodes that refused them or to `destinations` only; whether anything was done. */
export function replay(which, destinations = null) {
  const body = destinations === null ? which : { ...which, destinations };
  return rehearsed("dead-letters/replay", body, (plan) => ({
    title: `Replay ${plural(plan.queued, "dead letter")}?`,
    text: "Each enters its pipeline again at the node that refused it, and is gone from here once it is delivered.",
    details: html`<${ReplayPlan} plan=${plan} />`,
    confirm: "Replay",
    idle: plan.queued === 0,
  }), (done) => `${plural(done.queued, "dead letter")} on the way again`);
}

export function discard(which) {
  return rehearsed("dead-letters/discard", which, (plan) => ({
    title: `Discard ${plural(plan.discarded, "dead letter")}?`,
    text: "They are gone for good: their records are kept nowhere else.",
    confirm: "Discard",
    danger: true,
    idle: plan.discarded === 0,
  }), (done) => `${plural(done.discarded, "dead letter")} discarded`);
}

/** A letter of its JSON text, the numbers of its records as they were. */
export function letterOf(text) {
  return parseRecords(text, ["record", "records"]);
}

async function rehearsed(address, which, question, said) {
  try {
    const asked = question(await post(address, { ...which, dry_run: true }));
    if (!(await ask(asked))) return false;
    say(said(await post(address, { ...which, dry_run: false })));
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

const SHOWN = 5;

/** What the dry run found: where the letters go, what stands in the way. */
function ReplayPlan({ plan }) {
  const places = new Map();
  for (const { pipeline, nodes } of plan.letters) for (const node of nodes) count(places, `${pipeline} · ${node}`);
  return html`<div class="plan">
    <h3>Dry run</h3>
    <ul>
      ${[...places].map(([place, n]) => html`<li key=${place}><b class="number">${exact(n)}</b> to ${place}</li>`)}
      ${plan.already_queued > 0 && html`<li><b class="number">${exact(plan.already_queued)}</b> on the way already</li>`}
      ${plan.impossible > 0 && html`<li data-kind="bad"><b class="number">${exact(plan.impossible)}</b> cannot be sent again</li>`}
      ${plan.not_found.length > 0 && html`<li><b class="number">${exact(plan.not_found.length)}</b> no longer there</li>`}
      ${plan.obstacles.slice(0, SHOWN).map(({ id, reason }) => html`<li class="note" key=${id}>${id}: ${reason}</li>`)}
      ${plan.notes.map((note) => html`<li class="note" key=${note}>${note}</li>`)}
    </ul>
  </div>`;
}

function count(places, place) {
  places.set(place, (places.get(place) ?? 0) + 1);
}
