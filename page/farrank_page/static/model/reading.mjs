// Cuts a document's text into blocks of runs, so that the reader can colour the read part and lay out visible blocks.

import { unitsAt } from "./offsets.mjs";

// Length of a block in UTF-16 units. Blocks out of sight are not laid out.
export const BLOCK_UNITS = 6000;

// The end of a line and the blank lines behind it.
const BLANK = /\n(?:[^\S\n]*\n)+/gu;
// A line of code, a table or a listing: it is indented, or has a bar or a prompt in front.
const CODE = /^(?: {2,}|\t|[ ]?\||>>> |\.\.\. )/u;

/**
 * Blocks of a text, `{code, runs}` each; runs are `{start, end, chunks, read, sentence, blank}` in UTF-16 units, without
 * a gap.
 *
 * A block's text is code if most of its lines look like it. A run lies in the same chunks from its start to its end:
 * `chunks` holds their numbers, several where windows overlap. `sentence` is the place of the sentence that it lies in,
 * or -1. `blank` runs are white space alone. `read` is false from the first character that the ranker did not read.
 */
export function blocks(document, blockUnits = BLOCK_UNITS) {
  const { text } = document;
  const spans = [...document.chunks, ...document.sentences];
  const unit = unitsAt(text, [document.read, ...spans.flatMap(({ start, end }) => [start, end])]);
  const inUnits = ({ start, end }) => [unit(start), unit(end)];
  const [chunks, sentences] = [document.chunks.map(inUnits), document.sentences.map(inUnits)];
  const blanks = [...text.matchAll(BLANK)].map((match) => [match.index + 1, match.index + match[0].length]);
  const readTo = document.charactersCut > 0 ? unit(document.read) : text.length;
  const parts = partsOf(text, blanks, blockUnits);
  const edges = new Set([readTo, text.length, ...parts.map(({ end }) => end), ...[...chunks, ...sentences, ...blanks].flat()]);

  const within = [chunks, sentences].map(follow);
  const made = [];
  let [runs, start, part] = [[], 0, 0];
  for (const end of [...edges].sort((one, other) => one - other)) {
    if (end > start) {
      const [own, [sentence = -1]] = within.map((at) => at(start));
      runs.push({ start, end, chunks: own, read: start < readTo, sentence, blank: text.slice(start, end).trim() === "" });
    }
    start = end;
    if (end === parts[part]?.end) {
      if (runs.length > 0) made.push({ code: parts[part].code, runs });
      runs = [];
      part += 1;
    }
  }
  return made;
}

/** A function from a position to the numbers of the spans around it. Positions must not decrease from call to call. */
function follow(spans) {
  const order = spans.map((_, number) => number).sort((one, other) => spans[one][0] - spans[other][0]);
  let open = [];
  let next = 0;
  return (position) => {
    while (next < order.length && spans[order[next]][0] <= position) open.push(order[next++]);
    open = open.filter((number) => spans[number][1] > position);
    return [...open].sort((one, other) => one - other);
  };
}

/** The parts `{end, code}` of a text: paragraphs of one kind together, as long as a block at most. */
function partsOf(text, blanks, blockUnits) {
  const parts = [];
  let from = 0;
  for (const end of [...blanks.map(([, last]) => last), text.length]) {
    if (end <= from) continue;
    const code = isCode(text.slice(from, Math.min(end, from + blockUnits)));
    const last = parts.at(-1);
    if (last?.code === code && end - last.start <= blockUnits) last.end = end;
    else for (const [start, stop] of pieces(text, from, end, blockUnits)) parts.push({ start, end: stop, code });
    from = end;
  }
  return parts;
}

function isCode(paragraph) {
  const lines = paragraph.split("\n").filter((line) => line.trim() !== "");
  return lines.length > 0 && 2 * lines.filter((line) => CODE.test(line)).length > lines.length;
}

/** Pieces of a part: each ends after a line if possible, otherwise after a word, otherwise between two characters. */
function* pieces(text, from, to, blockUnits) {
  let start = from;
  while (to - start > blockUnits) {
    const limit = start + blockUnits;
    let end = text.lastIndexOf("\n", limit - 1) + 1;
    if (end <= start) end = text.lastIndexOf(" ", limit - 1) + 1;
    if (end <= start) end = limit;
    // Do not separate the halves of a surrogate pair.
    if (isLowSurrogate(text.charCodeAt(end))) end += 1;
    yield [start, end];
    start = end;
  }
  yield [start, to];
}

function isLowSurrogate(unit) {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
