// The page's words: numbers, moves, passages, errors, and the meaning of evidence.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 12,345 */
export function whole(value) {
  return WHOLE.format(value);
}

/** A score with enough digits to distinguish scores. */
export function score(value) {
  const digits = Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

/** 0.4 ms, 31 ms, 1.24 s */
export function duration(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10_000 ? 1 : 2)} s`;
  return ms >= 10 || ms === 0 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

/** `1 document`, `20 documents` */
export function counted(count, what) {
  return `${whole(count)} ${what}${count === 1 ? "" : "s"}`;
}

/** How far a document moved: `{kind, sign, text}`; screen readers read the text instead of the sign. */
export function moved(move) {
  if (move === null) return { kind: "new", sign: "new", text: "not in the other order" };
  if (move > 0) return { kind: "up", sign: `▲${move}`, text: `up ${counted(move, "place")}` };
  if (move < 0) return { kind: "down", sign: `▼${-move}`, text: `down ${counted(-move, "place")}` };
  return { kind: "same", sign: "=", text: "same place" };
}

const MEANINGS = {
  "chunk-score": {
    name: "score of the passage",
    text: "Each passage is coloured by the score that the ranker gives to it alone, on one scale for all documents of this answer. The document’s score is made from these.",
  },
  attention: {
    name: "attention",
    text: "Each passage is coloured by the weight with which the ranker attends to it when it scores the document. The weights of one document sum to 1, so colours compare within a document only.",
  },
  "leave-one-out": {
    name: "fall when left out",
    text: "Each passage is coloured by how much the document’s score falls when this passage is left out, on one scale for all documents of this answer. Below 0, the score rises without it.",
  },
  none: { name: "none", text: "No document of this answer has a passage: there was nothing to read." },
};

/** The name and the meaning of an answer's kind of evidence. */
export function meaning(evidence) {
  return MEANINGS[evidence];
}

/** One passage in words, as a label for its coloured area. */
export function passage(document, chunk) {
  const { start, end, score: value } = document.chunks[chunk];
  const role = chunk === document.deciding ? ", the deciding one" : "";
  const of = `passage ${chunk + 1} of ${document.chunks.length}${role}`;
  return `${of}: evidence ${score(value)}, characters ${whole(start)} to ${whole(end)}`;
}

/** `read 4 of 43 chunks`, of a document or of an answer. */
export function readOf({ chunksRead, chunksInAll }) {
  return `read ${whole(chunksRead)} of ${counted(chunksInAll, "chunk")}`;
}

/** `all 812 chunks read`, or `40 of 812 chunks read in 1 round`, of an answer. */
export function readInAll(answer) {
  const ended = answer.endedEarly ? "; time or a failure ended the call before its last round" : "";
  if (answer.chunksRead >= answer.chunksInAll) return `${answer.chunksInAll > 1 ? "all " : ""}${counted(answer.chunksInAll, "chunk")} read${ended}`;
  const rounds = answer.documents.some((each) => each.chunksOnlyScored > 0) ? ` in ${counted(answer.rounds, "round")}` : "";
  return `${whole(answer.chunksRead)} of ${counted(answer.chunksInAll, "chunk")} read${rounds}${ended}`;
}

/** How the chunks of a document were read, in words. */
export function fate(document) {
  const scored = document.chunksOnlyScored > 0 ? `${whole(document.chunksOnlyScored)} only scored` : "";
  return [readOf(document), scored, unread(document)].filter((each) => each !== "").join("; ");
}

/** How much of a document lies beyond a limit; empty if nothing does. The token count is the server's estimate. */
export function unread(document) {
  if (document.charactersCut === 0) return "";
  const share = Math.round((100 * document.charactersCut) / Math.max(1, document.length));
  const tokens = document.tokensCut === 1 ? "token" : "tokens";
  return `about ${whole(document.tokensCut)} ${tokens} not read (${share === 0 ? "under 1" : share}% of the text)`;
}

// The limit of rankers that have none.
const WHOLE_DOCUMENT = 2 ** 24;

/** How much a ranker reads of a document at most. */
export function limit(tokens) {
  return tokens >= WHOLE_DOCUMENT ? "whole documents" : `${whole(tokens)} tokens of a document`;
}

const HEADLINES = {
  invalid_argument: "The server cannot take this request",
  not_found: "The server does not have that",
  unauthenticated: "The server asks for a key",
  permission_denied: "This key may not use that",
  resource_exhausted: "The server has no room right now",
  deadline_exceeded: "There was not enough time",
  unavailable: "The server takes no calls right now",
  internal: "The server has a bug",
  unreachable: "The server cannot be reached",
  unreadable: "The answer cannot be read",
};

/** A headline for an error; the server's message is shown below it. */
export function headline(code) {
  return HEADLINES[code] ?? "The call failed";
}

const TEMPORARY = ["resource_exhausted", "deadline_exceeded", "unavailable", "unreachable", "unreadable", "internal"];

/** Whether the same call may succeed later. */
export function isTemporary(code) {
  return TEMPORARY.includes(code);
}

const CONTROLS = {
  query: "Question",
  index: "Index",
  k: "Candidates",
  documents: "Your documents",
  request: "Your documents",
  "options.ranker": "Ranker",
  "options.depth": "Depth",
  "options.evidence_documents": "Candidates",
};

/** A message of the server with the name of the page's control in place of the contract's field, and without the header of a key. */
export function inThePagesWords(message) {
  const [, field, rest] = /^([a-z_.]+)(?:\[\d+\])?[a-z_.]*: (.*)$/su.exec(message) ?? [];
  const control = CONTROLS[field] ?? CONTROLS[field?.split(".").slice(0, 2).join(".")];
  return control ? `${control}: ${rest}` : message.replace(/; send it as x-api-key.*$/su, "");
}

/** A difference with its sign, and enough digits for measures. */
export function signed(value, digits = 3) {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

/** A measure between 0 and 1. */
export function measure(value) {
  return value.toFixed(3);
}
