/** quantile: how long the slow ones took, estimated from the counts of a histogram. */

/** What was counted between two looks at one histogram; all of it when it was begun anew. */
export function counted(before, after) {
  if (!before) return after.counts;
  const grown = after.counts.map((count, i) => count - before.counts[i]);
  return grown.some((count) => count < 0) ? after.counts : grown;
}

/** The sum of counts that have the same bounds. */
export function together(all) {
  return all.reduce((sum, counts) => sum.map((count, i) => count + counts[i]));
}

/** The value below which the share `q` of the counted lies, in the unit of the bounds; null when none was counted. */
export function quantile(q, bounds, counts) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let rank = q * total;
  for (let i = 0; i < counts.length; i++) {
    if (rank <= counts[i] && counts[i] > 0) {
      if (i === bounds.length) return bounds.at(-1);
      const lower = i ? bounds[i - 1] : 0;
      return lower + (bounds[i] - lower) * (rank / counts[i]);
    }
    rank -= counts[i];
  }
  return bounds.at(-1);
}
