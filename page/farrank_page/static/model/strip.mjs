// The position of each chunk along a document as a share of its length, and its strength as a step of colour.

/** The number of colours; step 0 is the weakest. */
export const STEPS = 6;

/**
 * The ranges of evidence that colour the documents of an answer: a function from a document to `[low, high]`.
 *
 * Chunk scores and leave-one-out losses are comparable between the documents of one query: all share a range.
 * Attention weights sum to 1 within a document, so many chunks mean small weights: each document has its own range.
 * Attention and losses of 0 or less do not count as evidence, so their ranges begin at 0.
 */
export function ranges(evidence, documents) {
  const of = (chunks) => {
    const scores = chunks.map((chunk) => chunk.score);
    const highest = scores.reduce((one, other) => Math.max(one, other), -Infinity);
    const lowest = scores.reduce((one, other) => Math.min(one, other), Infinity);
    if (scores.length === 0) return [0, 0];
    return evidence === "chunk-score" ? [lowest, highest] : [0, Math.max(0, highest)];
  };
  if (evidence === "attention") return (document) => of(document.chunks);
  const shared = of(documents.flatMap((document) => document.chunks));
  return () => shared;
}

/** The step of a score in a range, 0 to STEPS - 1. If all scores are equal and positive, all are strongest. */
export function stepOf(score, [low, high]) {
  if (high <= low) return score >= high && score > 0 ? STEPS - 1 : 0;
  const share = (score - low) / (high - low);
  return Math.max(0, Math.min(STEPS - 1, Math.floor(share * STEPS)));
}

/**
 * The strip of a document, from `from` to `to` (code points; by default the whole document).
 *
 * `chunks` lie at their true offsets, `left` and `width` as shares of the strip; `over` stacks overlapping chunks,
 * the strongest on top. `scored` are the parts that the ranker did not read although nothing limits it. `tail` is
 * the part beyond a limit, null if there is none.
 */
export function strip(document, range, from = 0, to = document.length) {
  const whole = Math.max(1, to - from);
  const share = (place) => Math.max(0, Math.min(1, (place - from) / whole));
  const byStrength = document.chunks.map((_, place) => place);
  byStrength.sort((one, other) => document.chunks[one].score - document.chunks[other].score || other - one);
  const over = new Array(document.chunks.length);
  byStrength.forEach((chunk, place) => (over[chunk] = place + 1));
  const chunks = document.chunks.map((chunk, place) => ({
    chunk: place,
    left: share(chunk.start),
    width: share(chunk.end) - share(chunk.start),
    step: stepOf(chunk.score, range),
    over: over[place],
    deciding: place === document.deciding,
  }));
  const left = share(document.read);
  const scored = document.scored
    .filter(({ start, end }) => start < to && end > from)
    .map(({ start, end }) => ({ left: share(start), width: share(end) - share(start) }));
  return { chunks, scored, tail: document.charactersCut > 0 && left < 1 ? { left, width: 1 - left } : null };
}

// Below this share of a document, the read part is too narrow to show its chunks in a strip of the whole length.
const NARROW = 0.4;

/** Whether the read part gets an enlarged strip of its own. */
export function deservesEnlarging(document) {
  return document.charactersCut > 0 && document.read < NARROW * document.length;
}
