// Compare: what two models say of the same text, where they part, and over which of many texts they disagree most.
import { Refusal, call, matrix } from "../api.js";
import { barFigure, percent, points, tokensOfWords, wordSpans } from "../bars.js";
import { button, fillMenu, folded, make, menu, number, table } from "../dom.js";
import { pixels } from "../charts.js";
import { fitting } from "../examples.js";
import { t } from "../i18n.js";
import { secondText } from "../second_text.js";

const VIEWS = ["labels", "tags", "fill", "next", "output", "similarity", "attention"], SECOND = ["labels", "similarity"], MOST = 40;

class Compare {
  constructor(studio) {
    this.studio = studio;
    const set = (name) => (value) => studio.state.set({ [name]: value });
    this.models = make("ul", { class: "cards", "aria-label": t("compare.choose") });
    this.views = make("span", { class: "checks", role: "group", "aria-label": t("compare.way") });
    this.second = secondText(studio, t("compare.second"));
    this.masked = menu(t("compare.masked"), [], "", set("masked"), { id: "masked-word" });
    this.kinds = menu(t("heads.kind"), [], "", (kind) => studio.state.set({ kind, layer: null, head: null }), { id: "kind" });
    this.layers = menu(t("heads.layer"), [], "", set("layer"), { id: "layer" });
    this.heads = menu(t("heads.head"), [], "", set("head"), { id: "head" });
    this.said = make("p", { id: "said", role: "status" });
    this.result = make("div", { id: "compared" });
    this.equivalent = folded(t("compare.as_table"), () => this.table());
    this.texts = make("textarea", { rows: 4, id: "compare-texts", spellcheck: "false", on: { change: () => studio.state.set({ texts: this.texts.value }) } });
    this.list = make("div", { id: "disagreements" });
    this.several = make("section", { class: "panel", "aria-label": t("compare.texts") }, make("h2", {}, t("compare.texts")),
      make("label", { class: "area" }, t("compare.lines", { most: MOST }), this.texts),
      make("div", { class: "controls" }, button(t("compare.sort"), () => this.sort(), { id: "sort" })), this.list);
    this.panel = make("section", { class: "panel", "aria-label": t("screen.compare") }, this.views, make("div", { class: "controls" }, this.masked, this.kinds, this.layers, this.heads),
      this.second.element, this.said, this.result);
    this.element = make("div", {}, this.models, this.panel, this.equivalent, this.several);
  }

  get b() { return this.studio.state.get("b"); }

  get two() { return { model: this.studio.model, b: this.b }; }

  choices(name) {
    const heads = this.view === "attention" && this.trace?.kinds[this.kind]?.heads;
    if (!heads || !["layer", "head"].includes(name)) return null;
    return name === "layer" ? [...heads.keys()] : ["mean", "max", ...Array(heads[this.studio.state.number("layer")] ?? 0).keys()];
  }

  get kind() { return this.studio.state.get("kind") || Object.keys(this.trace.kinds)[0]; }

  get fields() {
    const { state } = this.studio, text = state.get("text");
    return { ...this.two, view: this.view, text, second: SECOND.includes(this.view) ? state.get("second") : "", ...(this.view === "fill" ? { spans: this.spans(text) } : {}) };
  }

  // The word of a text that is masked, the same place in each text.
  spans(text) {
    const words = wordSpans(text), at = Math.min(this.studio.state.number("masked") || 1, words.length - 1);
    return at < 0 ? [] : [words[at].map((place) => points(text, place))];
  }

