/** access: what the role of this token allows. The server checks it too; this says so before anybody tries. */
import { get } from "./api.js";
import { connection } from "./live.js";
import { say } from "./notices.js";
import { session } from "./session.js";
import { Store, useStore } from "./store.js";

const RANKS = ["read", "operate", "admin"];
const NEEDED = "operate";

/** The id of the element with the reason, for those who hear the page. */
export const REASON_ID = "role-refusal";

/** The role of this token; null before the server has said it. Then nothing is off: the server decides. */
export const role = new Store(null);

/** Why this role may not change anything, or null when it may. */
export function refusal(of = role.value) {
  if (of === null || RANKS.indexOf(of) >= RANKS.indexOf(NEEDED)) return null;
  return `This needs a token with the role ${NEEDED}; yours has the role ${of}.`;
}

/** Whether this role may send code, such as a condition in SQL. */
export function mayUseCode(of = role.value) {
  return of === null || of === "admin";
}

export function useRefusal() {
  return useStore(role, refusal);
}

/** Whether this role may change anything; if not, says why. */
export function allowed() {
  const why = refusal();
  if (why !== null) say(why, "failed");
  return why === null;
}

/** Ask for the role with every connection: the server may have been started again with other tokens. */
export function followRole() {
  connection.watch(({ phase }) => phase === "live" && ask());
  session.watch(({ token }) => token === null && role.set(null));
}

async function ask() {
  const { token } = session.value;
  try {
    const answer = await get("access");
    // A late answer says nothing about a token that was entered since.
    if (token === session.value.token) role.set(answer.role);
  } catch {
    // Nothing is lost: the last role stays, the next connection asks again, and the server refuses by itself.
  }
}
