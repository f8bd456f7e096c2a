// Positions: what the position modules of the model compute, or schemes with numbers of one's own.
import { matrix } from "../api.js";
import { curves, legend, pixels } from "../charts.js";
import { fillMenu, folded, make, menu, number, numberField, table } from "../dom.js";
import { t } from "../i18n.js";

const OWN = { sinusoidal: ["width", "base"], rotary: ["width", "base", "factor"], alibi: ["heads"] };
const RANGES = { length: { min: 2, max: 512 }, width: { min: 2, max: 1024 }, heads: { min: 2, max: 64 }, base: { min: 2, step: "any" }, factor: { min: 1, max: 1000, step: "any" } };
const USUAL = { length: 64, width: 64, heads: 8, base: 10000, factor: 1 };

class Positions {
  constructor(studio) {
    this.studio = studio;
    this.schemes = menu(t("positions.scheme"), [], "", (scheme) => studio.state.set({ scheme }), { id: "scheme" });
    this.fields = make("span", { class: "controls" });
    this.canvas = make("canvas", { class: "pixels", role: "img" });
    this.caption = make("p", { id: "caption", role: "status" });
    this.plot = make("div", { class: "window", tabindex: 0, role: "group", "aria-label": t("positions.curves") });
    this.matrixTable = folded(t("positions.matrix_table"), () => this.numbers());
    this.curveTable = folded(t("positions.curve_table"), () => this.curveNumbers());
    this.element = make("div", {}, make("div", { class: "controls" }, this.schemes, this.fields), this.caption,
      make("section", { class: "panel", "aria-label": t("positions.matrix") }, make("h2", {}, t("positions.matrix")), this.canvas, this.matrixTable),
      make("section", { class: "panel", "aria-label": t("positions.curves") }, make("h2", {}, t("positions.curves")), this.about = make("p", { class: "muted" }), this.plot, this.curveTable));
  }

  async update(trace, changed, current) {
    const { state, model, card } = this.studio, none = card.positions.filter((name) => name !== "none").length === 0;
    const scheme = state.get("scheme") || (none ? "sinusoidal" : "0"), names = ["length", ...(OWN[scheme] ?? [])];
    const value = (name) => (/^\d+(\.\d+)?$/.test(state.get(`p_${name}`)) ? Number(state.get(`p_${name}`)) : USUAL[name]);
    const answer = await matrix("positions", { model, scheme, ...Object.fromEntries(names.map((name) => [name, value(name)])) });
    if (!current()) return;
    this.answer = answer;
    fillMenu(this.schemes.querySelector("select"), [...answer.schemes.map((name, at) => [at, t("positions.of_model", { name })]), ...Object.keys(OWN).map((name) => [name, t("positions.own", { name })])], scheme);
    if (!this.fields.contains(document.activeElement) || changed.has("scheme"))
      this.fields.replaceChildren(...names.map((name) => numberField(t(`positions.${name}`), value(name), RANGES[name], (given) => state.set({ [`p_${name}`]: given }))));
    const top = pixels(this.canvas, answer), side = (name) => t(`positions.side.${name}`);
    this.caption.textContent = t("positions.caption", { module: answer.module, rows: `${answer.rows} × ${side(answer.names.rows)}`, columns: `${answer.columns} × ${side(answer.names.columns)}`, top: number(top, 4) });
    this.canvas.setAttribute("aria-label", this.caption.textContent);
    this.about.textContent = t({ Sinusoidal: "positions.dot", Learned: "positions.dot", Rotary: "positions.turned", Shaw: "positions.norm", Disentangled: "positions.norm" }[answer.module] ?? "positions.added");
    const series = this.series();
    this.plot.replaceChildren(this.picture = curves(this.about.textContent, series, { first: answer.first, across: side(answer.names.across) }),
      series.length > 1 ? legend(series.map(([name]) => name)) : "");
    this.matrixTable.renew();
    this.curveTable.renew();
  }

  series() {
    const { curves: rows } = this.answer;
    return rows.map((values, at) => [rows.length > 1 ? t("heads.one", { head: at }) : this.answer.module, values]);
  }

  numbers() {
    const { rows, columns, values, first_row: first, names } = this.answer, side = t(`positions.side.${names.rows}`), shown = Math.min(rows, 512);
    return table(this.caption.textContent, [side, ...Array.from({ length: Math.min(columns, 128) }, (_, at) => String(names.columns === "distance" ? at + this.answer.first : at))],
      Array.from({ length: shown }, (_, row) => [String(first + row), ...Array.from({ length: Math.min(columns, 128) }, (_, at) => number(values[row * columns + at], 6))]));
  }

  curveNumbers() {
    const series = this.series(), { first, names } = this.answer;
    return table(this.about.textContent, [t(`positions.side.${names.across}`), ...series.map(([name]) => name)],
      series[0][1].map((_, at) => [String(first + at), ...series.map(([, values]) => number(values[at], 6))]));
  }

  figure() {
    if (!this.picture) return null;
    const { curves: rows, first, module } = this.answer;
    return { name: "positions", title: this.caption.textContent, svg: this.picture, data: { module, first, curves: rows }, tables: () => [this.curveNumbers()] };
  }
}

export default { name: "positions", make: (studio) => new Positions(studio) };
