/** keys: single-key shortcuts, which rest while somebody types. */
import { useLayoutEffect } from "preact/hooks";

/** [{keys, does}] of what the help shows. */
export const SHORTCUTS = [
  { area: "Everywhere", keys: ["?"], does: "show these shortcuts" },
  { area: "Everywhere", keys: ["/"], does: "go to the filter" },
  { area: "Everywhere", keys: ["g", "p"], does: "go to the pipelines" },
  { area: "Everywhere", keys: ["g", "d"], does: "go to the dead letters" },
  { area: "Everywhere", keys: ["c"], does: "change between light, dark and system colours" },
  { area: "Everywhere", keys: ["Esc"], does: "close a dialog or panel, clear a filter" },
  { area: "Lists", keys: ["↓", "↑"], does: "next and previous, also j and k; Home and End" },
  { area: "Lists", keys: ["Enter"], does: "open" },
  { area: "Lists", keys: ["Space"], does: "select a dead letter" },
  { area: "A pipeline", keys: ["s"], does: "start or stop, also for the row in focus" },
  { area: "A pipeline", keys: ["r"], does: "restart" },
  { area: "A pipeline", keys: ["←", "→"], does: "move along the graph" },
  { area: "A pipeline", keys: ["t"], does: "tap the node that is open" },
];

const SEQUENCE_MS = 1200;

function typing(target) {
  return target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

/** While the component is there, call what stands under a key or a sequence such as "g p". */
export function useKeys(handlers, inputs = []) {
  // Before the browser paints: what can be seen on a busy machine can be steered at once.
  useLayoutEffect(() => {
    let first = null;
    const press = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const key = first && event.timeStamp - first.at < SEQUENCE_MS ? `${first.key} ${event.key}` : event.key;
      const handler = handlers[key] ?? handlers[event.key];
      first = { key: event.key, at: event.timeStamp };
      if (!handler) return;
      event.preventDefault();
      handler(event);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, inputs);
}
