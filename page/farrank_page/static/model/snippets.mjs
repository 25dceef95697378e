// Code for the same call from a shell and from Python.

/** A text in a shell's single quotes. */
function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** `curl` for a method of the contract; `base` is the server's address without a trailing slash. */
export function curl(base, method, request) {
  const body = JSON.stringify(request, null, 2);
  return `curl --silent --show-error --header 'Content-Type: application/json' \\
  --data-binary ${quoted(body)} \\
  ${quoted(`${base}/farrank.v1.RerankService/${method}`)}
`;
}

// Python reads a text literal of JSON as the same text.
const python = (value) => JSON.stringify(value);

/** Code for Farrank's own client, which uses gRPC. */
export function pythonClient(host, asked, ranker, documents) {
  const scale = asked.scale === "sigmoid" ? ", score_scale=ScoreScale.SIGMOID" : "";
  const [mode, budget] = asked.depth.split(",");
  const depth = budget ? `, depth=AdaptiveDepth(${budget})` : mode ? `, depth=${python(mode)}` : "";
  const options = `${ranker ? `, ranker=${python(ranker)}` : ""}${depth}${scale}`;
  const call =
    asked.source === "own"
      ? `documents = {
${documents.map(({ id, text }) => `    ${python(id)}: ${python(text)},`).join("\n")}
}
with Client(address, timeout_s=60) as client:
    ranking = client.rerank(${python(asked.query)}, documents${options}, return_texts=True)
`
      : `with Client(address, timeout_s=60) as client:
    ranking = client.search_and_rerank(
        ${python(asked.query)}${asked.index ? `, index=${python(asked.index)}` : ""}${asked.k ? `, k=${asked.k}` : ""}${options}, return_texts=True
    )
`;
  return `from farrank_client import ${budget ? "AdaptiveDepth, " : ""}Client${scale ? ", ScoreScale" : ""}

address = ${python(`${host}:50051`)}  # its gRPC port: 50051 unless it was told otherwise
${call}for result in ranking.results:
    passage = result.deciding_passage
    print(result.id, result.score, passage.text_in(result.text) if passage else "")
`;
}

/** Code for Cohere's SDK. Its API cannot search: after a search, the snippet sends the candidates as documents. */
export function cohere(base, asked, ranker, documents) {
  const [mode, budget] = asked.depth.split(",");
  const [name, most] = budget?.split("=") ?? [];
  const depth = mode && python({ depth: budget ? { mode, [name]: Number(most) } : mode });
  const more = depth ? `, request_options={"additional_body_parameters": ${depth}}` : "";
  return `import cohere

client = cohere.ClientV2(base_url=${python(base)}, api_key="none")
documents = [
${documents.map(({ text }) => `    ${python(text)},`).join("\n")}
]
answer = client.rerank(model=${python(ranker || "reranker")}, query=${python(asked.query)}, documents=documents${more})
for result in answer.results:
    print(result.index, result.relevance_score)
`;
}

/** Documents with shortened texts, for display only. */
export function shortened(documents, limit = 160) {
  return documents.map((document) => {
    const points = Array.from(document.text.slice(0, 2 * limit + 2));
    const isLong = points.length > limit;
    return isLong ? { ...document, text: `${points.slice(0, limit).join("")}…` } : document;
  });
}
