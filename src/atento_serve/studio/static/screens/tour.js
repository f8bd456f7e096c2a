// Guided tour: ten short chapters on the small models of the package, each with a figure of its own numbers.
import { bytes, call, matrix } from "../api.js";
import { barFigure, bars, percent } from "../bars.js";
import { pixels } from "../charts.js";
import { button, folded, make, menu, number, table } from "../dom.js";
import { t } from "../i18n.js";
import { sourceOf } from "../source.js";

const EN = "The cat sees the old house.", PT = "O gato vê a casa velha.";
const CHAPTERS = [
  { name: "tokens", model: "lm", text: PT, open: { screen: "tokens" }, source: ["Tokenizer.encode"], figure: async (input) => {
    const { sides } = await call("trace", input);
    return sides.source.tokens.map(([label], at) => [label, 0, String(sides.source.ids[at])]);
  } },
  { name: "positions", model: "en-pt", text: EN, open: { screen: "positions", scheme: "sinusoidal" }, source: ["InputLayer.forward", "sinusoids"],
    figure: ({ model }) => matrix("positions", { model, scheme: "sinusoidal", length: 32, width: 32 }) },
  { name: "head", model: "lm", text: PT, open: { screen: "inside", layer: 0, head: 1, pin: "source-5" }, source: ["equation.weigh", "equation.normalise"], figure: async (input) => {
    const [{ sides }, { row }] = await Promise.all([call("trace", input), call("inside", { ...input, kind: "decoder", layer: 0, head: 1, query: 5 })]);
    return row.weight.slice(0, 6).map((weight, at) => [sides.source.tokens[at][0], weight, t("tour.score", { score: number(row.score[at], 2), weight: number(weight) })]);
  } },
  { name: "masks", model: "lm", text: PT, open: { screen: "masks", mask: "causal()" }, source: ["masks.causal", "LoweredMask.allowed"], figure: () => matrix("mask", { code: "causal()", queries: 12 }) },
  { name: "heads", model: "lm", text: PT, open: { screen: "heads", view: "overview" }, source: ["MultiHeadAttention.forward", "describe_head"], figure: async (input) => {
    const { about } = await bytes("overview", { ...input, kind: "decoder" }), places = about.heads.flatMap((count, layer) => [...Array(count).keys()].map((head) => [layer, head]));
    return about.statistics.map(([entropy,,,, previous], at) => [t("tour.place", { layer: places[at][0], head: places[at][1] }), previous, t("tour.previous", { previous: number(previous, 2), entropy: number(entropy, 2) })]);
  } },
  { name: "encoder", model: "mlm", text: PT, open: { screen: "fill", masked: 1 }, source: ["Encoder.forward"], figure: async (input) => {
    const { candidates } = await call("fill", { model: input.model, text: PT, spans: [[2, 6]] });
    return candidates.map(([token, p]) => [token, p, percent(p)]);
  } },
  { name: "decoder", model: "lm", text: "O gato", open: { screen: "next" }, source: ["Decoder.forward"], figure: async (input) => {
    const { tokens, stages } = await call("next", input);
    return tokens.slice(0, 8).map((token, at) => [token, stages[0].probabilities[at], percent(stages[0].probabilities[at])]);
  } },
  { name: "cross", model: "en-pt", text: EN, open: { screen: "translate", at: 1 }, source: ["EncoderDecoder.forward"], figure: async (input) => {
    const { sides, target, kinds } = await call("trace", input);
    const found = await matrix("weights", { ...input, target, kind: "cross", layer: kinds.cross.heads.length - 1, head: "mean", words: true });
    return sides.source.words.map(([label], at) => [label, found.values[found.columns + at], t("tour.reads", { word: sides.output.words[1][0], share: percent(found.values[found.columns + at]) })]);
  } },
  { name: "search", model: "en-pt", text: EN, open: { screen: "beam", beam: 4 }, source: ["token_search", "beam", "filters.top_p"], figure: async (input) => {
    const { found } = await call("search", { ...input, beam: 4 });
    return found.map((one) => [one.text, Math.exp(one.log_prob), percent(Math.exp(one.log_prob))]);
  } },
  { name: "honest", model: "tense", text: EN, open: { screen: "why", method: "leave-out" }, source: ["leave_out", "rolled_out", "ablate"], figure: async (input) => {
    const [left, rolled] = await Promise.all(["leave-out", "rollout"].map((method) => call("explain", { ...input, method })));
    const most = Math.max(...left.scores.map(Math.abs)) || 1;
    return left.words.map((word, at) => [word, Math.abs(left.scores[at]) / most, t("tour.both", { left: number(left.scores[at], 3), rolled: number(rolled.scores[at], 3) })]);
  } },
];

