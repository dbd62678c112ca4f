/** Dialog: asks for attention; the browser keeps the focus in it, closes it with Escape and gives the focus back. */
import { useEffect, useRef } from "preact/hooks";
import { html } from "../html.js";

export function Dialog({ title, onClose, wide = false, closable = true, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    element.current.querySelector("[data-first]")?.focus();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    if (closable) onClose();
  };
  const outside = (event) => closable && event.target === element.current && onClose();
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onCancel=${cancel} onClose=${onClose} onClick=${outside}>
    <div class="dialog-body">
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </div>
  </dialog>`;
}
