// Calls of the server's methods: Connect's JSON over HTTP.

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

/**
 * Call a method with a request in protobuf's JSON; returns its answer, and how long the caller waited in ms.
 *
 * Raises: CallError; AbortError if `signal` ended the call, after which the server stops working on it.
 */
export async function call(method, request, signal) {
  const began = performance.now();
  let response;
  let body;
  try {
    response = await fetch(`farrank.v1.RerankService/${method}`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "Connect-Timeout-Ms": String(TIMEOUT_MS),
        ...(key && { "X-Api-Key": key }),
      },
      body: JSON.stringify(request),
      signal,
    });
    body = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("unreachable", "Nothing answers at this address, or the connection broke off.");
  }
  const read = parsed(body);
  if (response.ok && read) return { answer: read, waitedMs: performance.now() - began };
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