  async update(trace, changed, current) {
    const { state, known, model } = this.studio, has = Boolean(this.b);
    this.trace = trace;
    for (const part of [this.panel, this.equivalent, this.several]) part.hidden = !has;
    this.models.hidden = has;
    this.models.replaceChildren(...known.models.map((name) => make("li", {}, button(t("compare.with", { name }), () => state.set({ b: name }), { class: "card" }))));
    this.found = null;
    if (!has) return;
    const shared = await call("shared", this.two);
    if (!current()) return;
    const wanted = state.get("way");
    this.view = shared[wanted] ? wanted : VIEWS.find((name) => shared[name]);
    this.views.replaceChildren(...VIEWS.map((name) => button(t(`compare.${name}`), () => { if (shared[name]) state.set({ way: name }); }, { "data-way": name,
      "aria-pressed": String(name === this.view), "aria-disabled": shared[name] ? null : "true", class: shared[name] ? null : "off", title: shared[name] ? null : t(`compare.without.${name}`) })));
    this.showControls(trace);
    if (document.activeElement !== this.texts) this.texts.value = state.get("texts") || [...new Set([state.get("text"), ...fitting(this.studio.card).map((one) => one.text)])].join("\n");
    const found = await (this.view === "attention" ? this.difference(trace) : call("compared", this.fields)).catch((error) => {
      if (error instanceof Refusal && error.status === 422) return error;  // it says what to change, with what is needed for it beside
      throw error;
    });
    if (!current()) return;
    const refused = found instanceof Refusal;
    this.found = refused ? null : found;
    this.result.hidden = this.equivalent.hidden = refused;
    if (changed.size !== 1 || !changed.has("texts")) this.list.replaceChildren();
    this.several.hidden = this.view === "attention";
    if (refused) this.said.textContent = found.message;
    else this.draw(model);
    if (!refused) this.equivalent.renew();
  }

  showControls(trace) {
    const { state } = this.studio, looks = this.view === "attention", text = state.get("text");
    for (const box of [this.kinds, this.layers, this.heads]) box.hidden = !looks;
    this.masked.hidden = this.view !== "fill";
    this.second.element.hidden = !SECOND.includes(this.view);
    this.second.show();
    fillMenu(this.masked.querySelector("select"), wordSpans(text).map(([start, end], at) => [at, text.slice(start, end)]), state.get("masked") || 1);
    if (!looks) return;
    fillMenu(this.kinds.querySelector("select"), Object.keys(trace.kinds).map((one) => [one, t(`kind.${one}`)]), this.kind);
    fillMenu(this.layers.querySelector("select"), this.choices("layer").map((one) => [one, one]), state.number("layer"));
    fillMenu(this.heads.querySelector("select"), this.choices("head").map((one) => [one, typeof one === "string" ? t(`heads.${one}`) : one]), state.get("head"));
  }

  difference(trace) {
    const { state, input } = this.studio, head = state.get("head"), { b } = this;
    return matrix("difference", { ...input, ...(trace.target === null ? {} : { target: trace.target }), b, kind: this.kind, layer: state.number("layer"),
      head: /^\d+$/.test(head) ? Number(head) : head });
  }

  draw(model) {
    const { found, view } = this;
    if (view === "attention") {
      const canvas = make("canvas", { class: "pixels", id: "difference", role: "img", "aria-label": t("compare.attention") });
      this.said.textContent = t("compare.mean", { mean: number(found.mean, 6), top: number(pixels(canvas, found), 6) });
      this.result.replaceChildren(make("p", { class: "muted" }, t("compare.colours", { a: model, b: this.b })), canvas);
      return;
    }
    const nats = found.divergences?.map((one) => (one === null ? "∞" : number(one, 6)));
    this.said.textContent = [t(`compare.apart.${view}`, { apart: number(found.apart, 6) }), nats ? t("compare.kl", { ab: nats[0], ba: nats[1] }) : ""].join(" ");
    this.result.replaceChildren(make("p", { class: "legend two" }, make("span", {}, make("i", { class: "raises" }), `A: ${model}`), make("span", {}, make("i", { class: "lowers" }), `B: ${this.b}`)),
      view === "output" ? this.outputs() : view === "similarity" ? table(t("compare.similarity"), [t("bar.model"), t("compare.cosine")], [["A", number(found.said[0], 6)], ["B", number(found.said[1], 6)]])
      : view === "tags" ? this.tags() : this.pairs());
  }

  // Two bars a row.
  pairs() {
    const most = Math.max(...this.found.rows.flatMap(([, a, b]) => [a, b]), 1e-12);
    return make("ol", { class: "links pairs", "aria-label": t(`compare.${this.view}`) }, this.found.rows.map(([name, ...two]) => {
      const track = make("span", { class: "track", "aria-hidden": "true" }, two.map((share, at) => {
        const bar = make("i", { class: at ? "lowers" : "raises" });
        bar.style.setProperty("width", `${(100 * share) / most}%`);
        return bar;
      }));
      return make("li", {}, make("span", { class: "name" }, name), track, make("span", { class: "value" }, two.map((share) => (share > 0 && share < 5e-5 ? "< 0.01 %" : percent(share))).join(" · ")));
    }));
  }

