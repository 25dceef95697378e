// Turns an answer of Rerank or SearchAndRerank, in protobuf's JSON, into the data that the page shows.

import { codePoints } from "./offsets.mjs";
import { oneLine } from "./words.mjs";

export const EVIDENCE = {
  EVIDENCE_CHUNK_SCORE: "chunk-score",
  EVIDENCE_ATTENTION: "attention",
  EVIDENCE_LEAVE_ONE_OUT: "leave-one-out",
};

const STAGES = [
  ["firstStageNs", "first stage"],
  ["tokenizationNs", "splitting into chunks"],
  ["selectionNs", "choosing chunks"],
  ["queueNs", "longest wait of a chunk"],
  ["inferenceNs", "encoding"],
  ["aggregationNs", "scoring"],
  ["evidenceNs", "choosing sentences"],
];
const SOMETIMES = ["choosing chunks", "choosing sentences"];

/**
 * Read an answer. `brought` holds the documents of a Rerank, `{id, name, text}` each, in the order of the request.
 * `pending` holds the indexes of documents of which only the beginning is read so far.
 *
 * Positions are in code points. `rank` and `firstRank` count from 1; `index` identifies a document, since ids may
 * be empty. `text` is null until it is fetched. `length` is exact if the server says it or the text is known, otherwise
 * the smallest length that the answer implies. Of each document, `chunks` were read by the ranker; `scored` are the parts
 * that adaptive depth scored and that the ranker did not read; nothing has read what lies behind `read`. `sentences` are
 * `{start, end, text}`; the first one leads to `leadChunk`, the
 * chunk in which it lies.
 */
export function readAnswer(answer, { brought = null, pending = null } = {}) {
  const documents = (answer.results ?? []).map((result, place) => ({
    ...readResult(result, place, brought?.[number(result.index)]),
    pending: pending?.has(number(result.index)) ?? false,
  }));
  const evidence = documents.flatMap((each) => each.chunks).find((chunk) => chunk.evidence)?.evidence ?? "none";
  return {
    documents,
    evidence,
    index: answer.index ?? null,
    ranker: { name: "", version: "", runtime: "", precision: "", ...answer.ranker },
    queryTokensCut: number(answer.queryTokensCut),
    tokens: number(answer.usage?.tokens),
    chunksRead: documents.reduce((sum, each) => sum + each.chunksRead, 0),
    chunksInAll: documents.reduce((sum, each) => sum + each.chunksInAll, 0),
    rounds: number(answer.usage?.rounds),
    endedEarly: answer.usage?.endedEarly === true,
    cachedChunks: number(answer.usage?.cachedChunks),
    totalMs: number(answer.timings?.totalNs) / 1e6,
    stages: STAGES.map(([key, name]) => ({ name, ms: number(answer.timings?.[key]) / 1e6 })).filter(
      ({ name, ms }) => (name !== "first stage" || brought === null) && (!SOMETIMES.includes(name) || ms > 0),
    ),
  };
}

function readResult(result, place, own) {
  const index = number(result.index);
  const text = own?.text ?? null;
  const deciding = result.decidingPassage ? readPassage(result.decidingPassage) : null;
  const listed = (result.chunks ?? []).map(readPassage);
  const chunks = (listed.length > 0 || deciding === null ? listed : [deciding]).filter(
    (chunk) => chunk.end > chunk.start,
  );
  const charactersCut = number(result.charactersCut);
  const lastEnd = chunks.reduce((end, chunk) => Math.max(end, chunk.end), 0);
  const length = text === null ? number(result.characters) || lastEnd + charactersCut : codePoints(text);
  const read = length - charactersCut;
  const [chunksRead, chunksScored] = [number(result.chunksRead), number(result.chunksScored)];
  return {
    index,
    id: result.id ?? "",
    name: own?.name || result.id || `document ${index + 1}`,
    rank: place + 1,
    firstRank: index + 1,
    score: number(result.score),
    firstStageScore: result.firstStageScore === undefined ? null : number(result.firstStageScore),
    text,
    length,
    read,
    round: number(result.round),
    chunksRead,
    chunksOnlyScored: Math.max(0, chunksScored - chunksRead),
    chunksInAll: Math.max(chunksRead, chunksScored) + number(result.chunksCut),
    scored: chunksScored > chunksRead ? gaps(chunks, read) : [],
    tokensCut: number(result.tokensCut),
    charactersCut,
    chunks,
    deciding: deciding === null ? -1 : decidingChunk(chunks, deciding),
    ...lead(chunks, deciding, (result.sentences ?? []).map(readSentence)),
  };
}

/** The sentences, the leading one first: the best one of the chunk that decided, if it has one; and its chunk. */
function lead(chunks, deciding, sentences) {
  const lies = (chunk) => (sentence) => sentence.start < chunk.end && sentence.end > chunk.start;
  const first = (deciding && sentences.find(lies(deciding))) ?? sentences[0];
  if (!first) return { sentences, leadChunk: deciding === null ? -1 : decidingChunk(chunks, deciding) };
  const own = deciding && lies(deciding)(first) ? decidingChunk(chunks, deciding) : chunks.findIndex((chunk) => lies(chunk)(first));
  return { sentences: [first, ...sentences.filter((each) => each !== first)], leadChunk: own };
}

// White space between two chunks is no part of its own.
const MIN_GAP = 3;

/** The parts `{start, end}` between chunks, up to a place. */
function gaps(chunks, to) {
  const found = [];
  let from = 0;
  for (const { start, end } of [...chunks, { start: to, end: to }].sort((one, other) => one.start - other.start)) {
    if (start - from >= MIN_GAP) found.push({ start: from, end: start });
    from = Math.max(from, end);
  }
  return found;
}

function readSentence(sentence) {
  return { start: number(sentence.start), end: number(sentence.end), text: oneLine(sentence.text ?? "") };
}

function readPassage(passage) {
  return {
    start: number(passage.start),
    end: number(passage.end),
    score: number(passage.score),
    evidence: EVIDENCE[passage.evidence] ?? null,
  };
}

function decidingChunk(chunks, deciding) {
  return chunks.findIndex((chunk) => chunk.start === deciding.start && chunk.end === deciding.end);
}

// 64-bit integers and values such as NaN come as strings; a field that is 0 may be absent.
function number(value) {
  const read = Number(value ?? 0);
  return Number.isFinite(read) ? read : 0;
}
