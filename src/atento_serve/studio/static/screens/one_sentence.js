// One sentence: a text on its way through the model, from its pieces to what is said in the end; a part unfolds below.
import { bytes, call, remembering } from "../api.js";
import { maskedWords, points, toggleMask, wordSpans } from "../bars.js";
import { button, folded, make, number, table } from "../dom.js";
import { t, whole } from "../i18n.js";
import { River, clean } from "../sentence_picture.js";
import { beside, secondText } from "../second_text.js";
import { unfolded } from "../unfolded.js";

const PACE = 900, LONGEST = 24;  // milliseconds a step; tokens that are written by playing
const SHOWN = 6;  // of what is said
const percentage = (p) => (p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);

const answers = remembering(24, (name, fields) => call(name, fields));
const links = remembering(8, async (fields) => {
  const { about, data } = await bytes("flow_links", fields), total = data.byteLength / 12;
  const [rows, columns] = [0, 1].map((part) => new Uint32Array(data, 4 * part * total, total)), weights = new Float32Array(data, 8 * total);
  let next = 0;
  return Object.fromEntries(Object.entries(about.counts).map(([kind, counts]) =>
    [kind, counts.map((count) => Array.from({ length: count }, () => [rows[next], columns[next], weights[next++]]))]));
});
const maps = remembering(12, async (fields) => {
  const { about, data } = await bytes("overview", fields);
  return { ...about, data: new Uint8Array(data) };
});

