/** question: what is asked before something is done that others may feel. */
import { route } from "./route.js";
import { Store } from "./store.js";

/** The question that is open, or null. */
export const question = new Store(null);

/** Ask {title, text, confirm, danger, details}; whether the answer was yes. A new question answers the old one with no. */
export function ask(asked) {
  question.value?.answer(false);
  return new Promise((resolve) => {
    const answer = (yes) => {
      if (question.value?.answer === answer) question.set(null);
      resolve(yes);
    };
    question.set({ ...asked, answer });
  });
}

// Asked on one page, answered on another, it would be about something that is no longer in sight.
route.watch(() => question.value?.answer(false));
