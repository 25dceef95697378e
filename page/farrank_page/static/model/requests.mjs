// Turns a question into requests of the contract, in protobuf's JSON.

/** The contract's depth of one in an address. */
export function depthOf(depth) {
  const [, mode, budget, most] = /^(\w+)(?:,(\w+)=(.+))?$/.exec(depth);
  return { mode: `DEPTH_MODE_${mode.toUpperCase()}`, ...(budget && { [budget]: Number(most) }) };
}

function optionsOf(asked, ranker) {
  return {
    ...(ranker && { ranker }),
    ...(asked.depth && { depth: depthOf(asked.depth) }),
    ...(asked.scale !== "raw" && { scoreScale: "SCORE_SCALE_SIGMOID" }),
  };
}

/**
 * `{method, request}` of a question to one ranker. `documents` are the user's own, used if the source is `own`; `most` is
 * the number of documents that the answer may have. Sentences come with their texts, and whole texts only when one opens.
 */
export function requestOf(asked, ranker, documents, most) {
  const options = {
    ...optionsOf(asked, ranker),
    returnChunkScores: true,
    evidence: "EVIDENCE_UNIT_SENTENCES",
    ...(most && { evidenceDocuments: most }),
  };
  if (asked.source === "own") {
    return { method: "Rerank", request: { query: asked.query, documents: documents.map(sent), options } };
  }
  return {
    method: "SearchAndRerank",
    request: { query: asked.query, ...(asked.index && { index: asked.index }), ...(asked.k && { k: asked.k }), options },
  };
}

/** A document as Rerank takes it: its text, or its index. */
export function sent({ id, text, index }) {
  return index ? { id, index } : { id, text };
}

/** A Rerank that fetches the text of a document of an index. It reads one chunk only. */
export function textRequest(query, index, id, ranker) {
  const options = { ...(ranker && { ranker }), maxChunks: 1, returnTexts: true };
  return { query, documents: [{ id, index }], options };
}

/** A search for the figures of a judged question: without evidence, and behind calls for which people wait. */
export function judgedRequest(asked, ranker, question) {
  const options = { ...optionsOf({ ...asked, scale: "raw" }, ranker), priority: "PRIORITY_BATCH" };
  return { query: question, index: asked.index, ...(asked.k && { k: asked.k }), options };
}
