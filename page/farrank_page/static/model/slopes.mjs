// The lines between two columns whose rows have the same height.

/**
 * One line for each document in both columns: `{index, from, to, move, path}`; rows count from 0.
 *
 * `before` and `after` are lists of indexes; the drawing is `width` wide, and each row `rowHeight` high, in pixels.
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
