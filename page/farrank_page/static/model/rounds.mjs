// Answers a question call by call, so that results appear as they come: first the beginnings of all documents are read,
// then the whole documents, a few at a time.

import { requestOf, sent } from "./requests.mjs";

// A round reads about this many chunks, which a small cross-encoder on two cores does in about a second.
const CHUNKS_PER_ROUND = 64;
// The user's own documents below this many characters in all are read in one call.
const QUICK_CHARACTERS = 40_000;

/**
 * Whether to read in rounds: the documents are read whole, and their encodings are not stored.
 *
 * Adaptive depth compares all documents of one call, so it cannot be divided.
 */
export function wantsRounds(asked, ranker, index, documents) {
  const isWhole = asked.depth === "all" || (asked.depth === "" && ranker?.depth?.mode !== "DEPTH_MODE_ADAPTIVE");
  if (!isWhole) return false;
  if (asked.source === "own") return documents.reduce((sum, { text }) => sum + text.length, 0) > QUICK_CHARACTERS;
  const members = ranker?.options?.members?.split(", ") ?? [ranker?.name];
  return !members.every((name) => index?.encodingsFor?.includes(name));
}

/**
 * Yield the answer so far after each call: `{raw, waitedMs, pending, next, chunksRead, chunksInAll}`.
 *
 * `call(method, request)` returns `{answer, waitedMs}`. In `raw`, documents are ordered by their scores so far, and
 * `pending` holds the indexes of those of which only the beginning is read, and `next` of those that are read now. The last
 * answer has none.
 */
export async function* answers({ asked, ranker, documents, most, inRounds }, call) {
  const { method, request } = requestOf(asked, ranker, documents, most);
  if (!inRounds) {
    const { answer, waitedMs } = await call(method, request);
    yield { raw: answer, waitedMs, pending: new Set(), next: [], ...counts(answer.results ?? []) };
    return;
  }
  const options = { ...request.options, maxChunks: 1 };
  const look = await call(method, { ...request, options });
  const found = look.answer.results ?? [];
  const results = new Map(found.map((result) => [result.index ?? 0, result]));
  const inAll = counts(found).chunksInAll;
  const pending = new Set(found.filter((result) => Number(result.chunksCut ?? 0) > 0).map((result) => result.index ?? 0));
  let { waitedMs } = look;
  let raw = look.answer;
  let { chunksRead } = counts(found);
  const rounds = groups(found.filter((result) => pending.has(result.index ?? 0)));
  yield { raw, waitedMs, pending: new Set(pending), next: rounds[0] ?? [], chunksRead, chunksInAll: inAll };
  for (const [round, places] of rounds.entries()) {
    const again = places.map((place) =>
      sent(asked.source === "own" ? documents[place] : { id: results.get(place).id, index: look.answer.index }),
    );
    const its = await call("Rerank", { query: asked.query, documents: again, options: request.options });
    for (const result of its.answer.results ?? []) {
      const place = places[result.index ?? 0];
      const { firstStageScore, firstStageScores } = results.get(place);
      results.set(place, { ...result, index: place, firstStageScore, firstStageScores });
      pending.delete(place);
    }
    waitedMs += its.waitedMs;
    const sorted = [...results.values()].sort((one, other) => other.score - one.score || one.index - other.index);
    raw = { ...raw, ranker: its.answer.ranker, results: sorted, usage: added(raw.usage, its.answer.usage), timings: added(raw.timings, its.answer.timings) };
    ({ chunksRead } = counts(sorted));
    yield { raw, waitedMs, pending: new Set(pending), next: rounds[round + 1] ?? [], chunksRead, chunksInAll: Math.max(inAll, chunksRead) };
  }
}

/** The indexes of documents in groups of about as many chunks. */
function groups(results) {
  const made = [];
  let chunks = CHUNKS_PER_ROUND;
  for (const result of results) {
    if (chunks >= CHUNKS_PER_ROUND) {
      made.push([]);
      chunks = 0;
    }
    made.at(-1).push(result.index ?? 0);
    chunks += Number(result.chunksRead ?? 0) + Number(result.chunksCut ?? 0);
  }
  return made;
}

function counts(results) {
  const sum = (of) => results.reduce((total, result) => total + of(result), 0);
  const read = (result) => Number(result.chunksRead ?? 0);
  const seen = (result) => Math.max(read(result), Number(result.chunksScored ?? 0)) + Number(result.chunksCut ?? 0);
  return { chunksRead: sum(read), chunksInAll: sum(seen) };
}

/** The figures of two calls, field by field; rounds of adaptive depth do not add up. */
function added(one = {}, other = {}) {
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  const sum = (name) => (name === "rounds" ? other[name] : Number(one[name] ?? 0) + Number(other[name] ?? 0));
  return Object.fromEntries([...names].map((name) => [name, name === "endedEarly" ? one[name] || other[name] : sum(name)]));
}