export class One {
  constructor(studio) {
    this.studio = studio;
    this.second = secondText(studio, t("one.second"), () => (this.kind === "question" ? "question" : "second"));
    this.back = button(t("one.step_back"), () => this.step(-1), { id: "back", title: t("one.back") });
    this.player = button(t("next.play"), () => this.play(), { id: "play", "aria-pressed": "false", title: t("one.play") });
    this.forward = button(t("one.step_on"), () => this.step(1), { id: "forward", title: t("one.forward") });
    this.line = make("p", { class: "line", id: "line", role: "group", "aria-label": t("side.output") });
    this.reset = button(t("translate.reset"), () => studio.state.set({ target: "", prefix: null, at: null }), { id: "reset", class: "link" });
    this.window = make("div", { class: "window", tabindex: 0, role: "region", "aria-label": t("screen.one") });
    this.story = make("p", { class: "story", role: "status" });
    this.legend = make("ul", { class: "key" }, ["reads", "writes", "width", "thread", "gate"].map((name) => make("li", {}, make("i", { class: name }), t(`one.key.${name}`))));
    this.place = make("div", { id: "unfolded" });
    this.equivalent = folded(t("heads.as_table"), () => this.table());
    this.element = make("div", { class: "one" }, make("div", { class: "controls" }, this.second.element, make("span", { class: "player" }, this.back, this.player, this.forward), this.line, this.reset), this.story,
      this.window, this.legend, this.place, this.equivalent);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.window);
  }

  // What the model ends in: "next" tokens, "fill", "labels", "tags", "answers", or a "vector".
  get ends() {
    const verb = this.studio.card.verbs[0] ?? "";
    return { classify: "labels", tag: "tags", answer: "answers", fill: this.studio.card.writes ? "next" : "fill", embed: "vector", similarity: "vector" }[verb] ?? "next";
  }

  get writes() { return this.studio.card.writes; }

  // What it reads besides the text; what ends in a vector reads each text alone.
  get kind() { return this.ends === "vector" ? "" : beside(this.studio.card); }

  get fields() {
    const { input, state } = this.studio, { kind } = this, second = kind === "question" ? state.get("question") : kind ? state.get("second") : "";
    if (this.ends !== "fill") return { ...input, ...(second ? { second } : {}) };
    const text = state.get("text"), spans = wordSpans(text), wanted = maskedWords(state, spans);
    return { ...input, ...(wanted.length ? { spans: wanted.map((at) => spans[at].map((place) => points(text, place))) } : {}) };
  }

  // The place of the token that is looked at among those of the last stack; `home`: where nothing was chosen.
  get at() {
    const { length } = this.river?.stacks.at(-1).labels ?? [];
    if (this.ends === "fill") return this.masks.includes(this.studio.state.number("at")) ? this.studio.state.number("at") : this.masks[0] ?? 0;
    const home = this.home ?? (this.ends === "next" ? Math.floor((length - 1) / 2) : length - 1);
    return Math.max(0, Math.min(length - 1, this.studio.state.get("at") === "" ? home : this.studio.state.number("at")));
  }

  // The places of the masks.
  get masks() {
    const { tokens } = this.flow.sides.source;
    return [...tokens.keys()].filter((at) => tokens[at][3] && at > 0 && at < tokens.length - 1);
  }

  async update(trace, changed, current) {
    const { state, dark } = this.studio, { fields } = this;
    this.second.element.hidden = !this.kind;
    this.second.show();
    const flow = await answers("flow", fields), full = { ...fields, ...(flow.target ? { target: flow.target } : {}) };
    const [threads, small] = await Promise.all([Object.keys(flow.kinds).length ? links(full) : {}, Promise.all(Object.keys(flow.kinds).map(async (kind) => [kind, await maps({ ...full, kind })]))]);
    if (!current()) return;
    this.expected = await this.expect(flow, full);
    if (!current()) return;
    const key = JSON.stringify([full, dark, document.documentElement.lang, this.window.clientWidth]);
    if (this.key !== key) {
      Object.assign(this, { key, flow, full, threads, maps: Object.fromEntries(small), wide: this.window.clientWidth });
      this.build();
    }
    await this.look(current);
    if (!current()) return;
    this.equivalent.renew();
    if (this.playing) this.timer = setTimeout(() => this.step(1), PACE);
  }

  // What is expected at each of several masks, to stand behind it; at one, the end says it.
  async expect(flow, full) {
    this.flow = flow;
    const places = this.ends === "fill" ? this.masks : [], written = flow.sides.source.tokens.map(() => null);
    if (places.length < 2) return null;
    for (const [at, { tokens: [[token]] }] of (await Promise.all(places.map((place) => answers("said", { ...full, place })))).entries()) written[places[at]] = token;
    return written;
  }

  build() {
    const { flow, writes } = this, { sides, stacks } = flow, names = Object.keys(stacks), label = (side) => sides[side].tokens.map(([one]) => one);
    const given = names.map((name) => {
      const reads = name === "decoder" && writes ? "target" : "source";
      return { ...stacks[name], name, side: reads === "target" ? "output" : "source", labels: label(reads), vectors: this.rows(stacks[name]), plain: !flow.kinds[name] };
    });
    const passed = Object.fromEntries(given.filter(({ plain }) => plain).map(({ name, labels }) => [name, [labels.slice(1).map((_, at) => [at + 1, at, 0.4])]]));  // a recurrent state
    const texts = Object.fromEntries(["encoder", "decoder"].map((name) => [name, t(`kind.${name}`)]));
    const next = label("source").slice(1);
    this.river = new River({ stacks: given, onward: this.ends === "next", links: { ...passed, ...this.threads }, maps: this.maps,
      written: writes ? label("output") : this.ends === "next" ? [...next, "?"] : this.ends === "tags" ? [] : this.expected,
      texts: { ...texts, cross: t("one.bridge"), title: t("screen.one"), numbers: flow.ends ? t("one.numbers", { count: whole(flow.ends.length) }) : "", pieces: t("one.pieces"), end: t("one.end"), vectors: t("one.vectors"), forward: t("one.forward_part"), head: t("heads.head").toLowerCase() },
      open: (part) => this.studio.state.set({ part: this.studio.state.get("part") === part ? null : part }),
      point: (side, place) => { this.light(side, place); this.tell(side, place); },
      choose: (side, place) => this.studio.state.set(side === given.at(-1).side && (this.ends === "next" || (this.ends === "fill" && this.masks.includes(place))) ? { at: place, pin: "" } : { pin: `${side}-${place}` }) }, this.window.clientWidth - 2);
    this.window.replaceChildren(this.river.element);
  }

  // Draws again what is shown, in the colours of now.
  paint() {
    if (!this.said) return;
    this.build();
    this.say(this.said);
    this.light(null);
  }

  say({ rows, places, vector }) { this.river.say(this.at, rows.slice(0, SHOWN), places, vector); }

  // The first numbers of each token's vector, a row a token.
  rows({ vectors, norms }) {
    const width = vectors.length / norms[0].length || 1;
    return Array.isArray(vectors[0]) ? vectors : norms[0].map((_, at) => vectors.slice(at * width, (at + 1) * width));
  }

  // Lights up the chosen token, says what comes of it, and unfolds the open part.
  async look(current) {
    const { river, studio, at, ends } = this, { state } = studio;
    this.drawLine();
    this.reset.hidden = !state.get("target");
    this.light(null);
    const said = await this.outcome();
    if (!current()) return;
    this.said = said;
    this.say(said);
    this.story.textContent = this.told();
    river.mark(state.get("part"));
    const part = state.get("part"), place = this.placeOf(part);
    const unfold = part ? await unfolded(this, part, place, said) : null;
    if (!current()) return;
    this.place.replaceChildren(...(unfold ? [unfold] : []));
    if (unfold && this.part !== undefined && this.part !== part) unfold.scrollIntoView({ block: "nearest" });
    this.part = part;
    this.player.parentElement.hidden = ends !== "next";
  }

  // The token for which a part is unfolded: the pinned one of its stack, else the one that is looked at.
  placeOf(part) {
    const name = part.split("-")[1], stack = this.river.stacks.find((one) => one.name === name) ?? this.river.stacks.at(-1), pinned = this.studio.pinned(stack.side);
    if (pinned >= 0 && pinned < stack.labels.length) return pinned;
    return stack === this.river.stacks.at(-1) ? this.at : Math.min(1, stack.labels.length - 1);
  }

  // What is said in the end: { rows: [label, share, value, press], places: the tokens that it is read from }.
  async outcome() {
    const { ends, full, at, river } = this, { state } = this.studio, row = ([label, p, press]) => [label, p, percentage(p), press];
    const all = [...river.stacks.at(-1).labels.keys()];
    if (ends === "next" || ends === "fill") {
      const found = await answers("said", { ...full, place: at }).catch((error) => {
        if (error.status !== 422) throw error;
        return null;  // no head over the vocabulary reads these vectors
      });
      if (!found) return { rows: [], places: [at] };
      return { found, rows: found.tokens.map(([token, p, text]) => row([token, p, () => this.take(token, text)])), places: [at] };
    }
    const base = { model: full.model, text: full.text };
    if (ends === "labels") {
      const { labels = [] } = await answers("labels", { ...base, second: full.second ?? "" });
      return { rows: labels.map(([name, p]) => row([name, p])), places: ["first", "pooler"].includes(this.flow.pooled) ? [0] : all };
    }
    if (ends === "tags") {
      const { entities, words } = await answers("labels", base), { spans } = this.flow.sides.source;
      const tags = entities.length ? entities : words.filter(([label]) => label !== "O");
      const places = tags.flatMap(([,, start, end]) => all.filter((place) => spans[place] && spans[place][0] < end && start < spans[place][1]));
      return { rows: tags.map(([label, text, , , p]) => row([`${text}: ${label}`, p])), places: places.length ? places : [] };
    }
    if (ends === "answers") {
      if (!full.second) return { rows: [], places: [] };
      const { answers: found } = await answers("answers", { ...base, question: full.second }), { spans } = this.flow.sides.source, [, start, end] = found[0] ?? [];
      return { rows: found.map(([text, , , p]) => row([text || t("answer.none"), p, () => state.set({ screen: "answer" })])), places: all.filter((place) => spans[place] && spans[place][0] < end && start < spans[place][1]) };
    }
    return { rows: [], places: all, vector: this.flow.ends };
  }

  // What happens in the picture, in one sentence.
  told() {
    const { said: { rows: [first], found }, ends, at, writes, flow } = this, { source, output } = flow.sides;
    if (!found && ["next", "fill"].includes(ends)) return "";
    if (!found) return first ? t(`one.story.${ends}`, { token: first[0], share: first[2] }) : ends === "vector" ? t("one.story.vector") : t("one.story.nothing");
    const kind = writes ? "cross" : Object.keys(flow.kinds)[0], side = writes ? output : source;
    const threads = (this.threads[kind]?.at(-1) ?? []).filter(([row, column]) => row === at && !(source.spans[column] === null && source.spans.some(Boolean)) && (writes || column !== at));
    const [, most] = threads.reduce((best, one) => (one[2] > best[2] ? one : best), [0, -1, 0]), word = source.words.find(([, start, end]) => start <= most && most < end)?.[0];
    const joined = side.tokens.slice(0, at + (writes ? 0 : 1)).filter(([,,, special]) => !special).map(([label]) => label).join("").replaceAll(/[▁Ġ]/gu, " ").replaceAll("##", "").trim();
    const [best, top] = found.tokens[0], [token, share] = writes ? [found.follows, found.layers.at(-1).share] : [best, top], before = joined.split(" ").slice(-4).join(" ");
    const values = { token: clean(token), share: percentage(share), before, best: clean(best), most: percentage(top) };
    const key = ends === "fill" ? "fill" : writes && this.studio.state.get("target") && best !== token ? "chose" : before ? "after" : "begins";
    return `${t(`one.story.${key}`, values)}${word ? t("one.story.reads", { word: clean(word) }) : ""}.`;
  }

  // Writes on with a token: the output, or the text, that goes on so.
  async take(token, text) {
    const { state } = this.studio;
    if (this.ends === "fill") return;
    if (!this.writes) { state.set({ text, at: this.at + 1, pin: "" }); return; }
    try {
      const { output } = await call("forced", { model: this.full.model, text: this.full.text, prefix: text });
      state.set({ target: output, at: this.at, pin: "" });
    } catch (error) {
      this.studio.refuse(error);
    }
  }

  light(side, place) {
    const { river, at, ends } = this, last = river.stacks.at(-1);
    if (side) { river.light(side, place, at); return; }
    const pinned = river.stacks.find((stack) => this.studio.pinned(stack.side) >= 0);
    if (pinned) river.light(pinned.side, this.studio.pinned(pinned.side), at);
    else if (ends === "next" || ends === "fill") river.light(last.side, at, at);
    else river.light("", -1, at);
  }

  tell(side, place) {
    const stack = this.river.stacks.find((one) => one.side === side);
    this.story.textContent = stack ? t("one.tip", { token: clean(stack.labels[place]), norms: stack.norms.map((layer) => number(layer[place], 2)).join(" → ") }) : this.said ? this.told() : "";
  }

  // The output as it is written, token by token; or the words of the text, to be masked.
  drawLine() {
    const { ends, at, flow, writes } = this, { state } = this.studio;
    this.line.hidden = !writes && ends !== "fill";
    this.line.classList.toggle("spaced", ends === "fill");
    this.line.setAttribute("aria-label", t(ends === "fill" ? "fill.press" : "side.output"));
    if (writes) {
      this.line.replaceChildren(...flow.sides.output.tokens.map(([label], place) => this.pointing(place, button(label.replace("▁", " "), () => state.set({ at: place, pin: "" }),
        { class: place > at ? "ahead" : null, "aria-pressed": String(place === at), "data-token": `output-${place}`, title: t("one.choose") }))));
    } else if (ends === "fill") {
      const text = state.get("text"), spans = wordSpans(text), wanted = maskedWords(state, spans);
      const mask = (place, also) => (also || wanted.length > 1 ? toggleMask(state, wanted, place) : state.set({ masked: place, at: null }));
      this.line.replaceChildren(...spans.map(([start, end], place) => button(text.slice(start, end), (event) => mask(place, event.shiftKey), { "aria-pressed": String(wanted.includes(place)), title: t("one.mask") })));
    }
  }

  // A word of the line lights up in the picture when it is pointed at.
  pointing(place, element) {
    for (const name of ["pointerenter", "focus"]) element.addEventListener(name, () => this.light("output", place));
    for (const name of ["pointerleave", "blur"]) element.addEventListener(name, () => this.light(null));
    return element;
  }

  // --- steps ---

  // A step on, or back: the next output token is looked at, or the most probable one written.
  step(by) {
    const { state } = this.studio, { at, writes, flow } = this;
    if (this.ends !== "next") return;
    const next = at + by, last = this.river.stacks.at(-1).labels.length - 1;
    if (next >= 0 && next <= last) state.set({ at: next, pin: "" });
    else if (next > last && !writes && this.said.found && flow.sides.source.tokens.length < LONGEST) this.take(...this.best);
    if (next >= last && (writes || flow.sides.source.tokens.length >= LONGEST)) this.stop();
  }

  // The most probable token, with what is written then.
  get best() {
    const [token, , text] = this.said.found.tokens[0];
    return [token, text];
  }

  turn(by) {
    if (this.ends === "next") this.step(by);
    else this.studio.pin(`source-${Math.max(0, Math.min(this.flow.sides.source.tokens.length - 1, this.studio.pinned("source") + by))}`);
    return true;
  }

  play() {
    if (this.ends !== "next") return false;
    if (this.playing) { this.stop(); return true; }
    this.playing = true;
    this.show();
    const ended = this.writes && this.at >= this.flow.sides.output.tokens.length - 1;
    if (ended || (this.writes && this.studio.state.get("at") === "")) this.studio.state.set({ at: 0, pin: "" });
    else this.step(1);
    return true;
  }

  stop() {
    clearTimeout(this.timer);
    this.playing = false;
    this.show();
  }

  show() {
    this.player.textContent = t(this.playing ? "one.pause" : "next.play");
    this.player.setAttribute("aria-pressed", String(Boolean(this.playing)));
  }

  // What the keys step through: the head that is open.
  choices(name) {
    const [what, kind, layer] = this.studio.state.get("part").split("-"), heads = this.flow?.kinds[kind]?.heads;
    if (what !== "head" || !heads) return null;
    return [...Array(name === "layer" ? heads.length : heads[Number(layer)]).keys()];
  }

  // Steps of a layer or a head are steps of the open part.
  move(name, by) {
    const choices = this.choices(name), parts = this.studio.state.get("part").split("-"), at = name === "layer" ? 2 : 3;
    if (!choices) return false;
    parts[at] = Math.max(0, Math.min(choices.length - 1, Number(parts[at]) + by));
    this.studio.state.set({ part: parts.join("-") });
    return true;
  }

  table() {
    const { stacks } = this.river, deep = Math.max(...stacks.map(({ norms }) => norms.length));
    return table(t("one.norms"), ["", ...Array(deep).keys()].map((layer) => (layer === "" ? "" : String(layer))), stacks.flatMap(({ labels, norms }) =>
      labels.map((label, place) => [label, ...Array.from({ length: deep }, (_, layer) => (norms[layer] ? norms[layer][place].toFixed(6) : ""))])));
  }

  figure() {
    if (!this.river) return null;
    return { name: "one-sentence", title: this.flow.target ? `${this.studio.state.get("text")} → ${this.flow.target}` : this.studio.state.get("text"), svg: this.river.element, data: { ...this.flow, said: this.said.rows.map(([label, p]) => [label, p]) }, tables: () => [this.table()] };
  }

  resize() {
    if (this.key && this.window.clientWidth && this.window.clientWidth !== this.wide) this.studio.update(new Set(["width"]));
  }

  close() {
    this.stop();
    this.watcher.disconnect();
  }
}

export default { name: "one", text: "only", make: (studio) => new One(studio) };
