// Drawings of numbers: rows of cells, curves, and a matrix; green above zero, purple below, as strong as the number is large.
import { make, svg } from "./dom.js";
import { css, headColour } from "./maps.js";

const LEFT = 150, CELL = 22, WIDE = 760;

// Rows of numbers as cells on one scale a row. `rows` are [label, values]; rows without values are left out.
export function strips(title, rows, say, room = WIDE, left = LEFT) {
  const shown = rows.filter(([, values]) => values), most = Math.max(1, ...shown.map(([, values]) => values.length));
  const cell = Math.max(3, Math.min(28, (room - left) / most)), high = shown.length * (CELL + 8);
  const wide = Math.ceil(left + cell * most + 4);
  return svg("svg", { class: "chart", width: wide, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title },
    shown.map(([label, values], at) => {
      const top = Math.max(1e-12, ...values.map(Math.abs)), y = at * (CELL + 8);
      return svg("g", {}, svg("text", { x: left - 8, y: y + 16, "text-anchor": "end", class: "name" }, label),
        values.map((value, column) => svg("rect", { x: left + column * cell, y, width: cell - (cell > 5 ? 1 : 0), height: CELL,
          class: value < 0 ? "below" : "above", "fill-opacity": (0.06 + 0.94 * Math.abs(value) / top).toFixed(3) }, svg("title", {}, say(label, column, value)))));
    }));
}

// Round steps over an interval, about four.
function ticks(low, high) {
  const rough = (high - low || 1) / 4, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= rough);
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high + step / 1e6; mark += step) marks.push(Math.abs(mark) < step / 1e6 ? 0 : mark);
  return marks;
}

// Round steps of a logarithmic scale: powers of ten, with 2 and 5 times them where there is room; over less than that, as above.
function logTicks(low, high) {
  const tens = Array.from({ length: Math.ceil(Math.log10(high / low)) + 1 }, (_, at) => at + Math.floor(Math.log10(low)));
  const within = (steps) => tens.flatMap((ten) => steps.map((step) => Number(`${step}e${ten}`))).filter((mark) => mark >= low && mark <= high);
  const [fine, coarse] = [within([1, 2, 5]), within([1])];
  return fine.length > 6 ? coarse : fine.length > 1 ? fine : ticks(low, high);
}

// Curves over whole numbers from `first` on; `series` are [name, values].
export function curves(title, series, { first = 0, across = "" } = {}) {
  return plot(title, series.map(([name, values], at) => ({ name, at, points: values.map((value, place) => [first + place, value]) })), { across, whole: true, least: 0 });
}

// Curves through points. `series` are { name, at (its colour), points: [x, y], dashed, faint }; `least`: what the scale reaches down to.
// The drawing has `value(clientX)`, the x at a place of the window.
export function plot(title, series, { across = "", whole = false, least = Infinity, log = false, range = [-Infinity, Infinity], wide = WIDE } = {}) {
  const high = 300, left = 62, below = 36, put = log ? Math.log10 : (value) => value;
  const shown = series.map((one) => ({ ...one, points: one.points.filter(([x, y]) => x >= range[0] && x <= range[1] && (!log || y > 0)) }));
  const ends = (list, from, to) => list.reduce(([low, top], one) => [Math.min(low, one), Math.max(top, one)], [from, to]);
  let [start, end] = ends(shown.flatMap(({ points }) => points.map(([x]) => x)), Infinity, -Infinity);
  let [low, top] = ends(shown.flatMap(({ points }) => points.map(([, y]) => put(y))), log ? Infinity : least, -Infinity);
  [start, end] = start <= end ? [start, Math.max(end, start + 1e-9)] : [0, 1];
  [low, top] = low < top ? [low, top] : low === top ? [low - 0.5, top + 0.5] : [0, 1];
  const x = (at) => left + ((at - start) / (end - start)) * (wide - left - 10), y = (value) => 10 + (1 - (put(value) - low) / (top - low)) * (high - below - 10);
  const marks = log ? logTicks(10 ** low, 10 ** top) : ticks(low, top), places = ticks(start, end).filter((place) => !whole || Number.isInteger(place));
  const text = (mark) => (mark && Math.abs(mark) < 1e-3 ? mark.toExponential() : String(Number(mark.toPrecision(4))));
  const drawing = svg("svg", { class: "chart wide", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title },
    marks.map((mark) => [svg("line", { x1: left, x2: wide - 10, y1: y(mark), y2: y(mark), class: "grid" }),
      svg("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end", class: "tick" }, text(mark))]).flat(),
    places.map((place) => svg("text", { x: x(place), y: high - below + 16, "text-anchor": "middle", class: "tick" }, text(place))),
    svg("text", { x: (wide + left) / 2, y: high - 2, "text-anchor": "middle", class: "tick" }, across),
    shown.map(({ name, at, points, dashed, faint }) => svg("polyline", { points: points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" "),
      fill: "none", stroke: headColour(at), "stroke-width": faint ? 1 : 1.8, "stroke-opacity": faint ? 0.35 : null, "stroke-dasharray": dashed || at >= 8 ? "5 3" : null }, svg("title", {}, name))),
    shown.filter(({ points }) => points.length === 1).map(({ at, points: [[px, py]] }) => svg("circle", { cx: x(px), cy: y(py), r: 3, fill: headColour(at) })));
  drawing.value = (clientX) => {
    const box = drawing.getBoundingClientRect();
    return start + (((clientX - box.left) / box.width) * wide - left) / (wide - left - 10) * (end - start);
  };
  return drawing;
}

// The names of curves beside their colours.
export function legend(names) {
  return make("ul", { class: "legend" }, names.map((name, at) => {
    const sign = make("i");
    sign.style.setProperty("background", headColour(at));
    return make("li", {}, sign, name);
  }));
}

// A matrix of numbers as a canvas, one pixel a number, which the style sheet stretches.
export function pixels(canvas, { rows, columns, values, scale }) {
  const top = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  const parts = (name) => {
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = css(name);
    probe.fillRect(0, 0, 1, 1);
    return probe.getImageData(0, 0, 1, 1).data;
  };
  const [ground, above, below] = ["--surface", "--high", "--low"].map(parts), image = new ImageData(columns, rows);
  for (let at = 0; at < values.length; at++) {
    const share = Math.abs(values[at]) / top, end = values[at] < 0 ? below : above;
    for (let part = 0; part < 3; part++) image.data[4 * at + part] = ground[part] + (end[part] - ground[part]) * share;
    image.data[4 * at + 3] = 255;
  }
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return top * scale;
}
