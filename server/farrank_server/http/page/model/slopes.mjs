// The lines between two columns of rows of one height.

/**
 * For each document in both columns a line: `{index, from, to, move, path}`, rows counted from 0.
 *
 * `before` and `after` are lists of indexes; the drawing is `width` wide and `rowHeight` a row, in pixels.
 */
export function slopes(before, after, rowHeight, width) {
  const rows = new Map(before.map((index, row) => [index, row]));
  return after.flatMap((index, to) => {
    const from = rows.get(index);
    if (from === undefined) return [];
    const [y1, y2] = [(from + 0.5) * rowHeight, (to + 0.5) * rowHeight];
    const path = `M0 ${y1}C${width / 2} ${y1} ${width / 2} ${y2} ${width} ${y2}`;
    return [{ index, from, to, move: from - to, path }];
  });
}
