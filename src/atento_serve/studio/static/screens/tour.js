// Guided tour: ten short chapters along One sentence, on the package's small models, or on a sentence and a model of one's own.
import { bytes, call, matrix } from "../api.js";
import { barFigure, bars, maskedWords, percent, points, wordSpans } from "../bars.js";
import { pixels } from "../charts.js";
import { button, folded, make, menu, number, table } from "../dom.js";
import { t } from "../i18n.js";
import { clean } from "../sentence_picture.js";
import { sourceOf } from "../source.js";
import { One } from "./one_sentence.js";

const EN = "The cat sees the old house.", PT = "O gato vê a casa velha.";
const self = ({ kinds }) => Object.keys(kinds).find((kind) => kind !== "cross");
const largest = (rows, value) => rows.reduce((best, row) => (value(row) > value(best) ? row : best));

// `needs`: the screen that a model must feed to be shown here; `alone`: it writes on from its own text. `part`: of the picture, and the token `token`.
// `figure(input, trace, state)`: `found`, rows of [label, share, text] or a matrix; `answer` to the chapter's question, which has `values`.
const CHAPTERS = [
  { name: "tokens", model: "lm", text: PT, needs: "one", part: () => "pieces", open: { screen: "tokens" }, source: ["Tokenizer.encode"], digits: 0, figure: async (_, { sides: { source } }) => (
    { found: source.tokens.map(([label], at) => [label, 0, String(source.ids[at])]), answer: source.tokens.length }) },
  { name: "positions", model: "en-pt", text: EN, needs: "positions", part: (trace) => `vectors-${self(trace)}`, open: { screen: "positions", scheme: "sinusoidal" }, source: ["InputLayer.forward", "sinusoids"], digits: 0,
    figure: async ({ model }) => {
      const found = await matrix("positions", { model, scheme: "sinusoidal", length: 32, width: 32 });
      return { found, answer: [...Array(found.rows).keys()].find((row) => found.values[row * found.columns] < 0) };
    } },
  { name: "head", model: "lm", text: PT, needs: "inside", part: (trace) => `head-${self(trace)}-0-1`, token: 5, open: { screen: "inside", layer: 0, head: 1, pin: "source-5" }, source: ["equation.weigh", "equation.normalise"], digits: 2, figure: async (input, trace) => {
    const kind = self(trace), { tokens } = trace.sides.source, query = Math.min(5, tokens.length - 1), head = Math.min(1, trace.kinds[kind].heads[0] - 1);
    const { row } = await call("inside", { ...input, kind, layer: 0, head, query });
    const found = tokens.map(([label], at) => [label, row.weight[at], t("tour.score", { score: number(row.score[at], 2), weight: number(row.weight[at]) })]).filter((_, at) => row.allowed[at]);
    return { found, answer: largest(found, ([, weight]) => weight)[1], values: { query: clean(tokens[query][0]) } };
  } },
  { name: "masks", model: "lm", text: PT, needs: "one", part: (trace) => `head-${self(trace)}-0-0`, open: { screen: "masks", mask: "causal()" }, source: ["masks.causal", "PreparedMask.allowed"], digits: 0, figure: async () => (
    { found: await matrix("mask", { code: "causal()", queries: 12 }), answer: 6 }) },
  { name: "heads", model: "lm", text: PT, needs: "heads", part: (trace) => `head-${self(trace)}-0-0`, open: { screen: "heads", view: "overview" }, source: ["MultiHeadAttention.forward", "describe_head"], digits: 2, figure: async (input, trace) => {
    const { about } = await bytes("overview", { ...input, kind: self(trace) }), places = about.heads.flatMap((count, layer) => [...Array(count).keys()].map((head) => [layer, head]));
    const found = about.statistics.map(([entropy,,,, previous], at) => [t("tour.place", { layer: places[at][0], head: places[at][1] }), previous, t("tour.previous", { previous: number(previous, 2), entropy: number(entropy, 2) })]);
    return { found, answer: largest(found, ([, previous]) => previous)[1] };
  } },
  { name: "encoder", model: "mlm", text: PT, needs: "fill", part: () => "end", open: { screen: "fill", masked: 1 }, source: ["Encoder.forward"], digits: 1, figure: async ({ model, text }, trace, state) => {
    const spans = wordSpans(text), masked = maskedWords(state, spans).slice(0, 1).map((at) => spans[at].map((place) => points(text, place)));
    const { candidates } = await call("fill", { model, text, spans: masked });
    return { found: candidates.map(([token, p]) => [token, p, percent(p)]), answer: 100 * candidates[0][1] };
  } },
  { name: "decoder", model: "lm", text: "O gato", needs: "next", alone: true, token: Infinity, part: () => "end", open: { screen: "next" }, source: ["Decoder.forward"], digits: 1, figure: async (input) => {
    const { tokens, stages } = await call("next", input), shares = stages[0].probabilities.slice(0, 8);
    return { found: shares.map((share, at) => [tokens[at], share, percent(share)]), answer: 100 * (shares[0] + shares[1] + shares[2]) };
  } },
  { name: "cross", model: "en-pt", text: EN, needs: "translate", part: (trace) => `head-cross-${trace.kinds.cross.heads.length - 1}-0`, token: 1, open: { screen: "translate", at: 1 }, source: ["EncoderDecoder.forward"], digits: 1, figure: async (input, { sides, target, kinds }) => {
    const read = await matrix("weights", { ...input, target, kind: "cross", layer: kinds.cross.heads.length - 1, head: "mean", words: true }), row = Math.min(1, read.rows - 1), word = sides.output.words[row][0];
    const found = sides.source.words.map(([label], at) => [label, read.values[row * read.columns + at], t("tour.reads", { word, share: percent(read.values[row * read.columns + at]) })]);
    return { found, answer: 100 * largest(found, ([, share]) => share)[1], values: { word } };
  } },
  { name: "search", model: "en-pt", text: EN, needs: "beam", part: () => "end", open: { screen: "beam", beam: 4 }, source: ["token_search", "beam", "filters.top_p"], digits: 1, figure: async (input) => {
    const { found } = await call("search", { ...input, beam: 4 }), [first, second] = found;
    return { found: found.map((one) => [one.text, Math.exp(one.log_prob), percent(Math.exp(one.log_prob))]), answer: second ? Math.exp(first.log_prob - second.log_prob) : null };
  } },
  { name: "honest", model: "tense", text: EN, needs: "why", part: () => "end", open: { screen: "why", method: "leave-out" }, source: ["leave_out", "rolled_out", "ablate"], digits: 2, figure: async (input) => {
    const [left, rolled] = await Promise.all(["leave-out", "rollout"].map((method) => call("explain", { ...input, method }))), most = largest(left.scores, Math.abs);
    return { found: left.words.map((word, at) => [word, Math.abs(left.scores[at]) / (Math.abs(most) || 1), t("tour.both", { left: number(left.scores[at], 3), rolled: number(rolled.scores[at], 3) })]), answer: most };
  } },
];

