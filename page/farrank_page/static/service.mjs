// Calls of the server's methods: Connect's JSON over HTTP.

import { textRequest } from "./model/requests.mjs";

// The first calls on an index encode its documents, which may take long.
const TIMEOUT_MS = 120_000;

/** A failed call: Connect's code, `unreachable` or `unreadable`; `retryAfterMs` is null if the server gives none. */
export class CallError extends Error {
  constructor(code, message, retryAfterMs = null) {
    super(message);
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The API key, kept only in this page's memory. */
let key = "";

/** Send a key with every later call. */
export function showKey(given) {
  key = given;
}

/** Whether calls need a key. */
export function hasKey() {
  return key !== "";
}

/**
 * Call a method with a request in protobuf's JSON; returns its answer, and how long the caller waited in ms.
 *
 * Raises: CallError; AbortError if `signal` ended the call, after which the server stops working on it.
 */
export async function call(method, request, signal) {
  const began = performance.now();
  const answer = await fetched(`farrank.v1.RerankService/${method}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Connect-Timeout-Ms": String(TIMEOUT_MS) },
    body: JSON.stringify(request),
    signal,
  });
  return { answer, waitedMs: performance.now() - began };
}

/** The judged questions: `{sets: [{index, questions: [{id, text, grades}]}]}`. Raises: CallError. */
export async function judgements() {
  return fetched("judgements.json", { headers: {} });
}

// Texts are fetched when a document opens, and kept until the page closes.
const texts = new Map();

/** Fetch the text of a document of an index. Raises: CallError; AbortError. */
export async function fetchText(query, index, id, ranker, signal) {
  const { answer } = await call("Rerank", textRequest(query, index, id, ranker), signal);
  texts.set(JSON.stringify([index, id]), answer.results[0].text ?? "");
}

/** The text of a document that is fetched; null if it is not. */
export function heldText(index, id) {
  return texts.get(JSON.stringify([index, id])) ?? null;
}

async function fetched(path, options) {
  let response;
  let body;
  try {
    const headers = { ...options.headers, ...(key && { "X-Api-Key": key }) };
    response = await fetch(path, { ...options, headers });
    body = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("unreachable", "Nothing answers at this address, or the connection broke off.");
  }
  const read = parsed(body);
  if (response.ok && read) return read;
  if (!response.ok && read?.code) throw new CallError(read.code, read.message ?? "", retryAfterMs(response));
  throw new CallError("unreadable", `HTTP ${response.status}: ${body.slice(0, 300)}`, retryAfterMs(response));
}

function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}

function retryAfterMs(response) {
  const said = response.headers.get("retry-after-ms");
  return said === null ? null : Number(said);
}
