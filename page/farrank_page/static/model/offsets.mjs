// The server counts characters in Unicode code points, JavaScript's strings in UTF-16 units.

const ASTRAL = /[\ud800-\udbff][\udc00-\udfff]/;

/** The number of code points in a text. */
export function codePoints(text) {
  if (!ASTRAL.test(text)) return text.length;
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

/**
 * A function from positions in code points to positions in UTF-16 units, for the given positions only.
 *
 * It takes one pass over the text; a position beyond the text's end becomes the end.
 */
export function unitsAt(text, places) {
  if (!ASTRAL.test(text)) return (place) => Math.min(place, text.length);
  const units = new Map();
  let unit = 0;
  let point = 0;
  for (const place of [...new Set(places)].sort((one, other) => one - other)) {
    while (point < place && unit < text.length) {
      unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
      point += 1;
    }
    units.set(place, unit);
  }
  return (place) => {
    const found = units.get(place);
    if (found === undefined) throw new RangeError(`place ${place} was not among those asked for`);
    return found;
  };
}
