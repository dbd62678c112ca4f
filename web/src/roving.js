/** roving: one stop for the Tab key in a list, and arrow keys within. */
import { useCallback, useRef, useState } from "preact/hooks";
import { useKeys } from "./keys.js";

const STEPS = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };

/**
 * For a list of ids: {active, container, onKeyDown, onFocusIn}. The item with the id `active` has tabindex 0, the others
 * -1, and each has `data-roving=id`. Arrow keys that are pressed elsewhere on the page go to the list.
 */
export function useRoving(ids) {
  const [chosen, choose] = useState(null);
  const container = useRef(null);
  const active = ids.includes(chosen) ? chosen : (ids[0] ?? null);
  const focus = useCallback((id) => {
    choose(id);
    container.current?.querySelector(`[data-roving="${CSS.escape(id)}"]`)?.focus();
  }, []);
  const onKeyDown = (event) => {
    if (event.target.matches("input:not([type=checkbox]), select, textarea") || event.altKey || event.ctrlKey || event.metaKey) return;
    // From the row that has the focus: with keys in quick succession `active` is that of an earlier drawing.
    const to = target(event.key, ids, rowOf(event) ?? active);
    if (to === null) return;
    event.preventDefault();
    focus(to);
  };
  // The list itself prevents what it handles, so these are the keys that nothing else wanted.
  const enter = () => active !== null && focus(active);
  useKeys({ ArrowDown: enter, j: enter, ArrowUp: enter, k: enter }, [active]);
  const onFocusIn = (event) => {
    const id = rowOf(event);
    if (id !== undefined && id !== active) choose(id);
  };
  return { active, container, onKeyDown, onFocusIn };
}

function rowOf(event) {
  return event.target.closest("[data-row]")?.dataset.row;
}

function target(key, ids, active) {
  if (key === "Home") return ids[0] ?? null;
  if (key === "End") return ids.at(-1) ?? null;
  if (!(key in STEPS)) return null;
  return ids[ids.indexOf(active) + STEPS[key]] ?? null;
}
