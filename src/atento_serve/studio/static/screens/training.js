// Training: the curves and samples of runs while they are trained, as the service sends what is new in their journals.
import { listen } from "../api.js";
import { slider } from "../bars.js";
import { plot } from "../charts.js";
import { button, check, folded, make, menu, numberField, svg, table } from "../dom.js";
import { has, refused, t, whole } from "../i18n.js";
import { css, headColour } from "../maps.js";
import { svgText } from "../save.js";

const AXES = ["steps", "tokens", "time"], MOST = 16, TOGETHER = { "train.loss": "loss", "valid.nll": "loss" };  // curves of one drawing

class Training {
  constructor(studio) {
    this.studio = studio;
    this.runs = new Map();  // what is known of each run that is shown: { curves, samples, mark, ... }
    this.names = [];
    this.errors = {};  // why a run cannot be read, by its name
    const set = (changes) => studio.state.set(changes);
    this.choice = make("fieldset", { class: "checks", id: "runs" });
    this.line = make("p", { class: "muted", id: "connection", role: "status" });
    this.flags = make("ul", { class: "flags" });
    this.axis = menu(t("training.axis"), AXES.map((one) => [one, t(`training.${one}`)]), "", (x) => set({ x }), { id: "x" });
    this.log = check(t("training.log"), false, (log) => set({ log }), { id: "log" });
    this.smooth = slider(studio, "smooth", t("training.smooth"), { min: 0, max: 0.98, step: 0.02, off: 0 });
    this.from = numberField(t("training.from"), "", { step: "any", max: 1e15 }, (from) => set({ from }));
    this.to = numberField(t("training.to"), "", { step: "any", max: 1e15 }, (to) => set({ to }));
    this.panels = make("div", { class: "curves" });
    this.samples = make("section", { class: "panel", "aria-label": t("training.samples") });
    this.tables = make("div", {});
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("training.runs") }, this.choice, make("div", { class: "controls" }, this.axis, this.log, this.smooth.element,
      this.from, this.to, button(t("training.all"), () => set({ from: null, to: null }), { id: "all" })), this.line, this.flags), this.panels, this.samples, this.tables);
  }

  // The runs that are shown: the chosen ones, else the first.
  get chosen() {
    const given = this.studio.state.get("runs");
    return (given ? given.split("\n").filter((name) => name !== "-") : this.first ?? []).slice(0, MOST);
  }

  async update(trace, changed, current) {
    const { state } = this.studio;
    this.axis.querySelector("select").value = this.x;
    this.log.querySelector("input").checked = state.on("log");
    this.smooth.show();
    for (const name of ["from", "to"]) if (document.activeElement !== this[name].querySelector("input")) this[name].querySelector("input").value = state.get(name);
    this.follow();
    await this.told;
    if (current()) this.draw();
  }

  get x() { return AXES.includes(this.studio.state.get("x")) ? this.studio.state.get("x") : "steps"; }

  // Listens for the runs that are shown, from where each of them is known.
  follow() {
    const wanted = JSON.stringify(this.chosen);
    if (wanted === this.followed) return;
    this.followed = wanted;
    this.ending?.abort();
    this.ending = new AbortController();
    for (const name of this.runs.keys()) if (!this.chosen.includes(name)) this.runs.delete(name);
    const path = `runs?${new URLSearchParams(this.chosen.map((name) => ["run", name]))}`, last = this.chosen.map((name) => this.runs.get(name)?.mark ?? "").join(",");
    const { signal } = this.ending;
    this.told = new Promise((tell) => {  // once there is something to draw, or nothing to be had
      const broken = (is) => {
        this.line.textContent = t(is ? "training.broken" : "training.live");
        if (is) tell();
      };
      const take = (event) => {
        if (signal.aborted) return;
        this.take(event);
        if (event.error || this.chosen.every((name) => this.runs.has(name) || name in this.errors)) tell();
      };
      listen(path, last, { signal, broken, take }).catch((error) => { if (!signal.aborted) this.studio.refuse(error); }).finally(tell);
    });
  }

  take({ runs, changes = {}, error, errors }) {
    if (errors) {
      this.errors = errors;
      this.studio.say(Object.values(errors).map(refused).join(" "));
    }
    if (runs) this.names = runs;
    if (this.names.length) this.first ??= this.names.slice(0, 1);
    if (error !== undefined) this.failure = error && refused(error);
    for (const [name, change] of Object.entries(changes)) {
      const before = (change.reset ? null : this.runs.get(name)) ?? { curves: {}, samples: [] }, curves = { ...before.curves };
      for (const [key, points] of Object.entries(change.curves)) curves[key] = [...(curves[key] ?? []), ...points];
      this.runs.set(name, { ...change, curves, samples: [...before.samples, ...change.samples].slice(-300) });
    }
    this.follow();  // once the runs are known
    this.draw();
  }

  draw() {
    const { state } = this.studio, chosen = this.chosen, colour = (name) => Math.max(0, this.names.indexOf(name)) % 12;
    const boxes = [...new Set([...this.names, ...chosen])].map((name) => {
      const made = check(name, chosen.includes(name), (on) => state.set({ runs: this.names.filter((one) => (one === name ? on : chosen.includes(one))).join("\n") || "-" })), sign = make("i");
      sign.style.setProperty("background", headColour(colour(name)));
      made.append(sign);
      return made;
    });
    if (!this.choice.contains(document.activeElement)) this.choice.replaceChildren(make("legend", { class: "unseen" }, t("training.runs")), ...boxes);
    const shown = [...this.runs].filter(([name]) => chosen.includes(name));
    this.flags.replaceChildren(...[this.failure, ...chosen.map((name) => this.errors[name]).filter(Boolean).map(refused), ...shown.flatMap(([name, { damaged, every, step, about, ended }]) => [
      t(ended ? "training.ended" : about.steps ? "training.of" : "training.at", { name, step: whole(step), steps: whole(about.steps ?? 0) }),
      every > 1 ? t("training.every", { name, every: whole(every) }) : null, damaged ? t("training.damaged", { name, count: whole(damaged) }) : null])].filter(Boolean).map((text) => make("li", {}, text)));
    const keys = [...new Set(shown.flatMap(([, { curves }]) => Object.keys(curves)))], titles = [...new Set(keys.map((key) => TOGETHER[key] ?? key))];
    this.drawn = titles.map((title) => [this.title(title), keys.filter((key) => (TOGETHER[key] ?? key) === title).flatMap((key) => shown.filter(([, { curves }]) => curves[key])
      .map(([name, run]) => ({ name: `${name}: ${this.title(key)}`, at: colour(name), points: this.placed(run, key), dashed: title === "loss" && key !== "train.loss" })))]);
    const range = [["from", -Infinity], ["to", Infinity]].map(([name, none]) => (state.get(name) === "" || Number.isNaN(Number(state.get(name))) ? none : Number(state.get(name))));
    this.charts = this.drawn.map(([title, series]) => this.zoomed(plot(title, this.smoothed(series), { across: t(`training.${this.x}`), log: state.on("log"), range, wide: innerWidth < 700 ? 340 : 560 })));
    this.panels.replaceChildren(...this.drawn.map(([title], at) => make("section", { class: "panel", "aria-label": title }, make("h2", {}, title), this.charts[at])));
    this.drawSamples(shown, colour);
    if (this.tables.children.length !== titles.length) this.tables.replaceChildren(...titles.map((_, at) => folded(`${t("training.as_table")}: ${this.drawn[at][0]}`, () => this.table(at))));
    for (const one of this.tables.children) one.renew();
  }

  title(key) {
    if (has(`training.curve.${key}`)) return t(`training.curve.${key}`);
    const [kind, ...name] = key.split(".");
    return `${t(`training.${kind === "valid" ? "validation" : "training"}`)}: ${name.join(".")}`;
  }

  // The points of a curve along the chosen axis; those whose place there is unknown are left out.
  placed({ curves, about }, key) {
    const place = { steps: ([step]) => step, tokens: ([step]) => step * about.batch_tokens, time: ([, , seconds]) => seconds ?? NaN }[this.x];
    return curves[key].map((point) => [place(point), point[1]]).filter(([x]) => Number.isFinite(x));
  }

  // With smoothing: the points themselves, faint, and their running mean, in which what is older weighs less and less.
  smoothed(series) {
    const keep = this.smooth.value;
    if (!(keep > 0)) return series;
    return series.flatMap((one) => {
      let sum = 0, weight = 0;
      const points = one.points.map(([x, y]) => {
        sum = keep * sum + (1 - keep) * y;
        weight = keep * weight + (1 - keep);
        return [x, sum / weight];
      });
      return [{ ...one, faint: true }, { ...one, points }];
    });
  }

  // A chart on which a range that is drawn with the pointer becomes the range that is shown.
  zoomed(chart) {
    let from = null;
    chart.addEventListener("pointerdown", (event) => { from = chart.value(event.clientX); });
    chart.addEventListener("pointerup", (event) => {
      const ends = [from, chart.value(event.clientX)].sort((a, b) => a - b).map((value) => Number(value.toPrecision(6)));
      if (from !== null && ends[0] < ends[1]) this.studio.state.set({ from: ends[0], to: ends[1] });
      from = null;
    });
    return chart;
  }

  drawSamples(shown, colour) {
    const rows = shown.flatMap(([name, { samples }]) => [...new Set(samples.map(({ number }) => number))].map((number) => {
      const own = samples.filter((one) => one.number === number), { input, reference } = own.at(-1), texts = own.slice(-6).reverse();
      const box = make("div", { class: "sample" }, make("p", { class: "muted" }, `${name} · ${input} → ${reference}`),
        make("ol", {}, texts.map(({ step, output }) => make("li", {}, make("small", {}, t("training.sample_at", { step: whole(step) })), " ", output))));
      box.style.setProperty("--run", headColour(colour(name)));
      return box;
    }));
    this.samples.hidden = !rows.length;
    this.samples.replaceChildren(make("h2", {}, t("training.samples")), ...rows);
  }

  table(at) {
    const [title, series] = this.drawn[at];
    return table(title, [t("training.curve"), t(`training.${this.x}`), t("training.value")], series.flatMap(({ name, points }) => points.map(([x, y]) => [name, String(x), String(y)])));
  }

  figure() {
    if (!this.charts?.length) return null;
    const wide = this.charts[0].viewBox.baseVal.width, words = `font-family="sans-serif" font-size="13" fill="${css("--ink")}"`, high = 330 * this.charts.length;
    const frame = new XMLSerializer().serializeToString(svg("rect", { width: wide, height: high, fill: css("--surface") }));
    const label = (text) => new XMLSerializer().serializeToString(document.createTextNode(text));
    const parts = this.charts.map((chart, at) => `<text x="10" y="${330 * at + 20}" ${words}>${label(this.drawn[at][0])}</text>${svgText(chart).replace("<svg", `<svg y="${330 * at + 28}"`)}`);
    return { name: "training", title: t("screen.training"), svgText: `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${high}" viewBox="0 0 ${wide} ${high}">${frame}${parts.join("")}</svg>`,
      data: Object.fromEntries([...this.runs].map(([name, { curves, samples, about }]) => [name, { about, curves, samples }])), tables: () => this.drawn.map((_, at) => this.table(at)) };
  }

  resize() { this.draw(); }

  close() { this.ending?.abort(); }
}

export default { name: "training", free: true, make: (studio) => new Training(studio) };
