/** difference: what a node did to a record, field by field. */
import { isRaw } from "./exact-json.js";

/** Every field of either value with its path: {path, change: "same"|"changed"|"added"|"removed", before, after}. */
export function difference(before, after) {
  const [old, fresh] = [leaves(before), leaves(after)];
  const paths = [...new Set([...old.keys(), ...fresh.keys()])];
  return paths.map((path) => ({ path, change: changeOf(path, old, fresh), before: old.get(path), after: fresh.get(path) }));
}

function changeOf(path, old, fresh) {
  if (!old.has(path)) return "added";
  if (!fresh.has(path)) return "removed";
  return old.get(path) === fresh.get(path) ? "same" : "changed";
}

/** The leaves of a JSON value by path, each as JSON text. Empty objects and lists are leaves. */
export function leaves(value, path = "", found = new Map()) {
  const nested = value !== null && typeof value === "object" && !isRaw(value) && Object.keys(value).length > 0;
  if (!nested) {
    if (value !== undefined) found.set(path, JSON.stringify(value));
    return found;
  }
  for (const [key, each] of Object.entries(value)) {
    const step = Array.isArray(value) ? `[${key}]` : path ? `.${key}` : key;
    leaves(each, path + step, found);
  }
  return found;
}
