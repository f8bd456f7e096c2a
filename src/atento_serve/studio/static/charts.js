// Drawings of numbers: rows of cells, curves, and a matrix; blue above zero, orange below, as strong as the number is large.
import { make, svg } from "./dom.js";
import { css, headColour } from "./maps.js";

const LEFT = 150, CELL = 22, WIDE = 760;

// Rows of numbers as cells on one scale a row. `rows` are [label, values]; rows without values are left out.
export function strips(title, rows, say) {
  const shown = rows.filter(([, values]) => values), most = Math.max(1, ...shown.map(([, values]) => values.length));
  const cell = Math.max(3, Math.min(28, (WIDE - LEFT) / most)), high = shown.length * (CELL + 8);
  const wide = Math.ceil(LEFT + cell * most + 4);
  return svg("svg", { class: "chart", width: wide, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title },
    shown.map(([label, values], at) => {
      const top = Math.max(1e-12, ...values.map(Math.abs)), y = at * (CELL + 8);
      return svg("g", {}, svg("text", { x: LEFT - 8, y: y + 16, "text-anchor": "end", class: "name" }, label),
        values.map((value, column) => svg("rect", { x: LEFT + column * cell, y, width: cell - (cell > 5 ? 1 : 0), height: CELL,
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

// Curves over whole numbers from `first` on; `series` are [name, values].
export function curves(title, series, { first = 0, across = "" } = {}) {
  const wide = WIDE, high = 300, left = 62, below = 36, all = series.flatMap(([, values]) => values);
  const low = Math.min(0, ...all), top = Math.max(...all, low + 1e-9), count = Math.max(2, ...series.map(([, values]) => values.length));
  const x = (at) => left + ((at - first) / (count - 1)) * (wide - left - 10), y = (value) => 10 + (1 - (value - low) / (top - low)) * (high - below - 10);
  const marks = ticks(low, top), places = ticks(first, first + count - 1).filter(Number.isInteger);
  const text = (mark) => String(Number(mark.toPrecision(4)));
  return svg("svg", { class: "chart wide", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title },
    marks.map((mark) => [svg("line", { x1: left, x2: wide - 10, y1: y(mark), y2: y(mark), class: "grid" }),
      svg("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end", class: "tick" }, text(mark))]).flat(),
    places.map((place) => svg("text", { x: x(place), y: high - below + 16, "text-anchor": "middle", class: "tick" }, String(place))),
    svg("text", { x: (wide + left) / 2, y: high - 2, "text-anchor": "middle", class: "tick" }, across),
    series.map(([name, values], at) => svg("polyline", { points: values.map((value, place) => `${x(first + place).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      fill: "none", stroke: headColour(at), "stroke-width": 1.8, "stroke-dasharray": at >= 8 ? "5 3" : null }, svg("title", {}, name))));
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
