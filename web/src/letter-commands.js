/** letterCommands: replay and discard dead letters; a dry run says first what would happen. */
import { post } from "./api.js";
import { plural } from "./format.js";
import { html } from "./html.js";
import { complain, say } from "./notices.js";
import { ask } from "./question.js";

/** Replay {ids} or {filter}; whether anything was done. */
export function replay(which, amount) {
  const title = `Replay ${plural(amount, "dead letter")}?`;
  const text = "Each goes into its pipeline again at the node that refused it, and is a dead letter no more once it is delivered.";
  return rehearsed("dead-letters/replay", which, { title, text, confirm: "Replay" }, (n) => `${plural(n, "dead letter")} on the way again`);
}

export function discard(which, amount) {
  const title = `Discard ${plural(amount, "dead letter")}?`;
  const text = "They are gone for good: their records are nowhere else.";
  return rehearsed("dead-letters/discard", which, { title, text, confirm: "Discard", danger: true }, (n) => `${plural(n, "dead letter")} discarded`);
}

async function rehearsed(address, which, question, said) {
  try {
    const plan = await post(address, { ...which, dry_run: true });
    if (!(await ask({ ...question, details: html`<${Plan} plan=${plan} />` }))) return false;
    const done = await post(address, { ...which, dry_run: false });
    say(said(done.count));
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

function Plan({ plan }) {
  return html`<p class="plan">Dry run: ${plural(plan.count, "letter")} would be taken.</p>`;
}
