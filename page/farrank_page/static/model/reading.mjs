// Cuts a document's text into blocks of runs, so that the reader can colour the read part and lay out visible blocks.

import { unitsAt } from "./offsets.mjs";

// Length of a block in UTF-16 units. Blocks out of sight are not laid out.
export const BLOCK_UNITS = 6000;

/**
 * Blocks of a text, each a list of runs `{start, end, chunks, read}` in UTF-16 units, without a gap.
 *
 * A run lies in the same chunks from its start to its end: `chunks` holds their numbers, several where windows
 * overlap. `read` is false from the first character that the ranker did not read.
 */
export function blocks(document, blockUnits = BLOCK_UNITS) {
  const { text } = document;
  const places = [document.read, ...document.chunks.flatMap((chunk) => [chunk.start, chunk.end])];
  const unit = unitsAt(text, places);
  const opens = new Map();
  const closes = new Map();
  const note = (map, at, chunk) => map.set(at, [...(map.get(at) ?? []), chunk]);
  document.chunks.forEach((chunk, number) => {
    note(opens, unit(chunk.start), number);
    note(closes, unit(chunk.end), number);
  });
  const readTo = document.charactersCut > 0 ? unit(document.read) : text.length;
  const ends = blockEnds(text, blockUnits);
  const edges = [...new Set([...opens.keys(), ...closes.keys(), ...ends, readTo, text.length])];
  edges.sort((one, other) => one - other);

  const made = [];
  let runs = [];
  let within = new Set(opens.get(0));
  let start = 0;
  let nextEnd = 0;
  for (const end of edges) {
    if (end > start) runs.push({ start, end, chunks: [...within].sort((a, b) => a - b), read: start < readTo });
    for (const chunk of closes.get(end) ?? []) within.delete(chunk);
    if (end > 0) for (const chunk of opens.get(end) ?? []) within.add(chunk);
    start = end;
    if (end === ends[nextEnd]) {
      nextEnd += 1;
      if (runs.length > 0) made.push(runs);
      runs = [];
    }
  }
  return made;
}

/** The ends of blocks: after a line if possible, otherwise after a word, otherwise between two characters. */
function blockEnds(text, blockUnits) {
  const ends = [];
  let start = 0;
  while (text.length - start > blockUnits) {
    const limit = start + blockUnits;
    let end = text.lastIndexOf("\n", limit - 1) + 1;
    if (end <= start) end = text.lastIndexOf(" ", limit - 1) + 1;
    if (end <= start) end = limit;
    // Do not separate the halves of a surrogate pair.
    if (isLowSurrogate(text.charCodeAt(end))) end += 1;
    ends.push(end);
    start = end;
  }
  ends.push(text.length);
  return ends;
}

function isLowSurrogate(unit) {
  return unit >= 0xdc00 && unit <= 0xdfff;
}

/** The beginning of a chunk in one line, at most `limit` code points long. */
export function excerpt(document, chunk, limit = 240) {
  const passage = document.chunks[chunk];
  if (document.text === null || !passage) return "";
  // White space is folded, so more is taken than is shown.
  const end = Math.min(passage.end, passage.start + 4 * limit);
  const unit = unitsAt(document.text, [passage.start, end]);
  const folded = document.text.slice(unit(passage.start), unit(end)).replace(/\s+/gu, " ").trim();
  const points = Array.from(folded);
  return points.length > limit || end < passage.end ? `${points.slice(0, limit).join("").trimEnd()} …` : folded;
}