  tags() {
    const places = tokensOfWords(this.trace, this.found.rows.map(([word]) => word));
    return make("ol", { class: "chips" }, this.found.rows.map(([word, a, b], at) => make("li", { class: a === b ? null : "differs" }, make("span", { class: "chip plain", ...places[at] }, word), make("small", {}, a === b ? a : `${a} / ${b}`))));
  }

  // The two outputs, and from which word on they differ.
  outputs() {
    const [a, b] = this.found.said.map((text) => text.split(" "));
    let same = 0;
    while (same < Math.min(a.length, b.length) && a[same] === b[same]) same++;
    const shown = (name, words) => make("p", { class: "written", "data-side": name }, make("strong", {}, `${name}: `), words.slice(0, same).join(" "), " ", same < words.length ? make("mark", {}, words.slice(same).join(" ")) : null);
    const end = Math.max(a.length, b.length);
    return make("div", {}, shown("A", a), shown("B", b), make("p", { class: "muted" }, same === end ? t("compare.same") : t("compare.parts", { word: same + 1 })));
  }

  async sort() {
    const { state } = this.studio, texts = this.texts.value.split("\n").map((one) => one.trim()).filter(Boolean).slice(0, MOST);
    state.set({ texts: texts.join("\n") });
    this.list.setAttribute("aria-busy", "true");
    try {
      const { rows } = await call("disagreements", { ...this.fields, masked: this.view === "fill" ? texts.map((text) => this.spans(text)) : null, texts });
      const sorted = texts.map((text, at) => [text, ...rows[at]]).sort((x, y) => y[1] - x[1]);
      this.list.replaceChildren(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("compare.sorted") }, table(t("compare.sorted"), [t("fill.text"), t("compare.disagreement"), "A", "B"],
        sorted.map(([text, apart, a, b]) => [button(text, () => state.set({ text, target: "", pin: "" }), { class: "link" }), number(apart, 6), a, b]))));
    } catch (error) {
      this.studio.refuse(error);
    } finally {
      this.list.removeAttribute("aria-busy");
    }
  }

  table() {
    const { found, view, trace } = this;
    if (view === "attention") {
      const labels = (way) => trace.sides[trace.kinds[this.kind][way]].tokens.map(([label]) => label), columns = labels("columns");
      return table(this.said.textContent, [t("heads.reads_is_read"), ...columns], labels("rows").map((label, r) => [label, ...columns.map((_, c) => found.values[r * found.columns + c].toFixed(6))]));
    }
    const cell = (value) => (typeof value === "number" ? value.toFixed(6) : value);
    const rows = found.said ? [[t(`compare.${view}`), ...found.said]] : found.rows;
    return table(this.said.textContent, [t(`compare.${view}`), "A", "B", ...(found.said || view === "tags" ? [] : ["A − B"])], rows.map(([name, a, b]) => [name, cell(a), cell(b), ...(found.said || view === "tags" ? [] : [(a - b).toFixed(6)])]));
  }

  figure() {
    if (!this.found) return null;
    const { view, found } = this, title = `${this.studio.model}, ${this.b}: ${this.said.textContent}`, name = `compare-${view}`;
    if (view === "attention") return { name, title, canvas: this.result.querySelector("canvas"), data: { ...found, values: [...found.values] }, tables: () => [this.table()] };
    const rows = (found.said ? found.said.map((one, at) => ["AB"[at], one, one]) : found.rows).map(([label, a, b]) => [label, typeof a === "number" ? a - (typeof b === "number" && !found.said ? b : 0) : Number(a !== b), typeof a === "number" ? number(found.said ? a : a - b) : `${a} / ${b}`]);
    return barFigure(name, title, rows, found, () => [this.table()]);
  }
}

export default { name: "compare", text: true, make: (studio) => new Compare(studio) };