const AWAY = { part: null, at: null, pin: null, masked: null, target: null };
const ownModel = ({ model }) => `micro-world-${model}`;

class Tour {
  constructor(studio) {
    this.studio = studio;
    this.chapters = menu(t("tour.chapter"), CHAPTERS.map(({ name }, at) => [at + 1, `${at + 1}. ${t(`tour.${name}`)}`]), 1, (chapter) => this.go(Number(chapter)), { id: "chapter" });
    this.before = button(t("tour.back"), () => this.turn(-1), { id: "before", "aria-keyshortcuts": "ArrowLeft" });
    this.after = button(t("tour.next"), () => this.turn(1), { id: "after", "aria-keyshortcuts": "ArrowRight" });
    this.title = make("h2", { id: "chapter-title", "aria-live": "polite" });
    this.told = make("p", {});
    this.note = make("p", { class: "muted", id: "instead" });
    this.picture = new One(studio);
    this.picture.equivalent.remove();  // the chapter has a table of its own
    this.body = make("div", { class: "pair" });
    this.equivalent = folded(t("heads.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "controls" }, make("span", { class: "turner" }, this.before, this.chapters, this.after), button(t("tour.print"), () => print(), { id: "print" }), make("small", {}, t("tour.link"))),
      make("section", { class: "panel tour", "aria-labelledby": "chapter-title" }, this.title, this.told, this.note, this.picture.element, this.body), this.equivalent);
  }

  get at() { return Math.max(1, Math.min(CHAPTERS.length, this.studio.state.number("chapter") || 1)); }

  // Another chapter: with the sentence and the model of before where they were chosen, else with its own.
  go(at) {
    const { state } = this.studio, next = CHAPTERS[at - 1], own = state.get("model") === ownModel(this.chapter) && state.get("text") === this.chapter.text;
    state.set({ ...AWAY, chapter: at === 1 ? null : at, ...(own ? { model: ownModel(next), text: next.text } : {}) });
  }

  // The chapter after or before; the arrow keys and the space bar turn too.
  turn(by) {
    this.go(Math.max(1, Math.min(CHAPTERS.length, this.at + by)));
    return true;
  }

  play() { this.turn(1); }

  async update(trace, changed, current) {
    const { known, state, cards } = this.studio, { at } = this, chapter = CHAPTERS[at - 1], own = ownModel(chapter), chosen = state.get("model");
    const [card, reasons] = chosen ? await cards(chosen, state.get("b")).catch(() => [null, {}]) : [null, {}];
    if (!current()) return;
    this.chapter = chapter;
    const fits = Boolean(card) && !reasons[chapter.needs] && !(chapter.alone && card.writes);
    if (!fits && chosen !== own && known.models.includes(own)) {
      this.instead = chosen && t("tour.instead", { model: chosen, own });
      state.set({ ...AWAY, model: own, text: chosen ? chapter.text : state.values.text ?? chapter.text }, { replace: true });
      return;
    }
    this.picture.home = chapter.token;
    this.note.textContent = (chosen === own && this.instead) || "";
    this.instead = "";
    this.show(chapter, at, fits);
    this.picture.element.hidden = !fits || Boolean(reasons.one);
    this.equivalent.hidden = !fits;
    if (!fits) return;
    const { input } = this.studio, flow = await this.studio.trace();
    const [drawn] = await Promise.all([chapter.figure(input, flow, state), this.picture.element.hidden ? null : this.picture.update(null, changed, current)]);
    if (!current()) return;
    Object.assign(this, drawn);
    this.marked = state.get("part") || chapter.part(flow);
    this.picture.river?.mark(this.marked);
    const say = (part) => t(`tour.${chapter.name}.${part}`, { text: input.text });
    this.place.replaceChildren(this.draw(say("figure")), make("figcaption", { class: "muted" }, `${say("figure")} (${input.model}, “${input.text}”)`));
    this.asked.replaceChildren(...this.quiz(chapter, drawn));
    this.equivalent.renew();
  }

  // The words of a chapter, before its numbers are there.
  show({ name, open, source, model, text }, at, fits) {
    const { state } = this.studio, say = (part) => t(`tour.${name}.${part}`);
    this.found = null;
    this.chapters.querySelector("select").value = at;
    this.before.disabled = at === 1;
    this.after.disabled = at === CHAPTERS.length;
    this.title.textContent = `${at}. ${t(`tour.${name}`)}`;
    this.told.textContent = say("text");
    this.place = make("figure", {}, fits ? null : make("p", { class: "muted" }, t("tour.missing", { model: ownModel({ model }) })));
    this.asked = make("div", { class: "quiz" });
    const home = { ...AWAY, kind: null, layer: null, head: null, view: null, words: null, hide: null, written: null, ...open };
    this.body.replaceChildren(make("div", {}, this.place, fits ? button(t("tour.try", { screen: t(`screen.${open.screen}`) }), () => state.set(home), { id: "try" }) : ""),
      make("div", {}, this.asked, make("details", { id: "question" }, make("summary", {}, say("question")), make("p", {}, say("answer"))),
        make("div", { class: "lines" }, make("p", { class: "muted" }, t("tour.source")), ...source.map(sourceOf))));
  }

  // A question whose answer is a number that stands on the page.
  quiz({ name, digits }, { answer, values }) {
    if (!Number.isFinite(answer)) return [];
    const said = make("output", { for: "reading" }), about = Math.max(10 ** -digits, digits && Math.abs(answer) / 100);
    const check = () => {
      const given = box.value.trim().replace(/\s*%$/, "").replace(",", "."), right = given !== "" && Math.abs(Number(given) - answer) <= about * (digits ? 1 : 0.5);
      said.className = right ? "right" : "";
      said.textContent = right ? t("tour.right", { answer: number(answer, digits) }) : !given || Number.isNaN(Number(given)) ? t("tour.number") : t(Number(given) < answer ? "tour.more" : "tour.less");
    };
    const box = make("input", { type: "text", id: "reading", inputmode: "decimal", autocomplete: "off", on: { keydown: (event) => { if (event.key === "Enter") check(); } } });
    return [make("label", { for: "reading" }, t(`tour.${name}.read`, values)), make("span", {}, box, button(t("tour.check"), check, { id: "check" })), said];
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

  paint() {
    if (!this.found) return;
    this.picture.paint();
    this.picture.river?.mark(this.marked);
    this.place.firstChild.replaceWith(this.draw(this.place.firstChild.ariaLabel));
  }

  close() { this.picture.close(); }
}

export default { name: "tour", free: true, text: "only", make: (studio) => new Tour(studio) };
