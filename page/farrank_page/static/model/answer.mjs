// Turns an answer of Rerank or SearchAndRerank, in protobuf's JSON, into the data that the page shows.

import { codePoints } from "./offsets.mjs";

export const EVIDENCE = {
  EVIDENCE_CHUNK_SCORE: "chunk-score",
  EVIDENCE_ATTENTION: "attention",
  EVIDENCE_LEAVE_ONE_OUT: "leave-one-out",
};

const STAGES = [
  ["firstStageNs", "first stage"],
  ["tokenizationNs", "reading"],
  ["queueNs", "queue"],
  ["inferenceNs", "encoding"],
  ["aggregationNs", "scoring"],
];

/**
 * Read an answer. `brought` holds the documents of a Rerank, `{id, name, text}` each, in the order of the request.
 *
 * Positions are in code points. `rank` and `firstRank` count from 1; `index` identifies a document, since ids may
 * be empty. `length` is exact if the text is known, otherwise the smallest length that the answer implies.
 */
export function readAnswer(answer, brought = null) {
  const documents = (answer.results ?? []).map((result, place) => readResult(result, place, brought));
  const evidence = documents.flatMap((each) => each.chunks).find((chunk) => chunk.evidence)?.evidence ?? "none";
  return {
    documents,
    evidence,
    index: answer.index ?? null,
    ranker: { name: "", version: "", runtime: "", precision: "", ...answer.ranker },
    queryTokensCut: number(answer.queryTokensCut),
    tokens: number(answer.usage?.tokens),
    chunks: number(answer.usage?.chunks),
    cachedChunks: number(answer.usage?.cachedChunks),
    totalMs: number(answer.timings?.totalNs) / 1e6,
    stages: STAGES.map(([key, name]) => ({ name, ms: number(answer.timings?.[key]) / 1e6 })).filter(
      (stage) => stage.name !== "first stage" || brought === null,
    ),
  };
}

function readResult(result, place, brought) {
  const index = number(result.index);
  const own = brought?.[index];
  const text = result.text ?? own?.text ?? null;
  const deciding = result.decidingPassage ? readPassage(result.decidingPassage) : null;
  const listed = (result.chunks ?? []).map(readPassage);
  const chunks = (listed.length > 0 || deciding === null ? listed : [deciding]).filter(
    (chunk) => chunk.end > chunk.start,
  );
  const charactersCut = number(result.charactersCut);
  const lastEnd = chunks.reduce((end, chunk) => Math.max(end, chunk.end), 0);
  const length = text === null ? lastEnd + charactersCut : codePoints(text);
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
    read: length - charactersCut,
    tokensCut: number(result.tokensCut),
    charactersCut,
    chunks,
    deciding: deciding === null ? -1 : decidingChunk(chunks, deciding),
  };
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