class Tour {
  constructor(studio) {
    this.studio = studio;
    this.chapters = menu(t("tour.chapter"), CHAPTERS.map(({ name }, at) => [at + 1, `${at + 1}. ${t(`tour.${name}`)}`]), 1, (chapter) => this.go(chapter), { id: "chapter" });
    this.back = button(t("tour.back"), () => this.turn(-1), { id: "back", "aria-keyshortcuts": "ArrowLeft" });
    this.next = button(t("tour.next"), () => this.turn(1), { id: "next", "aria-keyshortcuts": "ArrowRight" });
    this.title = make("h2", { id: "chapter-title", "aria-live": "polite" });
    this.body = make("div", { class: "tour" });
    this.equivalent = folded(t("heads.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "controls" }, this.back, this.chapters, this.next), make("section", { class: "panel", "aria-labelledby": "chapter-title" }, this.title, this.body), this.equivalent);
  }

  get at() { return Math.max(1, Math.min(CHAPTERS.length, this.studio.state.number("chapter") || 1)); }

  go(chapter) { this.studio.state.set({ chapter: chapter === 1 ? null : chapter }); }

  // The chapter after or before; the arrow keys and the space bar turn too.
  turn(by) {
    this.go(Math.max(1, Math.min(CHAPTERS.length, this.at + by)));
    return true;
  }

  play() { this.turn(1); }

  async update(trace, changed, current) {
    const { known, state } = this.studio, { at } = this, chapter = CHAPTERS[at - 1], { name, open, source, text } = chapter, say = (part) => t(`tour.${name}.${part}`);
    const model = `micro-world-${chapter.model}`, has = known.models.includes(model);
    this.chapter = chapter;
    this.found = null;
    this.chapters.querySelector("select").value = at;
    this.back.disabled = at === 1;
    this.next.disabled = at === CHAPTERS.length;
    this.title.textContent = `${at}. ${t(`tour.${name}`)}`;
    const place = make("figure", {}, has ? null : make("p", { class: "muted" }, t("tour.missing", { model })));
    const home = { model, text, target: null, kind: null, layer: null, head: null, pin: null, view: null, words: null, hide: null, written: null, ...open };
    this.body.replaceChildren(make("p", {}, say("text")), place, has ? button(t("tour.try", { screen: t(`screen.${open.screen}`) }), () => state.set(home), { id: "try" }) : "",
      make("details", { id: "question" }, make("summary", {}, say("question")), make("p", {}, say("answer"))),
      make("p", { class: "muted" }, t("tour.source")), ...source.map(sourceOf));
    this.equivalent.hidden = !has;
    if (!has) return;
    const found = await chapter.figure({ model, text });
    if (!current()) return;
    this.found = found;
    place.replaceChildren(this.draw(say("figure")), make("figcaption", { class: "muted" }, `${say("figure")} (${model})`));
    this.equivalent.renew();
  }

  draw(title) {
    const { found } = this;
    if (!Array.isArray(found)) {
      const canvas = make("canvas", { class: "pixels", role: "img", "aria-label": title });
      pixels(canvas, found);
      return canvas;
    }
    if (this.chapter.name !== "tokens") return bars(title, found);
    return make("ol", { class: "chips", "aria-label": title }, found.map(([label,, id]) => make("li", {}, make("span", { class: "chip plain" }, label), make("small", {}, id))));
  }

  table() {
    const { found } = this, title = t(`tour.${this.chapter.name}.figure`);
    if (Array.isArray(found)) return table(title, ["", title], found.map(([label, share, text]) => [label, `${number(share, 6)} · ${text}`]));
    return table(title, ["", ...Array(found.columns).keys()].map(String), Array.from({ length: found.rows }, (_, r) => [String(r), ...Array.from({ length: found.columns }, (__, c) => number(found.values[r * found.columns + c] * found.scale, 4))]));
  }

  figure() {
    const { found } = this, title = this.title.textContent, name = `tour-${this.at}`, tables = () => [this.table()];
    if (!found) return null;
    if (Array.isArray(found)) return barFigure(name, title, found, { chapter: title, rows: found }, tables);
    return { name, title, canvas: this.body.querySelector("canvas"), data: { ...found, values: [...found.values] }, tables };
  }
}

export default { name: "tour", free: true, make: (studio) => new Tour(studio) };
