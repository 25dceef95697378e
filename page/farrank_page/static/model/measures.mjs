// Measures of judged rankings, as trec_eval defines them, and the significance of a difference.

/** The grade of a document, undefined if it is not judged. Ids may be names that each object has, such as `constructor`. */
export function gradeOf(id, grades) {
  return Object.hasOwn(grades, id) ? grades[id] : undefined;
}

/**
 * nDCG of the first `k`: gains are the grades, discounted by log2(rank + 1). 0 if nothing relevant is judged.
 *
 * `ranked` are ids, best first; `grades` maps ids to grades. Source: Järvelin and Kekäläinen, TOIS 2002; gains as in
 * trec_eval's ndcg_cut.
 */
export function ndcg(ranked, grades, k = 10) {
  const gain = (grade, place) => Math.max(0, grade) / Math.log2(place + 2);
  const sum = (list) => list.slice(0, k).reduce((total, grade, place) => total + gain(grade, place), 0);
  const ideal = sum(Object.values(grades).sort((one, other) => other - one));
  return ideal === 0 ? 0 : sum(ranked.map((id) => gradeOf(id, grades) ?? 0)) / ideal;
}

/** The reciprocal rank of the first document with a grade of at least 1 among the first `k`; 0 if there is none. */
export function reciprocalRank(ranked, grades, k = 10) {
  const place = ranked.slice(0, k).findIndex((id) => (gradeOf(id, grades) ?? 0) >= 1);
  return place < 0 ? 0 : 1 / (place + 1);
}

/** The share of the first `k` that is judged. */
export function judgedShare(ranked, grades, k = 10) {
  const first = ranked.slice(0, k);
  return first.length === 0 ? 0 : first.filter((id) => Object.hasOwn(grades, id)).length / first.length;
}

export function mean(values) {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}

export function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return 0;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const TRIALS = 10_000;

/**
 * The probability of a mean difference at least this large if signs were random: Fisher's randomization test of paired
 * values, two-sided, with 10,000 trials from a fixed seed.
 *
 * Source: Smucker, Allan and Carterette, CIKM 2007.
 */
export function randomizationP(differences) {
  const observed = Math.abs(differences.reduce((sum, value) => sum + value, 0));
  if (differences.every((value) => value === 0)) return 1;
  const random = mulberry(1);
  let atLeast = 0;
  for (let trial = 0; trial < TRIALS; trial += 1) {
    let sum = 0;
    for (const value of differences) sum += random() < 0.5 ? value : -value;
    if (Math.abs(sum) >= observed - 1e-12) atLeast += 1;
  }
  return (atLeast + 1) / (TRIALS + 1);
}

/** Random numbers of [0, 1) from a seed: the generator mulberry32. */
function mulberry(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
