// Classify and tag: the labels of a text or of a pair, and those of its words.
import { call } from "../api.js";
import { barFigure, bars, markedText, percent, tokensOf } from "../bars.js";
import { folded, make, table } from "../dom.js";
import { t } from "../i18n.js";
import { beside, secondText } from "../second_text.js";

class Labels {
  constructor(studio) {
    this.studio = studio;
    this.second = secondText(studio, t("labels.second"));
    this.asks = make("p", { class: "muted", role: "status" });
    this.list = make("div", {});
    this.text = make("div", {});
    this.equivalent = folded(t("labels.as_table"), () => this.table());
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("screen.labels") }, this.second.element, this.asks, this.list, this.text), this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, model, card } = this.studio, text = state.get("text"), kind = beside(card), second = kind ? state.get("second") : "";
    this.second.show();
    this.second.element.hidden = !kind;
    const asks = kind === "second" && !second.trim();
    const found = asks ? { words: [] } : await call("labels", { model, text, second });
    if (!current()) return;
    this.found = found;
    this.asks.textContent = asks ? t("why.ask") : "";
    this.list.replaceChildren(...(found.labels ? [bars(t("labels.labels"), found.labels.map(([name, p]) => [name, p, percent(p)]))] : []));
    this.text.replaceChildren(...(found.entities ? [markedText(text, found.entities.map(([label, , start, end, p]) => [start, end, label, percent(p), tokensOf(trace, start, end)]))] : []));
    this.equivalent.renew();
  }

  table() {
    const { labels, words } = this.found;
    if (!words) return table(t("labels.as_table"), [t("labels.label"), "p"], labels.map(([name, p]) => [name, p.toFixed(6)]));
    return table(t("labels.as_table"), [t("labels.word"), t("labels.label"), t("labels.from"), t("labels.to"), "p"],
      words.map(([label, word, start, end, p]) => [word, label, String(start), String(end), p.toFixed(6)]));
  }

  figure() {
    const rows = (this.found.labels ?? this.found.words.map(([label, word,,, p]) => [`${word} ${label}`, p])).map(([name, p]) => [name, p, percent(p)]);
    return barFigure("labels", t("screen.labels"), rows, this.found, () => [this.table()]);
  }
}

export default { name: "labels", text: true, make: (studio) => new Labels(studio) };
