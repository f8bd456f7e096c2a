// Fill: press a word to mask it; what the model expects there.
import { call } from "../api.js";
import { barFigure, bars, maskedWords, percent, points, toggleMask, tokensOf, wordSpans } from "../bars.js";
import { button, folded, make, numberField, table } from "../dom.js";
import { t } from "../i18n.js";

class Fill {
  constructor(studio) {
    this.studio = studio;
    this.words = make("p", { class: "words", id: "fill-words", role: "group", "aria-label": t("fill.press") });
    this.top = numberField(t("fill.top"), 8, { min: 1, max: 50 }, (top) => studio.state.set({ top }));
    this.masked = make("p", { class: "muted", id: "masked" });
    this.list = make("div", {});
    this.equivalent = folded(t("fill.as_table"), () => this.table());
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("fill.press") }, make("p", { class: "muted" }, t("fill.press")), this.words,
      make("div", { class: "controls" }, this.top), this.masked, this.list), this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, model } = this.studio, text = state.get("text"), spans = wordSpans(text);
    const wanted = maskedWords(state, spans);
    this.words.replaceChildren(...spans.map(([start, end], at) => button(text.slice(start, end), () => toggleMask(state, wanted, at),
      { class: "word", "aria-pressed": String(wanted.includes(at)), ...tokensOf(trace, points(text, start), points(text, end)) })));
    this.top.querySelector("input").value = state.get("top") || 8;
    this.found = { candidates: [] };
    if (wanted.length) {
      const found = await call("fill", { model, text, spans: wanted.map((at) => spans[at].map((place) => points(text, place))), top: Number(state.get("top") || 8) });
      if (!current()) return;
      this.found = found;
    }
    const { candidates, masked } = this.found, most = candidates[0]?.[1] || 1;
    this.masked.textContent = masked ?? t("fill.nothing");
    this.list.replaceChildren(bars(t("fill.candidates"), candidates.map(([token, probability, filled]) =>
      [token, probability / most, percent(probability), () => state.set({ text: filled, pin: "" })])));
    this.equivalent.renew();
  }

  table() {
    return table(t("fill.as_table"), [t("next.token"), "p", t("fill.text")], this.found.candidates.map(([token, p, text]) => [token, p.toFixed(6), text]));
  }

  figure() {
    const rows = this.found.candidates.map(([token, p]) => [token, p / this.found.candidates[0][1], percent(p)]);
    return barFigure("fill", this.masked.textContent, rows, this.found, () => [this.table()]);
  }
}

export default { name: "fill", text: true, make: (studio) => new Fill(studio) };
