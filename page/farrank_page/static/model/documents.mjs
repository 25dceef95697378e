// Reads the user's own documents from pasted text or dropped files.

/** The text holds no valid document; the message says where and why. */
export class NoDocument extends Error {}

/**
 * Read documents, `{id, name, text}` each, from a text.
 *
 * JSON (a list of texts or of objects) and JSON lines (one object a line, `{"id", "title", "text"}`) are recognized;
 * any other text is plain text, in which lines of `---` separate documents. Documents without an id are named
 * after `source`. Raises: NoDocument.
 */
export function readDocuments(given, source) {
  const items = jsonList(given) ?? jsonLines(given);
  if (items) return items.map((item, place) => ofJson(item, place, items.length, source));
  const parts = given.split(/^[ \t]*---[ \t]*$/mu).map((part) => part.replace(/^\s*\n|\s+$/gu, ""));
  const texts = parts.filter((part) => part !== "");
  return texts.map((text, place) => named(numbered(source, place, texts.length), text));
}

function jsonList(given) {
  if (!/^\s*\[/u.test(given)) return null;
  const read = parsed(given);
  return Array.isArray(read) && read.length > 0 && read.every(isItem) ? read : null;
}

function jsonLines(given) {
  if (!/^\s*\{/u.test(given)) return null;
  const lines = given.split("\n").filter((line) => line.trim() !== "");
  const read = lines.map(parsed);
  if (read.every(isObject)) return read;
  const whole = parsed(given);
  return isObject(whole) ? [whole] : null;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isItem(value) {
  return typeof value === "string" || isObject(value);
}

function ofJson(item, place, count, source) {
  const fallback = numbered(source, place, count);
  if (typeof item === "string") return named(fallback, item);
  const text = item.text ?? item.contents ?? item.body;
  if (typeof text !== "string") {
    throw new NoDocument(`${fallback}: has no field "text" that is a text`);
  }
  const id = item.id ?? item.docid ?? item._id;
  const title = typeof item.title === "string" ? item.title : "";
  return { id: String(id ?? fallback), name: title || String(id ?? fallback), text };
}

function named(name, text) {
  return { id: name, name, text };
}

function numbered(source, place, count) {
  return count > 1 ? `${source}, ${place + 1}` : source;
}

/** Append documents; an id that is taken gets a number, since ids are unique in a request. */
export function withDocuments(before, added) {
  const taken = new Set(before.map((document) => document.id));
  const all = [...before];
  for (const document of added) {
    let { id, name } = document;
    for (let number = 2; taken.has(id); number += 1) {
      id = `${document.id} (${number})`;
      name = `${document.name} (${number})`;
    }
    taken.add(id);
    all.push({ ...document, id, name });
  }
  return all;
}
