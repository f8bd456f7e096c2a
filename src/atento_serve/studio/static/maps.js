// Attention maps: the tokens of a kind and the weights of a head as the drawings of the attention page take them
// (`page_heat.js` and `page_lines.js`, which are plain scripts: their functions are global).
export const { css, drawHeat, drawLines, fillTokens, headColour, heatGeometry, heatHit, largestOf, rampColours, shadeTokens } = globalThis;
export const MOST_LINKS = 1000;  // lines that are drawn at a time: more would hide one another

// The tokens or words of a side that are shown, each with its place in the map.
export function groupsOf(side, words, hide) {
  return side[words ? "words" : "tokens"].map(([label, start, end, special], place) => ({ label, start, end, special, place }))
    .filter((group) => !hide || !group.special);
}

// What drawings know of a map besides its weights; `least` is a share of the largest weight below which links are hidden.
function shownAs(rows, columns, largest, { least, scale, writes }) {
  const even = 1 / Math.max(1, columns.length);
  // four times even attention is the least that gets the strongest colour: a map of even weights stays pale
  const top = scale === "one" ? 1 : Math.max(largest, Math.min(1, 4 * even)) || 1;
  return { rows, columns, largest, even, top, writes, least: least * (largest || 1) };
}

// The maps of all heads of a layer by the links that the service names: [row, column, weight], strong ones or those of a token.
export function linkViews({ about: { counts, largest }, data }, rows, columns, about) {
  const total = data.byteLength / 12, [from, to] = [0, 1].map((part) => new Uint32Array(data, 4 * part * total, total)), weights = new Float32Array(data, 8 * total);
  const [rowAt, columnAt] = [rows, columns].map((groups) => new Map(groups.map(({ place }, at) => [place, at])));
  let next = 0;
  return counts.map((count, head) => {
    const links = Array.from({ length: count }, () => [rowAt.get(from[next]), columnAt.get(to[next]), weights[next++]]);
    return { ...shownAs(rows, columns, largest[head], about), links };
  });
}

// A map as shown. `weights` is a matrix of the service.
export function viewOf(weights, rows, columns, about) {
  const { scale: unit } = weights, width = columns.length, whole = rows.length * width === weights.values.length;
  const values = whole ? weights.values : new Float32Array(rows.length * width);
  if (!whole) rows.forEach((row, r) => columns.forEach((column, c) => { values[r * width + c] = weights.values[row.place * weights.columns + column.place]; }));
  const at = (r, c) => values[r * width + c] * unit;
  let largest = 0, zeros = false;
  const steps = new Uint32Array(1024);  // how many weights there are of each size
  for (let cell = 0; cell < values.length; cell++) {
    const weight = values[cell] * unit;
    if (weight > largest) largest = weight;
    if (weight === 0) zeros = true;
    steps[Math.min(1023, Math.floor(weight * 1024))] += 1;
  }
  let count = 0, step = 1023;
  while (step > 0 && count + steps[step] <= MOST_LINKS) count += steps[step--];
  return { ...shownAs(rows, columns, largest, about), at, zeros, lines: step > 0 ? (step + 1) / 1024 : 0 };
}

// The `count` largest of [label, weight] pairs, largest first.
export function largest(pairs, count) {
  return pairs.filter((pair) => pair[1] > 0).sort((a, b) => b[1] - a[1]).slice(0, count);
}

export function strongest(view, count) {
  let best = [], least = 0;
  for (let r = 0; r < view.rows.length; r++) {
    for (let c = 0; c < view.columns.length; c++) {
      const weight = view.at(r, c);
      if (weight <= least) continue;
      best = [...best, [r, c, weight]].sort((a, b) => b[2] - a[2]).slice(0, count);
      least = best.length < count ? 0 : best[count - 1][2];
    }
  }
  return best.map(([r, c, weight]) => [`${view.rows[r].label} → ${view.columns[c].label}`, weight]);
}

// A canvas as large as a box in sight shows of a drawing of `width` by `height`, sharp on any screen.
export function sized(canvas, width, height) {
  const sharp = devicePixelRatio || 1;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(sharp, 0, 0, sharp, 0, 0);
  return ctx;
}
