// Turns a question into a request of a method, in protobuf's JSON.

/** The contract's depth of one in an address. */
export function depthOf(depth) {
  const [, mode, budget, most] = /^(\w+)(?:,(\w+)=(.+))?$/.exec(depth);
  return { mode: `DEPTH_MODE_${mode.toUpperCase()}`, ...(budget && { [budget]: Number(most) }) };
}

/** `{method, request}` of a question to one ranker. `documents` are the user's own, used if the source is `own`. */
export function requestOf(asked, ranker, documents) {
  const options = {
    returnChunkScores: true,
    ...(ranker && { ranker }),
    ...(asked.depth && { depth: depthOf(asked.depth) }),
    ...(asked.scale === "sigmoid" && { scoreScale: "SCORE_SCALE_SIGMOID" }),
  };
  if (asked.source === "own") {
    return {
      method: "Rerank",
      request: { query: asked.query, documents: documents.map(({ id, text }) => ({ id, text })), options },
    };
  }
  return {
    method: "SearchAndRerank",
    request: {
      query: asked.query,
      ...(asked.index && { index: asked.index }),
      ...(asked.k && { k: asked.k }),
      options: { ...options, returnTexts: true },
    },
  };
}
