// Answer: the span of the text that answers a question, and the others that were considered.
import { call } from "../api.js";
import { barFigure, bars, markedText, percent, tokensOf } from "../bars.js";
import { folded, make, table } from "../dom.js";
import { t } from "../i18n.js";
import { secondText } from "../second_text.js";

class Answer {
  constructor(studio) {
    this.studio = studio;
    this.question = secondText(studio, t("answer.question"), () => "question");
    this.text = make("div", { id: "context" });
    this.list = make("div", {});
    this.equivalent = folded(t("answer.as_table"), () => this.table());
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("screen.answer") }, this.question.element, this.text, this.list), this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, model } = this.studio, text = state.get("text"), question = state.get("question");
    this.question.show();
    const { answers } = question.trim() ? await call("answers", { model, text, question }) : { answers: [] };
    if (!current()) return;
    this.answers = answers;
    const at = Math.min(state.number("at"), answers.length - 1), chosen = answers[at];
    this.text.replaceChildren(markedText(text, chosen && chosen[0] ? [[chosen[1], chosen[2], "", percent(chosen[3]), tokensOf(trace, chosen[1], chosen[2])]] : []),
      make("p", { class: "muted" }, question.trim() ? "" : t("answer.ask")));
    this.list.replaceChildren(bars(t("answer.answers"), answers.map(([name, start, end, p], number) => [name || t("answer.none"), p, percent(p), () => state.set({ at: number }), name ? tokensOf(trace, start, end) : {}])));
    this.equivalent.renew();
  }

  table() {
    return table(t("answer.as_table"), [t("answer.span"), t("labels.from"), t("labels.to"), "p"],
      this.answers.map(([text, start, end, p]) => [text || t("answer.none"), String(start), String(end), p.toFixed(6)]));
  }

  figure() {
    const rows = this.answers.map(([text,,, p]) => [text || t("answer.none"), p, percent(p)]);
    return barFigure("answer", this.studio.state.get("question"), rows, this.answers, () => [this.table()]);
  }
}

export default { name: "answer", text: true, make: (studio) => new Answer(studio) };
