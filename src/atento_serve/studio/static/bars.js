// Lists of values as bars, and the words of a text, which several screens share.
import { button, make, number, svg } from "./dom.js";
import { css } from "./maps.js";

// A list of [name, share from 0 to 1, value as text, what a press does, attributes].
export function bars(title, rows) {
  return make("ol", { class: "links", "aria-label": title }, rows.map(([name, share, value, press, about]) => {
    const fill = make("i", {});
    fill.style.setProperty("width", `${100 * Math.max(0, Math.min(1, share))}%`);
    const label = press ? button(name, press, { class: "link name" }) : make("span", { class: "name" }, name);
    return make("li", about ?? {}, label, make("span", { class: "track", "aria-hidden": "true" }, fill), make("span", { class: "value" }, value));
  }));
}

export const percent = (share) => `${number(100 * share, 2)} %`;

// The words of a text: [start, end] in characters as JavaScript counts them.
export function wordSpans(text) {
  return [...text.matchAll(/[\p{L}\p{N}\p{M}'’-]+/gu)].map((match) => [match.index, match.index + match[0].length]);
}

// The masked words of a text, by their numbers: those of the address, else the second.
export const maskedWords = (state, spans) => (state.get("masked") || "1").split(",").map(Number).filter((at) => at in spans);

// Masks a word, or shows it again.
export function toggleMask(state, wanted, at) {
  const masked = wanted.includes(at) ? wanted.filter((one) => one !== at) : [...wanted, at].sort((a, b) => a - b);
  state.set({ masked: masked.join(",") || "none", at: null });
}

// Places in a text by code points, as Python counts, for places as JavaScript counts; and back.
export const points = (text, place) => [...text.slice(0, place)].length;
export const units = (text, place) => [...text].slice(0, place).join("").length;

// Attributes by which a word lights up together with its tokens, which are those of a side from one place to another ...
export const tokensAt = (side, start, end) => ({ "data-token": `${side}-${start}`, "data-end": end });

// ... those of some characters of the text, in Python's places ...
export function tokensOf(trace, from, to) {
  const inside = trace.sides.source.spans.flatMap((span, at) => (span && span[0] < to && from < span[1] ? [at] : []));
  return inside.length ? tokensAt("source", inside[0], inside.at(-1) + 1) : {};
}

// ... or those of each of some words, which are among the words of the sides in their order; `sides` has the side of each.
export function tokensOfWords(trace, words, sides = []) {
  const next = {};
  return words.map((word, at) => {
    const side = sides[at] ?? "source", groups = trace.sides[side]?.words ?? [];
    const found = groups.findIndex(([label], place) => place >= (next[side] ?? 0) && label === word);
    if (found < 0) return {};
    next[side] = found + 1;
    return tokensAt(side, groups[found][1], groups[found][2]);
  });
}

// A text with some of its spans marked: [start, end, label, title, attributes] in Python's places, apart and in their order.
export function markedText(text, spans) {
  const letters = [...text], parts = [];
  let behind = 0;
  for (const [start, end, label, title, about] of spans) {
    parts.push(letters.slice(behind, start).join(""));
    parts.push(make("mark", { title: title ?? null, ...about }, letters.slice(start, end).join(""), label ? make("small", {}, ` ${label}`) : null));
    behind = end;
  }
  return make("p", { class: "marked" }, ...parts, letters.slice(behind).join(""));
}

// A range whose value stands beside it. `state` names a value of the address.
export function slider(studio, name, text, { min, max, step, off }) {
  const shown = make("output", {});
  const input = make("input", { type: "range", id: name, min, max, step, on: { input: () => {
    studio.state.set({ [name]: Number(input.value) === off ? null : input.value }, { replace: true });
  } } });
  const element = make("label", { class: "field" }, text, " ", input, shown);
  const show = () => {
    const value = studio.state.get(name) || String(off);
    if (document.activeElement !== input) input.value = value;
    shown.textContent = value;
  };
  return { element, show, get value() { return Number(studio.state.get(name) || off); } };
}

// What "Save" saves of a screen of bars: rows of [name, value from -1 to 1, value as text].
export function barFigure(name, title, rows, data, tables) {
  const height = 34 + 22 * rows.length, words = { "font-family": "sans-serif", "font-size": 13, fill: css("--ink") };
  const drawing = svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 640 ${height}`, width: 640, height },
    svg("rect", { width: 640, height, fill: css("--surface") }), svg("text", { ...words, x: 10, y: 20, "font-weight": 600 }, title),
    rows.flatMap(([label, value, text], at) => {
      const y = 34 + 22 * at, size = 130 * Math.min(1, Math.abs(value));
      return [svg("text", { ...words, x: 10, y: y + 13 }, label.slice(0, 28)), svg("text", { ...words, x: 520, y: y + 13 }, text),
        svg("rect", { x: value < 0 ? 370 - size : 370, y: y + 3, width: size, height: 12, fill: css(value < 0 ? "--low" : "--high") })];
    }));
  return { name, title, svgText: new XMLSerializer().serializeToString(drawing), data, tables };
}
