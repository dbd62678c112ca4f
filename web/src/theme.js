/** theme: light, dark, or as the system has it. */
import { Store } from "./store.js";

const KEY = "conduit-py-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export const theme = new Store(localStorage.getItem(KEY) ?? "system");

/** Have the document wear the theme, now and whenever it changes. */
export function wearTheme() {
  const wear = (value) => {
    if (value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  };
  wear(theme.value);
  theme.watch(wear);
  // What is drawn on a canvas has to be drawn again.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint.set(repaint.value + 1));
  theme.watch(() => repaint.set(repaint.value + 1));
}

/** Counts the changes of the colours. */
export const repaint = new Store(0);

export function turnTheme() {
  const next = NEXT[theme.value] ?? "system";
  localStorage.setItem(KEY, next);
  theme.set(next);
  return next;
}
