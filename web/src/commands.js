/** commands: start, stop, force and restart a pipeline, each after a question. */
import { allowed } from "./access.js";
import { path, post } from "./api.js";
import { complain, say } from "./notices.js";
import { ask } from "./question.js";

const ALIVE = new Set(["running", "recovering", "stopping"]);

/** Which commands make sense for a pipeline as it is. */
export function possible(status) {
  if (status === "stopping") return ["force"];
  if (status === "waiting") return ["start", "stop"];
  return ALIVE.has(status) ? ["stop", "restart", "force"] : ["start"];
}

export const LABELS = { start: "Start", stop: "Stop", restart: "Restart", force: "Force stop" };

const QUESTIONS = {
  start: { text: "It goes on from its saved positions.", confirm: "Start" },
  stop: {
    text: "What has been read is delivered first. It then stays stopped, also when the server restarts, until it is started.",
    confirm: "Stop",
  },
  restart: { text: "What has been read is delivered first, then it starts again from its positions.", confirm: "Restart" },
  force: {
    text: "It stops at once. What is in flight is dropped and read again at the next start, so records may arrive twice.",
    confirm: "Force stop",
    danger: true,
  },
};

/** Ask, then do; says how it went, or why this role may not. */
export async function command(name, id) {
  if (!allowed()) return;
  const yes = await ask({ title: `${LABELS[name]} ${id}?`, ...QUESTIONS[name] });
  if (!yes) return;
  const force = name === "force";
  try {
    const body = name === "stop" || force ? { force } : undefined;
    await post(path("pipelines", id, force ? "stop" : name), body);
    say(`${LABELS[name]} of ${id} accepted`);
  } catch (error) {
    complain(error);
  }
}
