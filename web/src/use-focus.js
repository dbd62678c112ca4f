/** useFocus: the focus goes where somebody asked to be, and comes back when that is gone. */
import { useEffect, useRef } from "preact/hooks";

/** A reference to an element that takes the focus when it appears: browsers heed `autofocus` only while a page loads. */
export function useFocus() {
  const element = useRef(null);
  useEffect(() => element.current?.focus(), []);
  return element;
}

/** A reference to an element that takes the focus whenever `open` turns false. */
export function useFocusAfter(open) {
  const element = useRef(null);
  const was = useRef(open);
  useEffect(() => {
    if (was.current && !open) element.current?.focus();
    was.current = open;
  }, [open]);
  return element;
}

/**
 * Properties of a group whose buttons come and go: when the one in focus goes, the first that is left takes over. A
 * browser would give the focus to the document, and the next Tab would begin at the top.
 */
export function useFocusKept(changed) {
  const group = useRef(null);
  const inside = useRef(false);
  useEffect(() => {
    if (inside.current && document.activeElement === document.body) group.current?.querySelector("button:not(:disabled)")?.focus();
  }, [changed]);
  return {
    ref: group,
    onFocusIn: () => void (inside.current = true),
    onFocusOut: ({ relatedTarget }) => void (inside.current = relatedTarget === null && inside.current),
  };
}
