// Compares two orders of the same documents: how far each document moved, and how alike the orders are.

/**
 * How far each document of `after` moved since `before`, as a map from its index: up is positive, new is null.
 *
 * Both are lists of document indexes, best first.
 */
export function moves(before, after) {
  const places = new Map(before.map((index, place) => [index, place]));
  return new Map(after.map((index, place) => [index, places.has(index) ? places.get(index) - place : null]));
}

/**
 * Kendall's tau-b of two lists of paired numbers: 1 for the same order, -1 for the reverse. NaN if all numbers
 * of a list are equal.
 *
 * Source: Kendall, The treatment of ties in ranking problems, Biometrika 1945.
 */
export function kendallTau(ones, others) {
  let agree = 0;
  let tiedOnes = 0;
  let tiedOthers = 0;
  let pairs = 0;
  for (let i = 0; i < ones.length; i += 1) {
    for (let j = i + 1; j < ones.length; j += 1) {
      const one = Math.sign(ones[i] - ones[j]);
      const other = Math.sign(others[i] - others[j]);
      agree += one * other;
      tiedOnes += one === 0;
      tiedOthers += other === 0;
      pairs += 1;
    }
  }
  return agree / Math.sqrt((pairs - tiedOnes) * (pairs - tiedOthers));
}

/** How many of the first `k` of one order are among the first `k` of the other, and how many could be. */
export function overlap(before, after, k = 10) {
  const first = new Set(before.slice(0, k));
  const shared = after.slice(0, k).filter((index) => first.has(index)).length;
  return { shared, of: Math.min(k, Math.max(before.length, after.length)) };
}

/** Tau-b over the documents in both answers, and the overlap of their orders. */
export function compare(one, other) {
  const scores = new Map(one.documents.map((document) => [document.index, document.score]));
  const both = other.documents.filter((document) => scores.has(document.index));
  return {
    tau: kendallTau(
      both.map((document) => scores.get(document.index)),
      both.map((document) => document.score),
    ),
    overlap: overlap(indexes(one), indexes(other)),
  };
}

/** Tau-b and overlap of the first stage's order and an answer's. */
export function compareWithFirstStage(answer) {
  const first = indexes(answer).sort((one, other) => one - other);
  return {
    // The first stage's order is that of the indexes, which has no ties.
    tau: kendallTau(
      answer.documents.map((document) => -document.index),
      answer.documents.map((document) => document.score),
    ),
    overlap: overlap(first, indexes(answer)),
  };
}

function indexes(answer) {
  return answer.documents.map((document) => document.index);
}
