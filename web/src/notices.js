/** notices: short messages that come and go, read out by screen readers. */
import { Store } from "./store.js";

const SHOWN_SECONDS = 6;
let last = 0;

/** [{id, kind: "done"|"failed", text, suggestion}] */
export const notices = new Store([]);

export function say(text, kind = "done", suggestion = null) {
  const id = ++last;
  notices.set([...notices.value, { id, kind, text, suggestion }].slice(-4));
  setTimeout(() => dismiss(id), SHOWN_SECONDS * (kind === "failed" ? 3000 : 1000));
}

/** Say what went wrong. That a token is wanted is not said: it is asked for. */
export function complain(error) {
  if (error.status === 401) return;
  say(error.message, "failed", error.suggestion ?? null);
}

export function dismiss(id) {
  notices.set(notices.value.filter((notice) => notice.id !== id));
}
