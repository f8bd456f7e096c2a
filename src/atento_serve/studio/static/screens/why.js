// Why: how much each word adds to the number that is predicted, by four methods, on one scale.
import { call } from "../api.js";
import { barFigure, maskedWords, points, tokensOfWords, wordSpans } from "../bars.js";
import { button, folded, make, menu, number, table } from "../dom.js";
import { refused, t } from "../i18n.js";
import { beside, secondText } from "../second_text.js";

const METHODS = ["integrated-gradients", "gradient-input", "rollout", "leave-out"];

class Why {
  constructor(studio) {
    this.studio = studio;
    this.method = menu(t("why.method"), METHODS.map((name) => [name, t(`why.${name}`)]), "", (method) => studio.state.set({ method }), { id: "method" });
    this.second = secondText(studio, t("why.second"), () => this.name);
    this.said = make("p", { id: "said", role: "status" });
    this.parts = make("div", { class: "cards", role: "group", "aria-label": t("why.parts") });
    this.list = make("ol", { class: "links why", "aria-label": t("why.words") });
    this.equivalent = folded(t("why.as_table"), () => this.table());
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("screen.why") }, make("div", { class: "controls" }, this.method), this.second.element,
      this.said, this.parts, this.list), this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, input } = this.studio, method = METHODS.includes(state.get("method")) ? state.get("method") : METHODS[0];
    this.method.querySelector("select").value = method;
    const kind = beside(this.studio.card), second = kind ? state.get(this.name) : "";
    this.second.show();
    this.second.element.hidden = !kind;
    if (kind && kind !== "optional" && !second.trim()) return this.ask(kind);
    const { text } = input, all = wordSpans(text), spans = this.studio.reason("fill") ? [] : maskedWords(state, all).map((at) => all[at].map((place) => points(text, place)));
    const found = await call("explain", { ...input, method, second, ...(spans.length ? { spans } : {}) });
    if (!current()) return;
    this.found = found;
    const at = state.get("part") === "" ? -1 : state.number("part"), part = found.parts[at] ?? found;
    this.part = part;
    this.parts.replaceChildren(...(found.parts.length ? [["", t("why.whole")], ...found.parts.map((one, place) => [String(place), one.target])] : []).map(([place, name]) =>
      button(name, () => state.set({ part: place }), { class: "card", "aria-pressed": String(place === String(at < 0 ? "" : at)) })));
    this.said.textContent = t("why.said", { target: part.target, quantity: refused(found.quantity), value: number(part.value), total: number(part.total) }) +
      (found.baseline ? ` ${t("why.baseline", { baseline: refused(found.baseline) })}` : "");
    const most = Math.max(...part.scores.map(Math.abs)) || 1;
    const sides = found.sides.map((side) => ({ second: "", question: "", output: "output" }[side] ?? "source")), places = tokensOfWords(trace, found.words, sides);
    this.list.replaceChildren(...found.words.map((word, place) => {
      const score = part.scores[place], fill = make("i", { class: score < 0 ? "lowers" : "raises" });
      fill.style.setProperty("width", `${50 * Math.abs(score) / most}%`);
      return make("li", { class: found.special[place] ? "special" : null, ...places[place] }, make("span", { class: "name" }, word),
        make("span", { class: "track both", "aria-hidden": "true" }, fill), make("span", { class: "value" }, `${score > 0 ? "+" : ""}${number(score)}`));
    }));
    this.equivalent.renew();
  }

  // The part of the address that has the second text.
  get name() { return beside(this.studio.card) === "question" ? "question" : "second"; }

  // Asks for the second text, without which there is nothing to explain.
  ask(kind) {
    this.found = { words: [], parts: [], sides: [] };
    this.part = { scores: [] };
    this.said.textContent = t(kind === "question" ? "answer.ask" : "why.ask");
    for (const list of [this.parts, this.list]) list.replaceChildren();
    this.equivalent.renew();
  }

  table() {
    return table(t("why.as_table"), [t("labels.word"), t("why.score")], this.found.words.map((word, at) => [word, this.part.scores[at].toFixed(6)]));
  }

  figure() {
    const most = Math.max(...this.part.scores.map(Math.abs)) || 1;
    const rows = this.found.words.map((word, at) => [word, this.part.scores[at] / most, number(this.part.scores[at])]);
    return barFigure("why", this.said.textContent, rows, this.found, () => [this.table()]);
  }
}

export default { name: "why", text: true, make: (studio) => new Why(studio) };
