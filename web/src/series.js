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

  /** Rates of a counter as [times, rates], at most `points` of them, over the last `seconds`. */
  rates(name, seconds, points) {
    const from = (this.last?.at ?? 0) - seconds;
    const samples = this.#samples.filter((each) => each.at >= from);
    const step = Math.max(1, Math.ceil(samples.length / points));
    const [times, rates] = [[], []];
    // Counted back from the end: the newest sample is always there, and the points do not jump about.
    for (let i = samples.length - 1; i - step >= 0; i -= step) {
      times.unshift(samples[i].at);
      rates.unshift(between(samples[i - step], samples[i], name));
    }
    return [times, rates];
  }
}

/** A counter that fell was begun anew: its pipeline was started again. */
function between(before, after, name) {
  const grown = after[name] - before[name];
  const seconds = after.at - before.at;
  return grown < 0 || seconds <= 0 || Number.isNaN(grown) ? null : grown / seconds;
}
