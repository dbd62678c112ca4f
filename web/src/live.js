/** live: the state of the server as it streams in; one connection, whatever is shown. */
import { get, path } from "./api.js";
import { say } from "./notices.js";
import { Recording } from "./recording.js";
import { Series } from "./series.js";
import { Store } from "./store.js";
import { follow } from "./stream.js";

const SILENT_SECONDS = 10;
const HISTORY_SECONDS = 150;
const RECORDINGS_MAX = 20;
const NOTICES_MAX = 3;

/** {at, pipelines, byId, problems}, or null before the first event. */
export const fleet = new Store(null);
/** {at, pipeline} of the pipeline that is watched, or null. */
export const details = new Store(null);
/** How the connection is: see stream.js. */
export const connection = new Store({ phase: "connecting", error: null, retryAt: null });

const histories = new Map();
const recordings = new Map();
let watched = null;
let stream = null;

/** How many records a pipeline had delivered, over the last minutes. No more is kept: there may be hundreds of them. */
export function history(id) {
  return histories.get(id) ?? null;
}

/** What was seen of a pipeline, and what the server remembers of it. */
export function recording(id) {
  if (!recordings.has(id)) recordings.set(id, new Recording());
  if (recordings.size > RECORDINGS_MAX) recordings.delete(recordings.keys().next().value);
  return recordings.get(id);
}

/** Have one pipeline streamed with its nodes, or with null only the fleet. */
export function watch(id) {
  if (stream && id === watched) return;
  watched = id;
  details.set(null);
  connect();
}

export function retry() {
  if (connection.value.phase === "refused") connect();
  else stream?.retry();
}

/** A tab that nobody looks at needs no stream, and a browser has only six connections for all tabs of one site. */
export function restWhileHidden() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return connect();
    stream?.close();
    stream = null;
    connection.set({ phase: "resting", error: null, retryAt: null });
  });
}

function connect() {
  stream?.close();
  const id = watched;
  const address = id === null ? "live" : `live?pipeline=${encodeURIComponent(id)}`;
  const onState = (state) => {
    connection.set(state);
    if (state.phase === "live" && id !== null) remember(id);
  };
  stream = follow(address, { onEvent: take, onState, silentSeconds: SILENT_SECONDS });
}

/** Have the charts show what was before the page was opened, and while it was away. */
async function remember(id) {
  try {
    recording(id).fill(await get(path("pipelines", id, "history")));
  } catch {
    // The charts then begin with what is seen from now on, and the next connection asks again.
  }
}

function take(name, data) {
  if (name === "fleet") takeFleet(data);
  if (name === "pipeline") takePipeline(data);
}

function takeFleet({ at, pipelines, problems }) {
  for (const { id, progress } of pipelines) {
    if (!progress) continue;
    if (!histories.has(id)) histories.set(id, new Series(HISTORY_SECONDS));
    histories.get(id).push({ at, acked: progress.acked });
  }
  const byId = new Map(pipelines.map((pipeline) => [pipeline.id, pipeline]));
  for (const id of histories.keys()) if (!byId.has(id)) histories.delete(id);
  if (fleet.value) noticeTrouble(pipelines, fleet.value.byId);
  fleet.set({ at, pipelines, byId, problems });
}

/** Show a notice when a pipeline breaks, whatever the view shows. */
function noticeTrouble(pipelines, before) {
  const broken = pipelines.filter(({ id, status }) => status === "degraded" && (before.get(id)?.status ?? status) !== status);
  for (const { id, error } of broken.slice(0, NOTICES_MAX)) say(`${id} is degraded: ${error?.message ?? "for no known reason"}`, "failed", error?.suggestion);
}

function takePipeline({ at, pipeline }) {
  if (pipeline.id !== watched) return;
  recording(pipeline.id).push(at, pipeline);
  details.set({ at, pipeline });
}
