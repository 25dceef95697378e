// Turns a question into a request of a method, in protobuf's JSON.

/** `{method, request}` of a question to one ranker. `documents` are the user's own, used if the source is `own`. */
export function requestOf(asked, ranker, documents) {
  const options = {
    returnChunkScores: true,
    ...(ranker && { ranker }),
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
