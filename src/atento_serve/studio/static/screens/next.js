// Next token: its distribution before and after each filter, moved by hand; draw a token, and go on.
import { call } from "../api.js";
import { barFigure, bars, percent, slider } from "../bars.js";
import { button, folded, make, number, numberField, table } from "../dom.js";
import { t } from "../i18n.js";

const FILTERS = { temperature: { min: 0.05, max: 2, step: 0.05, off: 1 }, top_k: { min: 0, max: 40, step: 1, off: 0 },
  top_p: { min: 0.05, max: 1, step: 0.05, off: 1 }, min_p: { min: 0, max: 1, step: 0.05, off: 0 }, typical_p: { min: 0.05, max: 1, step: 0.05, off: 1 } };

class Next {
  constructor(studio) {
    this.studio = studio;
    this.sliders = Object.fromEntries(Object.entries(FILTERS).map(([name, range]) => [name, slider(studio, name, t(`next.${name}`), range)]));
    this.seed = numberField(t("next.seed"), 1, { min: 0, max: 1e9 }, (seed) => this.studio.state.set({ seed }));
    this.draw = button(t("next.draw"), () => this.take(this.found.drawn.written), { id: "draw" });
    this.player = button(t("next.play"), () => this.play(), { id: "play", "aria-pressed": "false" });
    this.undo = button(t("next.clear"), () => studio.state.set({ written: null, seed: null }), { id: "clear" });
    this.written = make("p", { class: "written", id: "written" });
    this.list = make("div", {});
    this.stages = make("div", {});
    this.strip = make("ol", { class: "chips", tabindex: 0, "aria-label": t("next.surprisal") });
    this.equivalent = folded(t("next.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "controls" }, this.draw, this.player, this.undo, this.written),
      make("div", { class: "panels" }, make("section", { class: "panel", "aria-label": t("next.most") }, make("h2", {}, t("next.most")), this.list, this.equivalent),
        make("aside", { class: "panel", "aria-label": t("next.stages") }, make("h2", {}, t("next.stages")), make("div", { class: "controls sliders" }, Object.values(this.sliders).map((one) => one.element), this.seed), this.stages)),
      make("section", { class: "panel", "aria-label": t("next.surprisal") }, make("h2", {}, t("next.surprisal")), this.strip));
  }

  get fields() {
    const { state, model } = this.studio;
    const values = Object.fromEntries(Object.entries(this.sliders).map(([name, one]) => [name, one.value]));
    return { model, text: state.get("text"), written: state.get("written"), seed: this.chosenSeed, ...values };
  }

  // That of the address, else that of the model or of the command line.
  get chosenSeed() { return Number(this.studio.state.get("seed") || this.studio.card.seed); }

  async update(trace, changed, current) {
    const { state } = this.studio;
    Object.values(this.sliders).forEach((one) => one.show());
    this.seed.querySelector("input").value = this.chosenSeed;
    this.written.replaceChildren(make("span", { class: "muted" }, state.get("text")), " ", make("strong", {}, state.get("written")));
    const fields = this.fields, found = await call("next", fields);
    if (!current()) return;
    this.found = found;
    const last = found.stages.at(-1).probabilities, first = found.stages[0].probabilities;
    const top = Math.max(...first, ...last);
    this.list.replaceChildren(bars(t("next.most"), found.tokens.slice(0, 20).map((token, at) =>
      [token, last[at] / top, percent(last[at]), () => this.take(found.written[at]), last[at] > 0 ? null : { class: "cut" }])));
    this.stages.replaceChildren(table(t("next.stages"), [t("next.filter"), t("next.entropy"), t("next.left")], found.stages.map((stage) =>
      [stage.name === "model" ? t("next.model") : stage.name, number(stage.entropy), String(stage.left)])),
    make("p", { class: "muted" }, t("next.would", { token: found.drawn.token })));
    this.draw.disabled = this.player.disabled = found.ended;
    this.equivalent.renew();
    const strip = await call("surprisal", { model: fields.model, text: fields.text, written: fields.written });
    if (!current()) return;
    this.strip.replaceChildren(...strip.tokens.map((token, at) => make("li", {}, make("span", { class: "chip plain" }, token), make("small", {}, number(strip.nats[at], 2)))));
    if (this.playing && !found.ended) this.timer = setTimeout(() => this.take(found.drawn.written), 500);
    else this.stop();
  }

  // Goes on from what the backend says is written then.
  take(written) {
    this.studio.state.set({ written, seed: this.chosenSeed + 1 });
  }

  play() {
    this.playing = !this.playing;
    this.player.setAttribute("aria-pressed", String(this.playing));
    if (this.playing) this.take(this.found.drawn.written);
    else this.stop();
  }

  stop() {
    clearTimeout(this.timer);
    this.playing = false;
    this.player.setAttribute("aria-pressed", "false");
  }

  table() {
    const { stages, tokens } = this.found;
    return table(t("next.as_table"), [t("next.token"), ...stages.map((stage) => (stage.name === "model" ? t("next.model") : stage.name))],
      tokens.map((token, at) => [token, ...stages.map((stage) => stage.probabilities[at].toFixed(6))]));
  }

  figure() {
    const last = this.found.stages.at(-1).probabilities, top = Math.max(...last);
    const rows = this.found.tokens.slice(0, 20).map((token, at) => [token, last[at] / top, percent(last[at])]);
    return barFigure("next-token", t("screen.next"), rows, this.found, () => [this.table()]);
  }

  close() { this.stop(); }
}

export default { name: "next", text: true, make: (studio) => new Next(studio) };
