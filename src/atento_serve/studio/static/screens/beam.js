// Beam tree: the candidates of each step, what became of them, and the winning path in the first row.
import { call } from "../api.js";
import { button, folded, make, number, numberField, svg, table } from "../dom.js";
import { t } from "../i18n.js";

const COLUMN = 132, ROW = 26, TOP = 26, CUT = 3;  // pixels; how many cut candidates a step shows

class BeamTree {
  constructor(studio) {
    this.studio = studio;
    const set = (name) => (value) => studio.state.set({ [name]: value });
    this.beam = numberField(t("beam.width"), 4, { min: 1, max: 16 }, set("beam"));
    this.penalty = numberField(t("beam.penalty"), 1, { min: 0, max: 3, step: 0.1 }, set("penalty"));
    this.ngrams = numberField(t("beam.ngrams"), 0, { min: 0, max: 8 }, set("ngrams"));
    this.step = make("input", { type: "range", id: "step", min: 1, on: { input: () => studio.state.set({ step: this.step.value }, { replace: true }) } });
    this.player = button(t("next.play"), () => this.play(), { id: "play" });
    this.window = make("div", { class: "scroll tree", tabindex: 0, role: "group", "aria-label": t("screen.beam") });
    this.about = make("p", { class: "tip", role: "status" });
    this.found = make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": t("beam.found") });
    this.equivalent = folded(t("beam.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "controls" }, this.beam, this.penalty, this.ngrams,
      make("label", { class: "field" }, t("beam.step"), " ", this.step), this.player),
    make("section", { class: "panel", "aria-label": t("beam.tree") }, this.window, this.about),
    this.found, this.equivalent);
  }

  async update(trace, changed, current) {
    const { state, model } = this.studio;
    const fields = { model, text: state.get("text"), beam: Number(state.get("beam") || 4), length_penalty: Number(state.get("penalty") || 1),
      no_repeat_ngrams: Number(state.get("ngrams") || 0) };
    for (const [field, value] of [[this.beam, fields.beam], [this.penalty, fields.length_penalty], [this.ngrams, fields.no_repeat_ngrams]])
      field.querySelector("input").value = value;
    const asked = JSON.stringify(fields);
    if (this.asked !== asked) {
      const tree = await call("search", fields);
      if (!current()) return;
      Object.assign(this, { tree, asked });
    }
    this.step.max = this.tree.steps;
    const shown = Math.min(Number(state.get("step") || this.tree.steps), this.tree.steps);
    this.step.value = shown;
    this.draw(shown);
    this.found.replaceChildren(this.outputs());
    this.equivalent.renew();
  }

  // The numbers of the nodes of the best output, from its end.
  winning() {
    const path = new Set();
    for (let node = this.tree.found[0]?.node ?? -1; node >= 0; node = this.tree.nodes[node][0]) path.add(node);
    return path;
  }

  draw(steps) {
    const win = this.winning(), placed = new Map(), alive = (fate) => ["kept", "finished"].includes(fate) || fate.startsWith("cut off");
    let rows = 1;
    for (let step = 0; step < steps; step += 1) {
      const here = this.tree.nodes.map((node, at) => [node, at]).filter(([node]) => node[1] === step).sort((a, b) => b[0][4] - a[0][4]);
      const first = here.filter(([, at]) => win.has(at)), live = here.filter(([node, at]) => alive(node[5]) && !win.has(at));
      const cut = here.filter(([node]) => !alive(node[5])).slice(0, CUT);
      const order = [...(first.length ? first : [null]), ...live, ...cut];
      order.forEach((entry, row) => { if (entry) placed.set(entry[1], [step, row]); });
      rows = Math.max(rows, order.length);
    }
    const place = (at) => [8 + COLUMN * placed.get(at)[0], TOP + ROW * placed.get(at)[1]];
    const lines = [], boxes = [];
    for (const at of placed.keys()) {
      const [parent, , token, logProb, total, fate] = this.tree.nodes[at], [x, y] = place(at), on = win.has(at);
      if (placed.has(parent)) {
        const [px, py] = place(parent);
        lines.push(svg("path", { d: `M${px + COLUMN - 22} ${py}C${px + COLUMN - 8} ${py} ${x - 14} ${y} ${x} ${y}`, class: on ? "edge win" : "edge",
          "stroke-width": 0.8 + 4 * Math.exp(logProb) }));
      }
      const about = t("beam.node", { token, p: Math.exp(logProb).toFixed(4), total: number(total), fate });
      boxes.push(svg("g", { class: `node${on ? " win" : ""}${alive(fate) ? "" : " cut"}`, tabindex: 0, role: "img", "aria-label": about, "data-fate": fate, on: {
        pointerenter: () => { this.about.textContent = about; }, focus: () => { this.about.textContent = about; } } },
      svg("rect", { x, y: y - 10, width: COLUMN - 22, height: 20, rx: 4 }),
      svg("text", { x: x + 5, y: y + 4 }, `${token.slice(0, 10)} ${Math.exp(logProb).toFixed(2)}`)));
    }
    const width = 16 + COLUMN * Math.max(steps, 1), height = TOP + ROW * rows;
    this.drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "beam", role: "group", "aria-label": t("beam.tree") }, lines, boxes);
    this.window.replaceChildren(this.drawing);
  }

  outputs() {
    return table(t("beam.found"), [t("beam.output"), t("beam.score"), "log p", t("beam.length")],
      this.tree.found.map((one) => [one.text, one.score.toFixed(6), one.log_prob.toFixed(6), String(one.length)]));
  }

  table() {
    return table(t("beam.as_table"), ["#", t("beam.step"), t("next.token"), "log p", t("beam.sum"), t("beam.fate"), t("beam.parent")],
      this.tree.nodes.map(([parent, step, token, logProb, total, fate], at) =>
        [String(at), String(step + 1), token, number(logProb, 6), number(total, 6), fate, parent < 0 ? "" : String(parent)]));
  }

  play() {
    clearInterval(this.timer);
    let step = 1;
    const { state } = this.studio;
    state.set({ step }, { replace: true });
    this.timer = setInterval(() => {
      step += 1;
      state.set({ step }, { replace: true });
      if (step >= this.tree.steps) clearInterval(this.timer);
    }, matchMedia("(prefers-reduced-motion: reduce)").matches ? 1500 : 600);
  }

  figure() { return { name: "beam", title: t("beam.tree"), svg: this.drawing, data: this.tree, tables: () => [this.outputs(), this.table()] }; }

  close() { clearInterval(this.timer); }
}

export default { name: "beam", text: true, make: (studio) => new BeamTree(studio) };
