/** Series: counters over time, and the rates between them. */

export class Series {
  #samples = [];

  /** Keeps samples of at most `seconds`. */
  constructor(seconds) {
    this.seconds = seconds;
  }

  /** Add a sample: an object of numbers with its time `at`. One that is older than the last is left out. */
  push(sample) {
    const last = this.#samples.at(-1);
    if (last && sample.at <= last.at) return;
    this.#samples.push(sample);
    const oldest = sample.at - this.seconds;
    if (this.#samples[0].at < oldest - 30) this.#samples = this.#samples.filter((each) => each.at >= oldest);
  }

  /** Add samples from elsewhere for the times of which there is none yet within `seconds`. */
  fill(samples, seconds) {
    const missing = samples.filter(({ at }) => !this.#samples.some((each) => Math.abs(each.at - at) < seconds));
    this.#samples = [...this.#samples, ...missing].sort((a, b) => a.at - b.at);
  }

  get last() {
    return this.#samples.at(-1) ?? null;
  }

  get length() {
    return this.#samples.length;
  }

  get samples() {
    return this.#samples;
  }

  /** The sample that was the newest `seconds` before the last one, or the first. */
  before(seconds) {
    const last = this.last;
    for (let i = this.#samples.length - 2; i >= 0; i--) {
      if (this.#samples[i].at <= last.at - seconds) return this.#samples[i];
    }
    return this.#samples.length > 1 ? this.#samples[0] : null;
  }

  /** How much a counter grew per second over the last `seconds`; null when that cannot be told. */
  rate(name, seconds = 4) {
    const [last, before] = [this.last, this.before(seconds)];
    return last && before ? between(before, last, name) : null;
  }

  /** Of the last `seconds`, the last sample of every `step` seconds that are over; so that they do not change any more. */
  every(step, seconds) {
    const from = (this.last?.at ?? 0) - seconds;
    return this.#samples.filter((sample, i) => {
      const next = this.#samples[i + 1];
      return sample.at >= from && next && Math.floor(next.at / step) !== Math.floor(sample.at / step);
    });
  }

  /** Rates of a counter over the last `seconds`, one for every `step` of them, as [times, rates]. */
  rates(name, seconds, step) {
    const samples = this.every(step, seconds);
    const ends = samples.slice(1);
    return [ends.map(({ at }) => at), ends.map((sample, i) => between(samples[i], sample, name))];
  }
}

/** A counter that fell was begun anew: its pipeline was started again. */
function between(before, after, name) {
  const grown = after[name] - before[name];
  const seconds = after.at - before.at;
  return grown < 0 || seconds <= 0 || Number.isNaN(grown) ? null : grown / seconds;
}
