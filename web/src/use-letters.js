/** useLetters: the dead letters of a filter, a page at a time, with their causes, renewed while they are looked at. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { search } from "./letters-query.js";
import { complain } from "./notices.js";

const PAGE = 50;
const RENEW_SECONDS = 3;

/** {letters, total, next, causes, error, loading, load, more}. An answer to an older question is left out. */
export function useLetters(filter) {
  const key = search(filter);
  const asked = useRef(0);
  const [state, setState] = useState({ letters: [], total: 0, next: null, causes: [], error: null, loading: true });
  const load = useCallback(async () => {
    const turn = ++asked.current;
    const current = (next) => turn === asked.current && setState(next);
    try {
      const [page, { causes }] = await Promise.all([
        get(`dead-letters${search(filter, { limit: PAGE })}`),
        get(`dead-letters/causes${search({ pipeline: filter.pipeline })}`),
      ]);
      current((before) => ({ ...merged(before, page), causes, error: null, loading: false }));
    } catch (error) {
      current((before) => ({ ...before, letters: [], next: null, error, loading: false }));
    }
  }, [key]);
  useEffect(() => {
    setState((before) => ({ ...before, letters: [], next: null, loading: true }));
    let timer = null;
    // The next time is counted from the answer: a server that takes longer would never be waited for to its end.
    const renew = async () => {
      if (!document.hidden) await load();
      timer = setTimeout(renew, RENEW_SECONDS * 1000);
    };
    renew();
    return () => (clearTimeout(timer), void asked.current++);
  }, [load]);
  const more = async () => {
    try {
      const page = await get(`dead-letters${search(filter, { limit: PAGE, cursor: state.next })}`);
      setState((before) => ({ ...before, letters: [...before.letters, ...page.letters], next: page.next }));
    } catch (error) {
      complain(error);
    }
  };
  return { ...state, load, more };
}

/** The first page anew; the pages that were asked for after it stay, as long as their letters do not come twice. */
function merged(before, page) {
  if (before.letters.length <= PAGE || page.next === null) return page;
  const first = new Set(page.letters.map(({ id }) => id));
  return { ...page, letters: [...page.letters, ...before.letters.slice(PAGE).filter(({ id }) => !first.has(id))], next: before.next };
}
