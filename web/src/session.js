/** session: the token, for as long as the tab is open and nowhere else. */
import { Store } from "./store.js";

const KEY = "conduit-py-token";

/** {token, asking, refused}: asking while the server wants a token that we do not have. */
export const session = new Store({ token: sessionStorage.getItem(KEY), asking: false, refused: false });

/** What a request carries. */
export function credentials() {
  const { token } = session.value;
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** The server refused what `token` asked for. A late answer to an older token says nothing about this one. */
export function refuse(token) {
  const now = session.value;
  if (token !== now.token || now.asking) return;
  sessionStorage.removeItem(KEY);
  session.set({ token: null, asking: true, refused: token !== null });
}

export function enter(token) {
  sessionStorage.setItem(KEY, token);
  session.set({ token, asking: false, refused: false });
}

export function leave() {
  sessionStorage.removeItem(KEY);
  location.reload();
}
