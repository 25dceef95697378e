// The question, the view and the open passage in the page's address.

export const NOTHING_ASKED = {
  view: "",
  query: "",
  source: "index",
  index: "",
  k: null,
  a: "",
  b: "",
  scale: "",
  depth: "",
  document: null,
  chunk: null,
};

/** How much to read of each document: as `farrank rerank --depth` takes it. */
const DEPTH = /^(all|adaptive|adaptive,(chunks|tokens|milliseconds)=\d{1,9}(\.\d{1,3})?)$/;

/** Read the part of an address behind its `?`. A count that is not a number in range becomes null. */
export function readAddress(search) {
  const said = new URLSearchParams(search);
  return {
    view: said.get("view") === "judged" ? "judged" : "",
    query: said.get("q") ?? "",
    source: said.get("source") === "own" ? "own" : "index",
    index: said.get("index") ?? "",
    k: whole(said.get("k"), 1),
    a: said.get("a") ?? "",
    b: said.get("b") ?? "",
    scale: said.get("scale") === "raw" ? "raw" : "",
    depth: DEPTH.test(said.get("depth") ?? "") ? said.get("depth") : "",
    document: whole(said.get("doc"), 0),
    chunk: whole(said.get("chunk"), 0),
  };
}

/** Write the part behind the `?`; defaults are left out. */
export function writeAddress(asked) {
  const said = new URLSearchParams();
  const add = (name, value) => value !== "" && value !== null && said.set(name, String(value));
  add("view", asked.view);
  add("q", asked.query);
  add("source", asked.source === "own" ? "own" : "");
  if (asked.source !== "own") {
    add("index", asked.index);
    add("k", asked.k);
  }
  add("a", asked.a);
  add("b", asked.b);
  add("scale", asked.scale);
  add("depth", asked.depth);
  add("doc", asked.document);
  if (asked.document !== null) add("chunk", asked.chunk);
  const written = said.toString();
  return written === "" ? "" : `?${written}`;
}

function whole(said, least) {
  if (said === null || !/^\d{1,9}$/.test(said)) return null;
  const value = Number(said);
  return value >= least ? value : null;
}
