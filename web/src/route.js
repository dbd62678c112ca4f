/** route: the part of the address after `#` as a page with its parameters. */
import { Store } from "./store.js";

/** {page: "fleet"} | {page: "pipeline", id, tab, node} | {page: "letters", query} | {page: "letter", id, query}. */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const query = Object.fromEntries(new URLSearchParams(search));
  if (parts.length === 0 || path === "pipelines") return { page: "fleet", query };
  if (parts[0] === "pipelines" && parts.length >= 2) return pipelineRoute(parts, query);
  if (parts[0] === "dead-letters" && parts.length === 1) return { page: "letters", query };
  if (parts[0] === "dead-letters" && parts.length === 2) return { page: "letter", id: parts[1], query };
  return { page: "lost" };
}

function pipelineRoute([, id, tab, node], query) {
  if (tab === undefined) return { page: "pipeline", id, tab: "overview", node: null, query };
  if (tab === "nodes" && node) return { page: "pipeline", id, tab: "overview", node, query };
  if (tab === "dead-letters" || tab === "positions") return { page: "pipeline", id, tab, node: null, query };
  return { page: "lost" };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page: parts of a path, and a query whose empty values are left out. */
export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export const route = new Store(parse(""));

/** Follow the address from now on. */
export function followAddress() {
  route.set(parse(location.hash));
  addEventListener("hashchange", () => route.set(parse(location.hash)));
}

export function go(to) {
  location.hash = to;
}

/** Another address for the same page: nothing to go back to. */
export function replace(to) {
  history.replaceState(null, "", to);
  route.set(parse(location.hash));
}
