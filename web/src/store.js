/** Store: a value that components watch. */
import { useEffect, useState } from "preact/hooks";

export class Store {
  #watchers = new Set();

  constructor(value) {
    this.value = value;
  }

  set(value) {
    if (value === this.value) return;
    this.value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /** Calls `watcher` with every new value until the returned function is called. */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** The value of a store, or what `select` takes from it; the component is drawn again when that changes. */
export function useStore(store, select = (value) => value) {
  const [, redraw] = useState(0);
  const selected = select(store.value);
  useEffect(() => {
    let last = select(store.value);
    if (last !== selected) redraw((n) => n + 1);
    return store.watch((value) => {
      const next = select(value);
      if (next === last) return;
      last = next;
      redraw((n) => n + 1);
    });
  }, [store]);
  return selected;
}
