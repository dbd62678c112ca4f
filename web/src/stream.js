/** stream: server-sent events with a token, which EventSource cannot send, and again when they break off. */
import { open } from "./api.js";
import { EventReader } from "./event-reader.js";
import { session } from "./session.js";

const FIRST_SECONDS = 0.5;
const LONGEST_SECONDS = 15;

/**
 * Calls `onEvent(name, data)` for every event and `onState(state)` for every change of the connection, until the
 * returned stream is closed. A state is {phase: "connecting"|"live"|"waiting"|"refused", error, retryAt}.
 * `silentSeconds` is how long nothing may come before the connection counts as dead. `parse` makes the data of text.
 */
export function follow(path, { onEvent, onState, silentSeconds = Infinity, parse = JSON.parse }) {
  return new Stream(path, onEvent, onState, silentSeconds, parse);
}

class Stream {
  #closed = false;
  #abort = new AbortController();
  #wake = () => {};
  #attempt = 0;

  constructor(path, onEvent, onState, silentSeconds, parse) {
    this.path = path;
    this.onEvent = onEvent;
    this.onState = onState;
    this.silentSeconds = silentSeconds;
    this.parse = parse;
    this.#run();
  }

  close() {
    this.#closed = true;
    this.#abort.abort();
    this.#wake();
  }

  /** Try at once instead of at the time that was set. */
  retry() {
    this.#attempt = 0;
    this.#wake();
  }

  async #run() {
    while (!this.#closed) {
      this.#say({ phase: "connecting" });
      const error = await this.#read();
      if (this.#closed) return;
      if (error?.status === 401) await this.#signedIn();
      else if (error && final(error)) return this.#say({ phase: "refused", error });
      else await this.#pause(error);
    }
  }

  /** Read until the stream ends; what ended it, or null when the server did. */
  async #read() {
    this.#abort = new AbortController();
    try {
      const answer = await open(this.path, { headers: { accept: "text/event-stream" }, signal: this.#abort.signal });
      this.#attempt = 0;
      this.#say({ phase: "live" });
      await this.#readEvents(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      return null;
    } catch (error) {
      return error;
    }
  }

  async #readEvents(reader) {
    const events = new EventReader();
    for (;;) {
      const { done, value } = await this.#inTime(reader.read());
      if (done) return;
      for (const [name, data] of events.read(value)) {
        if (this.#closed) return;
        this.onEvent(name, this.parse(data));
      }
    }
  }

  async #inTime(reading) {
    if (this.silentSeconds === Infinity) return reading;
    const timer = setTimeout(() => this.#abort.abort(), this.silentSeconds * 1000);
    try {
      return await reading;
    } finally {
      clearTimeout(timer);
    }
  }

  async #pause(error) {
    const seconds = Math.min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** this.#attempt++) * (0.75 + Math.random() / 2);
    this.#say({ phase: "waiting", error, retryAt: Date.now() + seconds * 1000 });
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      this.#wake = () => (clearTimeout(timer), resolve());
    });
  }

  #signedIn() {
    return new Promise((resolve) => {
      const stop = session.watch(({ asking }) => asking || done());
      const done = (this.#wake = () => (stop(), resolve()));
      if (!session.value.asking) done();
    });
  }

  #say(state) {
    if (!this.#closed) this.onState({ error: null, retryAt: null, ...state });
  }
}

/** Whether asking again cannot help: what is wanted is not there, or not for us. */
function final(error) {
  return [400, 403, 404, 422].includes(error.status);
}
