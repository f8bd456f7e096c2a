// Inside a head: every number from a query and a key to the output of the head.
import { call } from "../api.js";
import { strips } from "../charts.js";
import { slider } from "../bars.js";
import { drop, fillMenu, folded, make, menu, number, table } from "../dom.js";
import { t } from "../i18n.js";
import { sourceOf } from "../source.js";

const VECTORS = { 1: ["query", "key", "rotated_query", "rotated_key", "product"], 3: ["value", "share", "from_positions", "output", "own_output"] };
const CODE = { vectors: "MultiHeadAttention.split", rotation: "Rotation.__call__", score: "equation.weigh", mask: "PreparedMask.allowed", mix: "kernels.plain", own: "entmax" };

class Inside {
  constructor(studio) {
    this.studio = studio;
    const set = (name) => (value) => studio.state.set({ [name]: value });
    this.kinds = menu(t("heads.kind"), [], "", (kind) => studio.state.set({ kind, layer: null, head: null, pin: null, key: null }), { id: "kind" });
    this.layers = menu(t("heads.layer"), [], "", set("layer"), { id: "layer" });
    this.heads = menu(t("heads.head"), [], "", set("head"), { id: "head" });
    this.queries = menu(t("inside.query"), [], "", (at) => studio.pin(`${this.side("rows")}-${at}`), { id: "query" });
    this.keys = menu(t("inside.key"), [], "", set("key"), { id: "key" });
    this.sentence = make("p", { id: "caption", role: "status" });
    this.steps = make("div", {});
    this.temperature = slider(studio, "softness", t("inside.temperature"), { min: 0.1, max: 5, step: 0.1, off: 1 });
    this.alpha = slider(studio, "alpha", t("inside.alpha"), { min: 1, max: 3, step: 0.1, off: 1 });
    this.sources = Object.fromEntries(Object.values(CODE).map((name) => [name, sourceOf(name)]));
    this.element = make("div", { class: "inside" }, make("div", { class: "controls" }, this.kinds, this.layers, this.heads, this.queries, this.keys, drop(t("input.settings"), {}, this.temperature.element, this.alpha.element)), this.steps);
  }

  get kind() {
    const names = Object.keys(this.trace.kinds);
    return this.studio.state.get("kind") || (names.includes("cross") ? "cross" : names[0]);
  }

  get head() { return /^\d+$/.test(this.studio.state.get("head")) ? this.studio.state.number("head") : 0; }

  // The side whose tokens are pinned as queries, or chosen as keys: a decoder's row t writes output t.
  side(way) {
    const name = this.trace.kinds[this.kind]?.[way];
    return way === "rows" && name === "target" ? "output" : name;
  }

  choices(name) {
    const heads = this.trace?.kinds[this.kind]?.heads;
    return !heads ? null : name === "layer" ? [...heads.keys()] : name === "head" ? [...Array(heads[this.studio.state.number("layer")] ?? 0).keys()] : null;
  }

  async update(trace, changed, current) {
    this.trace = trace;
    const { state, input } = this.studio, key = state.get("key"), query = Math.max(0, this.studio.pinned(this.side("rows")));
    const answer = await call("inside", { ...input, kind: this.kind, layer: state.number("layer"), head: this.head, query,
      ...(key === "" ? {} : { key: state.number("key") }), temperature: this.temperature.value, alpha: this.alpha.value });
    if (!current()) return;
    const kind = trace.kinds[this.kind], labels = (way) => trace.sides[kind[way]].tokens.map(([label]) => label);
    this.rows = labels("rows");
    this.columns = labels("columns");
    this.answer = answer;
    this.temperature.show();
    this.alpha.show();
    const choose = (box, pairs, chosen) => fillMenu(box.querySelector("select"), pairs, chosen);
    choose(this.kinds, Object.keys(trace.kinds).map((one) => [one, t(`kind.${one}`)]), this.kind);
    choose(this.layers, this.choices("layer").map((one) => [one, one]), state.number("layer"));
    choose(this.heads, this.choices("head").map((one) => [one, one]), this.head);
    choose(this.queries, this.rows.map((label, at) => [at, `${at}: ${label}`]), query);
    choose(this.keys, [["", t("inside.most_read")], ...this.columns.map((label, at) => [at, `${at}: ${label}`])], key);
    this.draw();
  }

