// Masks: any mask of the library as a matrix, written as code, painted by hand, or of a layer of the model.
import { matrix } from "../api.js";
import { button, fillMenu, folded, make, menu, numberField } from "../dom.js";
import { t } from "../i18n.js";
import { css, sized } from "../maps.js";

const PARTS = ["causal()", "bidirectional()", "window(2, 0)", "prefix(3)", "lookahead(1)", "padding([8])", "documents([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])",
  "dilated(2)", "global_tokens(1)", "allowed_pairs([(0, 3)])", "blocks([[1, 0], [1, 1]], 6)", "per_head([causal(), window(1, 1)])"];

class Masks {
  constructor(studio) {
    this.studio = studio;
    const { state } = studio, set = (changes) => state.set(changes);
    this.code = make("textarea", { rows: 2, spellcheck: "false", class: "code", on: { change: () => set({ mask: this.code.value, paint: null, from: null }) } });
    this.part = menu(t("masks.part"), PARTS.map((part) => [part, part]), PARTS[0], () => {}, { id: "part" });
    const part = () => this.part.querySelector("select").value, now = () => `(${this.answer?.code || this.code.value})`;
    const join = (sign) => () => set({ mask: sign === "=" ? part() : `${now()} ${sign} ${part()}`, paint: null, from: null });
    this.joins = make("span", { class: "views", role: "group", "aria-label": t("masks.join") }, ["=", "&", "|"].map((sign) =>
      button(t(`masks.join.${{ "=": "is", "&": "and", "|": "or" }[sign]}`), join(sign))), button(t("masks.join.not"), () => set({ mask: `~${now()}`, paint: null, from: null })));
    this.from = menu(t("masks.from"), [], "", (from) => set({ from, layer: null, paint: null }), { id: "from" });
    this.fields = make("span", { class: "controls" });
    this.canvas = make("canvas", { id: "mask-canvas" });
    this.box = make("div", { class: "window maskbox", tabindex: 0, role: "group", "aria-label": t("masks.matrix"), "aria-describedby": "mask-help" }, this.canvas);
    this.said = make("p", { class: "tip", role: "status" });
    this.facts = make("dl", { class: "facts" });
    this.shown = make("pre", { id: "mask-code", class: "code" });
    this.equivalent = folded(t("masks.as_text"), () => make("pre", {}, this.answer.text));
    this.element = make("div", {}, make("div", { class: "panel" }, make("label", { class: "area" }, t("masks.code"), this.code),
      make("div", { class: "controls" }, this.part, this.joins, this.from), this.fields),
    make("div", { class: "panels" }, make("section", { class: "panel", "aria-label": t("masks.matrix") }, this.box, this.said, make("p", { class: "muted", id: "mask-help" }, t("masks.paint_help"))),
      make("section", { class: "panel", "aria-label": t("masks.facts") }, this.facts, make("h2", {}, t("masks.as_code")), this.shown,
        button(t("masks.clear"), () => set({ paint: null }), { id: "clear" }))), this.equivalent);
    this.cell = { row: 0, column: 0 };
    this.listen();
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return { row: Math.floor((event.clientY - box.top - this.edge) / this.side), column: Math.floor((event.clientX - box.left - this.edge) / this.side) };
    };
    this.canvas.addEventListener("pointermove", (event) => this.go(at(event)));
    this.canvas.addEventListener("click", (event) => { this.go(at(event)); this.paint(); });
    this.box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step) this.go({ row: this.cell.row + step[0], column: this.cell.column + step[1] });
      else if (event.key === " " || event.key === "Enter") this.paint();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  // The painted pairs, in the address as "query.key,...".
  get painted() { return this.studio.state.get("paint").split(",").filter((one) => /^\d{1,3}\.\d{1,3}$/.test(one)); }

  go({ row, column }) {
    if (!this.answer) return;
    const { rows, columns, values } = this.answer;
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    this.cell = { row, column };
    this.said.textContent = t(values[row * columns + column] ? "masks.may" : "masks.may_not", { query: row, key: column });
    this.draw();
  }

  paint() {
    if (this.studio.state.get("from")) return;
    const pair = `${this.cell.row}.${this.cell.column}`, { painted } = this;
    this.studio.state.set({ paint: (painted.includes(pair) ? painted.filter((one) => one !== pair) : [...painted, pair]).join(",") });
  }

  async update(trace, changed, current) {
    const { state, card, model } = this.studio, from = state.get("from");
    const kinds = { encoder: ["encoder"], decoder: ["decoder"], "encoder-decoder": ["encoder", "decoder"] }[card.architecture] ?? [];
    if (document.activeElement !== this.code) this.code.value = state.get("mask") || "causal()";
    fillMenu(this.from.querySelector("select"), [["", t("masks.from_code")], ...kinds.map((kind) => [kind, t("masks.from_model", { kind: t(`kind.${kind}`), model })])], from);
    const number = (name, least) => (state.get(name) === "" ? least : state.number(name));
    const fields = { queries: number("queries", 12), keys: number("keys", number("queries", 12)), row: number("mrow", 0), head: number("mhead", 0) };
    const answer = await matrix("mask", { ...fields, ...(from ? { model, kind: from, layer: state.number("layer") }
      : { code: state.get("mask") || "causal()", paint: this.painted.map((pair) => pair.split(".").map(Number)) }) });
    if (!current()) return;
    this.answer = answer;
    if (!this.fields.contains(document.activeElement)) {
      const field = (name, value, range) => numberField(t(`masks.${name}`), value, range, (given) => state.set({ [name]: given }));
      this.fields.replaceChildren(field("queries", fields.queries, { min: 1, max: 128 }), field("keys", fields.keys, { min: 1, max: 128 }),
        ...(answer.batch > 1 ? [field("mrow", fields.row, { max: answer.batch - 1 })] : []), ...(answer.heads > 1 ? [field("mhead", fields.head, { max: answer.heads - 1 })] : []),
        ...(from ? [field("layer", state.number("layer"), { max: 999 })] : []));
    }
    const rows = { name: answer.name, open: t("masks.of", { open: answer.open, all: answer.rows * answer.columns }), empty: answer.empty,
      ahead: answer.ahead === null ? t("masks.unlimited") : answer.ahead, caches: t(answer.caches ? "masks.yes" : "masks.no") };
    this.facts.replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [make("dt", {}, t(`masks.fact.${name}`)), make("dd", {}, String(value))]));
    this.shown.textContent = answer.code || answer.name;
    this.box.querySelector("canvas").setAttribute("aria-hidden", "true");
    this.equivalent.renew();
    this.draw();
  }

  draw() {
    const { rows, columns, values } = this.answer, room = Math.max(200, this.box.clientWidth - 8);
    this.edge = 22;
    this.side = Math.max(5, Math.min(30, Math.floor((room - this.edge) / columns)));
    const ctx = sized(this.canvas, this.edge + columns * this.side + 2, this.edge + rows * this.side + 2), gap = this.side > 7 ? 1 : 0;
    const [open, closed, ink, mark] = ["--accent", "--zero", "--muted", "--mark"].map(css);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    const every = Math.ceil(18 / this.side), middle = (at) => this.edge + (at + 0.5) * this.side;
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        ctx.fillStyle = values[row * columns + column] ? open : closed;
        ctx.fillRect(this.edge + column * this.side, this.edge + row * this.side, this.side - gap, this.side - gap);
      }
    ctx.fillStyle = ink;
    for (let at = 0; at < columns; at += every) ctx.fillText(String(at), middle(at), this.edge / 2);
    for (let at = 0; at < rows; at += every) ctx.fillText(String(at), this.edge / 2, middle(at));
    ctx.strokeStyle = mark;
    ctx.lineWidth = 2;
    for (const [row, column] of this.studio.state.get("from") ? [] : this.painted.map((pair) => pair.split(".").map(Number)))
      ctx.strokeRect(this.edge + column * this.side + 2, this.edge + row * this.side + 2, this.side - gap - 4, this.side - gap - 4);
    if (document.activeElement === this.box) ctx.strokeRect(this.edge + this.cell.column * this.side, this.edge + this.cell.row * this.side, this.side - gap, this.side - gap);
  }

  figure() {
    if (!this.answer) return null;
    const { rows, columns, values, code, name, text } = this.answer;
    return { name: "mask", title: name, canvas: this.canvas, data: { code, name, rows: Array.from({ length: rows }, (_, row) => [...values.slice(row * columns, (row + 1) * columns)].map((value) => value > 0)) },
      tables: () => [make("pre", {}, text)] };
  }

  resize() { if (this.answer) this.draw(); }
}

export default { name: "masks", make: (studio) => new Masks(studio) };
