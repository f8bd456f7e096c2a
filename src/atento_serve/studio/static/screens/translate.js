// Translate: an output word by word: what it reads in the source, what was as probable there, and the output that begins otherwise.
import { call, matrix } from "../api.js";
import { barFigure, bars, percent, tokensAt } from "../bars.js";
import { button, folded, make, number, table } from "../dom.js";
import { t } from "../i18n.js";

class Translate {
  constructor(studio) {
    this.studio = studio;
    this.source = make("p", { class: "words", id: "source-words" });
    this.output = make("p", { class: "words", id: "output-words" });
    this.list = make("div", {});
    this.reset = button(t("translate.reset"), () => studio.state.set({ target: "", prefix: null, at: null }), { id: "reset" });
    this.note = make("p", { class: "muted", role: "status" });
    this.equivalent = folded(t("translate.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "panels" }, make("section", { class: "panel", "aria-label": t("screen.translate") },
      make("h2", {}, t("side.source")), this.source, make("h2", {}, t("side.output")), this.output, this.note, this.reset),
    make("aside", { class: "panel", "aria-label": t("translate.alternatives") }, make("h2", {}, t("translate.alternatives")), this.list)), this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, input } = this.studio;
    if (this.trace !== trace) {
      const fields = { ...input, target: trace.target };
      const kind = trace.kinds.cross, layer = kind ? kind.heads.length - 1 : 0;
      const [weights, scores] = await Promise.all([
        kind ? matrix("weights", { ...fields, kind: "cross", layer, head: "mean", words: true, format: "f32" }) : null,
        call("alternatives", fields)]);
      if (!current()) return;
      Object.assign(this, { trace, weights, scores });
    }
    const words = trace.sides.output.words, at = Math.min(state.number("at"), words.length - 1);
    this.source.replaceChildren(...trace.sides.source.words.map(([label, start, end]) => make("span", { class: "word", ...tokensAt("source", start, end) }, label)));
    this.output.replaceChildren(...words.map(([label, start, end], number) => button(label, () => state.set({ at: number }), { class: "word", "aria-pressed": String(number === at), ...tokensAt("output", start, end) })));
    [...this.output.children].forEach((word, number) => {
      word.addEventListener("pointerenter", () => this.light(number));
      word.addEventListener("pointerleave", () => this.light(at));
      word.addEventListener("focus", () => this.light(number));
    });
    this.light(at);
    this.note.textContent = `${t("translate.total", { total: number(this.scores.total) })} ${state.get("prefix") ? t("translate.forced", { prefix: state.get("prefix") }) : ""}`;
    this.reset.hidden = !state.get("target");
    const place = words[at]?.[1] ?? 0, row = this.scores.top[place] ?? [];
    this.list.replaceChildren(bars(t("translate.alternatives"), row.map(([token, logProb, text]) =>
      [token, Math.exp(logProb), percent(Math.exp(logProb)), () => this.force(text)])));
    this.equivalent.renew();
  }

  // Shades the words of the source by how much an output word reads of them.
  light(word) {
    if (!this.weights) return;
    const columns = this.weights.columns, row = this.weights.values.slice(word * columns, (word + 1) * columns);
    [...this.source.children].forEach((one, at) => {
      one.style.setProperty("--share", row[at]);
      one.title = percent(row[at]);
    });
  }

  // The output that begins with a text.
  async force(prefix) {
    try {
      const { output } = await call("forced", { model: this.studio.model, text: this.studio.state.get("text"), prefix });
      this.studio.state.set({ target: output, prefix, pin: "" });
    } catch (error) {
      this.studio.refuse(error);
    }
  }

  table() {
    const { tokens, log_probs: logProbs, top } = this.scores;
    return table(t("translate.as_table"), [t("next.token"), "log p", t("translate.alternatives")], tokens.map((token, at) =>
      [token, logProbs[at].toFixed(6), top[at].map(([name, value]) => `${name} ${Math.exp(value).toFixed(4)}`).join("  ")]));
  }

  figure() {
    const { tokens, log_probs: logProbs } = this.scores;
    const rows = tokens.map((token, at) => [token, Math.exp(logProbs[at]), percent(Math.exp(logProbs[at]))]);
    return barFigure("translate", t("screen.translate"), rows, this.scores, () => [this.table()]);
  }
}

export default { name: "translate", text: true, weights: true, make: (studio) => new Translate(studio) };