  draw() {
    const { answer, rows, columns } = this, { row, vectors, key, query } = answer, names = { query: rows[query], key: columns[key] };
    this.sentence.textContent = t(row.allowed[key] ? "inside.reads" : "inside.closed", { ...names, weight: number(row.weight[key], 6) });
    const step = (at, codes, ...content) => {
      const words = [make("h2", {}, `${at}. ${t(`inside.step${at}`)}`), make("p", { class: "muted" }, t(`inside.about${at}`, { ...names, normaliser: answer.normaliser }))];
      const [figure, ...more] = content, first = at === 1 ? [figure.firstChild, ...words, this.sentence, figure] : [...words, figure];  // the screen begins with a figure
      return make("section", { class: "panel step", "aria-label": t(`inside.step${at}`) }, ...first, ...more, ...codes.map((code) => this.sources[code]));
    };
    const strip = (at) => this.vectorStrip(at);
    const [first, third] = [strip(1), strip(3)];
    this.picture = first.querySelector("svg");
    this.steps.replaceChildren(
      step(1, vectors.rotated_query ? [CODE.vectors, CODE.rotation] : [CODE.vectors], first),
      step(2, [CODE.score, CODE.mask, ...(answer.own ? [CODE.own] : [])], this.sum(), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("inside.row") }, this.rowTable())),
      step(3, [CODE.mix], third));
  }

  vectorStrip(at) {
    const { own } = this.answer, vectors = { ...this.answer.vectors, own_output: own?.output }, shown = VECTORS[at].filter((name) => vectors[name]).map((name) => [t(`inside.${name}`), vectors[name]]);
    const title = t(`inside.step${at}`), width = Math.max(...shown.map(([, values]) => values.length));
    const numbers = () => table(title, ["", ...Array(width).keys()].map(String), shown.map(([label, values]) => [label, ...values.map((value) => number(value, 6))]));
    return make("div", {}, make("div", { class: "window", tabindex: 0, role: "group", "aria-label": title },
      strips(title, shown, (label, column, value) => t("inside.cell", { label, column, value: number(value, 6) }))), folded(t("heads.as_table"), numbers));
  }

  // How the score of the pair comes about, as one line.
  sum() {
    const { row, key, scale, schemes, vectors } = this.answer, total = vectors.product.reduce((sum, value) => sum + value, 0);
    const parts = { product: total, scale, content: row.content[key], ...(row.position ? { position: row.position[key] } : {}), score: row.score[key],
      weight: row.weight[key] };
    return make("dl", { class: "sum" }, Object.entries(parts).map(([name, value]) => make("div", {},
      make("dt", {}, t(`inside.sum.${name}`, { schemes: schemes.join(", ") })),
      make("dd", { "data-name": name }, name === "weight" && !row.allowed[key] ? t("inside.closed_short") : number(value, 6)))));
  }

  rowTable() {
    const { row, key, normaliser, own } = this.answer, heads = ["key", "content", ...(row.position ? ["position"] : []), "score", "mask", ...(own ? ["own"] : []), "weight"];
    const rows = this.columns.map((label, at) => [`${at === key ? "▸ " : ""}${label}`, number(row.content[at], 6), ...(row.position ? [number(row.position[at], 6)] : []),
      number(row.score[at], 6), t(row.allowed[at] ? "inside.open" : "inside.closed_short"), ...(own ? [number(own.weight[at], 6)] : []), number(row.weight[at], 6)]);
    return table(t("inside.row_of", { query: this.rows[this.answer.query], normaliser }), heads.map((name) => t(`inside.column.${name}`)), rows);
  }

  figure() {
    if (!this.picture) return null;
    return { name: `head-${this.kind}-${this.studio.state.number("layer")}-${this.head}`, title: this.sentence.textContent, svg: this.picture, data: this.answer,
      tables: () => [this.rowTable()] };
  }
}

export default { name: "inside", text: true, weights: true, make: (studio) => new Inside(studio) };
