/** NodePanel: one node of a pipeline: its numbers, and the records that pass through it. */
import { useEffect, useRef } from "preact/hooks";
import { blockage } from "../blockage.js";
import { count, duration, exact, plural, rate } from "../format.js";
import { html } from "../html.js";
import { recording } from "../live.js";
import { quantile } from "../quantile.js";
import { go, href } from "../route.js";
import { Icon } from "./icon.js";
import { Snapshot } from "./snapshot.js";
import { Tap } from "./tap.js";

export function NodePanel({ pipeline, node }) {
  const heading = useRef(null);
  const close = () => {
    go(href(["pipelines", pipeline.id]));
    document.querySelector(`[data-node="${CSS.escape(node.id)}"]`)?.focus();
  };
  useEffect(() => heading.current.focus(), []);
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    event.preventDefault();
    close();
  };
  return html`<aside class="panel" aria-label=${`Node ${node.id}`} onKeyDown=${onKeyDown}>
    <header>
      <${Icon} name=${node.kind} />
      <h2 ref=${heading} tabindex="-1">${node.id}</h2>
      <span class="panel-kind">${node.kind} · ${node.label}</span>
      <button type="button" class="quiet square" aria-label="Close" title="Close (Esc)" onClick=${close}><${Icon} name="close" /></button>
    </header>
    <${Facts} pipeline=${pipeline} node=${node} />
    ${node.takes_snapshots && pipeline.engine !== "spark" && html`<${Snapshot} pipeline=${pipeline} node=${node} />`}
    <${Tap} pipeline=${pipeline} node=${node} />
  </aside>`;
}

function Facts({ pipeline, node }) {
  const flow = recording(pipeline.id).nodeRate(node.id);
  return html`<dl class="facts">
    ${factsOf(pipeline, node, flow).map(([name, value, title]) => html`<div title=${title ?? null}><dt>${name}</dt><dd class="number">${value}</dd></div>`)}
  </dl>`;
}

function factsOf(pipeline, node, flow) {
  const alive = ["running", "recovering", "stopping"].includes(pipeline.status);
  const facts = [
    ["state", alive ? blockage(node.waiting_on).text : "not running"],
    ["now", `${alive ? rate(flow) : "0"} /s`],
    [verb(node.kind), count(node.records), exact(node.records)],
    ["batches", count(node.batches), exact(node.batches)],
  ];
  if (node.kind === "source") {
    facts.push(["acked", count(node.acked), exact(node.acked)], ["in flight", `${count(node.in_flight)} of ${count(node.window)}`]);
    facts.push(["oldest", node.oldest_seconds ? duration(node.oldest_seconds) : "–", "how long ago the oldest record was read that is not settled"]);
    if (node.lag) facts.push(...lagFacts(node.lag));
    if (node.tally) facts.push(...queueFacts(node.tally));
  } else {
    facts.push(["queued", `${node.queued} of ${node.queue_size} batches`], ["refused", count(node.refused), exact(node.refused)]);
    facts.push(["call p95", duration(quantile(0.95, node.calls.bounds, node.calls.counts)), "95 of 100 calls took no longer, since start"]);
  }
  if (node.state) facts.push(...stateFacts(node.state));
  if (node.kind === "processor") facts.push(["filtered", count(node.filtered), exact(node.filtered)]);
  if (node.retries) facts.push(["retries", count(node.retries), exact(node.retries)]);
  return facts;
}

// Of a source over a queue that several workers share; what never happened is not worth a line.
function queueFacts({ held, extended, lost, taken_over, duplicates, unreadable, failed }) {
  const counts = [
    ["leases lost", lost, "messages that another worker may have got while this one worked on them"],
    ["taken over", taken_over, "pieces of work that another worker had begun and left"],
    ["duplicates", duplicates, "messages that came though their work was done, or begun, already"],
    ["unreadable", unreadable, "messages that are not what they should be"],
    ["failed", failed, "objects that could not be opened or read"],
  ];
  return [
    ["leases", `${count(held)} held, ${count(extended)} extended`, "messages kept from other workers, and how often for longer"],
    ...counts.filter(([, number]) => number).map(([name, number, meaning]) => [name, count(number), meaning]),
  ];
}

function stateFacts({ keys, bytes, watermark }) {
  const facts = [["remembers", `${plural(keys, "key")}, ${count(bytes)}B`, "the state of the processor, which commits with its records"]];
  if (watermark !== null) facts.push(["watermark", instant(watermark), "up to this time, by the times of the records, it has all of them"]);
  return facts;
}

// An event time may be any that a record has, also one that a Date cannot hold.
function instant(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "–" : date.toISOString().replace(".000Z", "Z");
}

// A topic may have a hundred partitions: those that are furthest behind are worth a line.
const PARTITIONS_MAX = 3;

function lagFacts({ records, bytes, seconds, retained_bytes, partitions }) {
  const known = [
    records !== null && plural(records, "record"),
    bytes !== null && `${count(bytes)}B`,
    seconds !== null && duration(seconds),
  ].filter(Boolean);
  const facts = [["behind", known.join(", ") || "–", "how much it has still to read"]];
  if (retained_bytes !== null) facts.push(["log kept", `${count(retained_bytes)}B`, "what the database keeps until this source has confirmed it"]);
  const furthest = Object.entries(partitions).filter(([, unread]) => unread).sort(([, one], [, other]) => other - one);
  for (const [name, unread] of furthest.slice(0, PARTITIONS_MAX)) {
    facts.push([name, `${count(unread)} behind`, "a partition with unread records; those that are furthest behind are shown"]);
  }
  return facts;
}

function verb(kind) {
  return { source: "read", processor: "processed", destination: "written" }[kind] ?? "stored";
}
