/** api: requests to the server, and its refusals as errors with a code and a suggestion. */
import { credentials, refuse, session } from "./session.js";

const ROOT = "api/v1/";

export class ApiError extends Error {
  constructor(status, { code = "network", message, suggestion = null, path = null }) {
    super(message);
    this.status = status;
    this.code = code;
    this.suggestion = suggestion;
    this.path = path;
  }
}

/** `parse` makes the answer of its text. */
export const get = (path, parse) => call("GET", path, undefined, parse);
export const post = (path, body) => call("POST", path, body);
export const put = (path, body, parse) => call("PUT", path, body, parse);
export const remove = (path) => call("DELETE", path);

/** The path of something whose parts may hold any character. */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

async function call(method, path, body, parse = JSON.parse) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await open(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  return answer.status === 204 ? null : parse(await answer.text());
}

/** The answer to a request, once it is one that we like. Raises ApiError. */
export async function open(path, { headers = {}, ...options } = {}) {
  const { token } = session.value;
  const answer = await reach(ROOT + path, { ...options, headers: { ...headers, ...credentials() } });
  if (answer.ok) return answer;
  if (answer.status === 401) refuse(token);
  throw new ApiError(answer.status, await errorOf(answer));
}

async function reach(address, options) {
  try {
    return await fetch(address, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "the server cannot be reached", suggestion: "check that it runs" });
  }
}

async function errorOf(answer) {
  try {
    return (await answer.json()).error ?? {};
  } catch {
    return { code: "internal", message: `the server answered ${answer.status}` };
  }
}
