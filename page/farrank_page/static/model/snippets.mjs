// Code for the same call from a shell, Python and JavaScript. Each snippet runs as it is.

/** A text in a shell's single quotes. */
function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

// The snippets read a key from the environment, so that it is in no text that one passes on.
const KEY = "FARRANK_API_KEY";

/** `curl` for a method of the contract; `base` is the server's address without a trailing slash. */
export function curl(base, method, request, hasKey) {
  const body = JSON.stringify(request, null, 2);
  const key = hasKey ? `\n  --header "X-Api-Key: $${KEY}" \\` : "";
  return `curl --silent --show-error --header 'Content-Type: application/json' \\${key}
  --data-binary ${quoted(body)} \\
  ${quoted(`${base}/farrank.v1.RerankService/${method}`)}
`;
}

/** Python with its standard library alone. JSON never has three quotes in a row, so a raw text holds it as it is. */
export function python(base, method, request, hasKey) {
  const key = hasKey ? `, "X-Api-Key": os.environ["${KEY}"]` : "";
  return `import json
${hasKey ? "import os\n" : ""}import urllib.request

request = json.loads(r"""
${JSON.stringify(request, null, 2)}
""")
call = urllib.request.Request(
    "${base}/farrank.v1.RerankService/${method}",
    data=json.dumps(request).encode(),
    headers={"Content-Type": "application/json"${key}},
)
with urllib.request.urlopen(call, timeout=60) as response:
    answer = json.load(response)
for result in answer["results"]:
    sentences = [sentence["text"] for sentence in result["sentences"]]
    print(result["id"], result["score"], *sentences[:1])
`;
}

/** JavaScript for Node.js 18 or later, Deno, Bun and browsers. */
export function javascript(base, method, request, hasKey) {
  const key = hasKey ? `, "X-Api-Key": process.env.${KEY}` : "";
  return `const response = await fetch("${base}/farrank.v1.RerankService/${method}", {
  method: "POST",
  headers: { "Content-Type": "application/json"${key} },
  body: JSON.stringify(${JSON.stringify(request, null, 2).replaceAll("\n", "\n  ")}),
});
const answer = await response.json();
if (!response.ok) throw new Error(answer.message);
for (const { id, score, sentences } of answer.results) console.log(id, score, sentences[0]?.text ?? "");
`;
}

/** Code for Cohere's SDK, which takes documents and cannot search. */
export function cohere(base, asked, ranker, documents, hasKey) {
  const [mode, budget] = asked.depth.split(",");
  const [name, most] = budget?.split("=") ?? [];
  const depth = mode && { depth: budget ? { mode, [name]: Number(most) } : mode };
  const more = JSON.stringify({ relevant_spans: { mode: "enabled", max_spans: 1 }, ...depth });
  return `import cohere
${hasKey ? "import os\n" : ""}
client = cohere.ClientV2(base_url=${literal(base)}, api_key=${hasKey ? `os.environ["${KEY}"]` : '"none"'})
documents = [
${documents.map(({ text }) => `    ${literal(text)},`).join("\n")}
]
answer = client.rerank(
    model=${literal(ranker || "reranker")},
    query=${literal(asked.query)},
    documents=documents,
    request_options={"additional_body_parameters": ${more}},
)
for result in answer.results:
    best = (result.relevant_spans or [{"start": 0, "end": 0}])[0]
    print(result.index, result.relevance_score, documents[result.index][best["start"] : best["end"]])
`;
}

/** A text literal of Python. It reads one of JSON as the same text, but for pairs of surrogates. */
function literal(value) {
  return JSON.stringify(value);
}

/** Documents with shortened texts, for display only. */
export function shortened(documents, limit = 160) {
  return documents.map((document) => {
    if (document.text === undefined) return document;
    const points = Array.from(document.text.slice(0, 2 * limit + 2));
    const isLong = points.length > limit;
    return isLong ? { ...document, text: `${points.slice(0, limit).join("")}…` } : document;
  });
}
