// Marks the words of a question in a sentence, and shows sentences of laid-out text in one line.

const LETTERS = /[\p{L}\p{N}]/u;
// Shorter words of a question, such as "how do I", are marked only if it has no longer ones.
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
  const long = all.filter((word) => word.length >= LONG || !/^[\x00-\u024f]/.test(word));
  const asked = long.length > 0 ? long : all;
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
  return [...words.segment(text)].filter(({ segment }) => LETTERS.test(segment));
}

function isForm(one, other) {
  if (one === other) return true;
  const [short, long] = one.length < other.length ? [one, other] : [other, one];
  if (long.length - short.length > SUFFIX || short.length < LONG) return false;
  return long.startsWith(short) || (short.length > STEM && long.startsWith(short.slice(0, Math.max(STEM, short.length - 2))));
}
