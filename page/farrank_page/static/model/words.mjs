// Marks the words of a question in a sentence, and shows sentences of laid-out text in one line.

const LETTERS = /[\p{L}\p{N}]/u;
// Words of a question that do not tell its subject. They are marked only if it has no others.
const FUNCTION_WORDS = new Set(
  `a all also am an and any are as at be been but by can could did do does each every for from had has have he her here his how i if in
  into is it its just may me might more most must my no not of on onto only or our over shall she should so some than that the their
  them then there these they this those to too under very was we were what when where which who whose why will with without would you
  your`.split(/\s+/),
);
// Shorter words have no forms.
const LONG = 4;
// Two words with this common beginning are forms of one word, if one of them is not much longer.
const STEM = 5;
const SUFFIX = 3;

/** A text in one line: white space is folded, and bars and bullets in front of its lines are left out. */
export function oneLine(text) {
  return text.replace(/^[\s|│>*•·-]+/u, "").replace(/\s*\n[\s|│>]*/gu, " ").replace(/\s+/gu, " ").trim();
}

/** The parts `{text, marked}` of a sentence; marked ones are words of the question, or forms of them. */
export function markedParts(sentence, question) {
  const all = wordsOf(question).map(({ segment }) => segment.toLowerCase());
  const telling = all.filter((word) => !FUNCTION_WORDS.has(word));
  const asked = telling.length > 0 ? telling : all;
  const parts = [];
  const add = (text, marked) => {
    const last = parts.at(-1);
    if (last && last.marked === marked) last.text += text;
    else if (text !== "") parts.push({ text, marked });
  };
  let at = 0;
  for (const { segment, index } of wordsOf(sentence)) {
    add(sentence.slice(at, index), false);
    add(segment, asked.some((word) => isForm(word, segment.toLowerCase())));
    at = index + segment.length;
  }
  add(sentence.slice(at), false);
  return parts;
}

const words = new Intl.Segmenter("en", { granularity: "word" });

function wordsOf(text) {
  // A name such as read_file is one word to the segmenter.
  const parts = ({ segment, index }) => [...segment.matchAll(/[^_]+/gu)].map((part) => ({ segment: part[0], index: index + part.index }));
  return [...words.segment(text)].flatMap(parts).filter(({ segment }) => LETTERS.test(segment));
}

function isForm(one, other) {
  if (one === other) return true;
  const [short, long] = one.length < other.length ? [one, other] : [other, one];
  if (long.length - short.length > SUFFIX || short.length < LONG) return false;
  return long.startsWith(short) || (short.length > STEM && long.startsWith(short.slice(0, Math.max(STEM, short.length - 2))));
}
