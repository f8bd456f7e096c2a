// Tokens: the text under several tokenizers side by side, the merges of a word, and a tokenizer trained on a text that is pasted.
import { call } from "../api.js";
import { barFigure, units } from "../bars.js";
import { button, check, fillMenu, folded, make, menu, number, numberField, table } from "../dom.js";
import { has, refused, t, whole } from "../i18n.js";

const TONES = 5, MOST = 8, KEPT = "atento-tokenizers";
const kindName = (kind) => (has(`tokens.kind.${kind}`) ? t(`tokens.kind.${kind}`) : kind);

class Tokens {
  constructor(studio) {
    this.studio = studio;
    this.trained = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");  // [key, name], of this window
    this.about = make("p", { id: "text-about" });
    this.choice = make("fieldset", { class: "checks" });
    this.grid = make("div", { class: "columns", on: { pointerover: (event) => this.point(event.target), pointerleave: () => this.point(null),
      focusin: (event) => this.point(event.target), focusout: () => this.point(null), keydown: (event) => this.step(event) } });
    this.tip = make("p", { class: "tip", id: "token-tip", role: "status" });
    this.equivalent = folded(t("tokens.as_table"), () => this.table());
    this.element = make("div", {}, make("section", { class: "panel", "aria-label": t("tokens.which") }, this.about, this.choice), this.grid, this.tip,
      this.equivalent, this.mergePanel(), this.trainPanel());
  }

  mergePanel() {
    const set = (changes) => this.studio.state.set(changes);
    this.merger = menu(t("tokens.tokenizer"), [], "", (merger) => set({ merger }), { id: "merger" });
    this.word = make("input", { type: "text", id: "word", maxlength: 128, spellcheck: "false", on: { change: () => set({ word: this.word.value }) } });
    this.player = button(t("next.play"), () => this.play(), { id: "play", "aria-pressed": "false" });
    this.range = make("input", { type: "range", id: "merge", min: 0, on: { input: () => this.drawSteps() } });
    this.steps = make("ol", { class: "steps", "aria-label": t("tokens.merges") });
    this.merging = make("div", {}, make("label", { class: "field" }, t("tokens.step"), " ", this.range), this.player, this.steps);
    this.unmerged = make("p", { class: "muted" });
    return make("section", { class: "panel", id: "merges", "aria-label": t("tokens.merges") }, make("h2", {}, t("tokens.merges")), make("p", { class: "muted" }, t("tokens.about_merges")),
      make("div", { class: "controls" }, this.merger, make("label", { class: "field" }, t("tokens.word"), " ", this.word)), this.unmerged, this.merging);
  }

  trainPanel() {
    this.kinds = menu(t("tokens.kind"), [], "", () => {}, { id: "kind" });
    this.size = numberField(t("tokens.size"), 300, { min: 1, max: 8000 }, () => {});
    this.lower = check(t("tokens.lower"), false, () => {}, { id: "lower" });
    this.source = make("textarea", { rows: 5, id: "training-text", spellcheck: "false", placeholder: t("tokens.paste") });
    this.trainer = button(t("tokens.train"), () => this.train(), { id: "train" });
    this.outcome = make("p", { id: "outcome", role: "status" });
    return make("section", { class: "panel", "aria-label": t("tokens.own") }, make("h2", {}, t("tokens.own")), make("p", { class: "muted" }, t("tokens.about_own")),
      make("label", { class: "area" }, t("tokens.training_text"), this.source), make("div", { class: "controls" }, this.kinds, this.size, this.lower, this.trainer), this.outcome);
  }

  get names() {
    const { models } = this.studio.known, given = this.studio.state.get("tokenizers");
    return given ? given.split("\n").filter((name) => models.includes(name)) : models.slice(0, 4);
  }

  async update(trace, changed, current) {
    const { state, known } = this.studio, text = state.get("text"), names = this.names.slice(0, MOST);
    const found = await call("tokens", { text, names, trained: this.trained.map(([key]) => key) });
    if (!current()) return;
    this.found = found;
    this.choice.replaceChildren(make("legend", { class: "unseen" }, t("tokens.which")), ...known.models.map((name) => check(name, names.includes(name), (on) =>
      state.set({ tokenizers: known.models.filter((one) => (one === name ? on : names.includes(one))).join("\n") || "-" }))));
    const { characters, bytes, words, nfc, composed } = found.text;
    this.about.replaceChildren(t("tokens.text", { characters: whole(characters), bytes: whole(bytes), words: whole(words) }), ...(nfc ? []
      : [" ", make("strong", { class: "flag" }, t("tokens.not_nfc", { composed: whole(composed) }))]));
    const labels = Object.fromEntries(this.trained);
    for (const one of found.columns) one.label = labels[one.key] ?? one.key;
    this.grid.replaceChildren(...found.columns.map((column) => this.column(column, text)));
    if (!this.kinds.querySelector("option")) fillMenu(this.kinds.querySelector("select"), found.kinds.map((kind) => [kind, kindName(kind)]), "bpe");
    this.equivalent.renew();
    await this.merge(current);
  }

  column(one, text) {
    const head = make("h2", {}, make("span", {}, one.label), one.key in Object.fromEntries(this.trained)
      ? button(t("tokens.remove"), () => this.keep(this.trained.filter(([key]) => key !== one.key)), { class: "link" }) : null);
    const about = { class: "panel", "aria-label": one.label, "data-column": one.label };
    if (one.error) return make("section", about, head, make("p", { class: "flag" }, refused(one.error)));
    const unknowns = one.tokens.filter(([, id]) => id === one.unknown).length;
    const facts = { count: whole(one.tokens.length), fertility: one.fertility === null ? "–" : number(one.fertility, 4), unknown: whole(unknowns),
      vocabulary: `${whole(one.vocabulary)} · ${kindName(one.kind)}` };
    const chips = one.tokens.map(([piece, id, start, end], at) => {
      const letters = text.slice(units(text, start), units(text, end)), hex = [...new TextEncoder().encode(letters)].map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
      const where = end > start ? t("tokens.where", { start, end, letters, hex }) : t("tokens.nowhere");
      const tip = `${piece} · ${t("input.id")} ${id} · ${where}`;
      return make("li", {}, make("button", { type: "button", class: `chip tone tone-${at % TONES}${id === one.unknown ? " unknown" : ""}`, tabindex: at ? -1 : 0, title: tip, "aria-label": tip,
        "data-start": start, "data-end": end }, piece));
    });
    return make("section", about, head, make("dl", { class: "facts" }, Object.entries(facts).flatMap(([name, value]) =>
      [make("dt", {}, t(`tokens.${name}`)), make("dd", { "data-fact": name }, value)])), make("ol", { class: "chips" }, chips), ...this.roundTrip(one, text),
    ...one.notes.map((note) => make("p", { class: "muted" }, refused(note))));
  }

  // Whether the ids give the text back; where not, what they give, with the part that differs marked.
  roundTrip({ decoded, normalized }, text) {
    const exact = decoded === text, line = (key) => make("p", { "data-exact": String(exact) }, t(key));
    if (exact) return [line("tokens.exact")];
    const ours = [...text], back = [...decoded], least = Math.min(ours.length, back.length);
    let front = 0, tail = 0;
    while (front < least && ours[front] === back[front]) front++;
    while (tail < least - front && ours[ours.length - 1 - tail] === back[back.length - 1 - tail]) tail++;
    return [line(decoded === normalized ? "tokens.normalized" : "tokens.inexact"), make("p", { class: "marked" }, back.slice(0, front).join(""),
      make("mark", {}, back.slice(front, back.length - tail).join("")), back.slice(back.length - tail).join(""))];
  }

  // Lights up, in all columns, the tokens of the characters of the one that is pointed at.
  point(target) {
    const chip = target?.closest?.(".tone[data-start]"), from = Number(chip?.dataset.start), to = Number(chip?.dataset.end);
    for (const one of this.grid.querySelectorAll(".tone")) one.classList.toggle("pointed", one === chip || Number(one.dataset.start) < to && Number(one.dataset.end) > from);
    this.tip.textContent = chip?.title ?? "";
  }

  step(event) {
    const by = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key], next = event.target.closest(".columns li")?.[by]?.firstChild;
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  }

  // --- merges ---

  async merge(current) {
    const { state } = this.studio, able = this.found.columns.filter(({ kind }) => kind === "bpe");
    const word = state.get("word") || state.get("text").trim().split(/\s+/)[0], chosen = able.find(({ key }) => key === state.get("merger")) ?? able[0];
    fillMenu(this.merger.querySelector("select"), able.map(({ key, label }) => [key, label]), chosen?.key);
    if (document.activeElement !== this.word) this.word.value = word;
    this.stop();
    this.unmerged.textContent = chosen ? "" : t("tokens.no_bpe");
    this.frames = [];
    if (chosen && word) {
      const trained = this.trained.some(([key]) => key === chosen.key);
      try {
        const { parts } = await call("merges", { word, [trained ? "trained" : "name"]: chosen.key });
        if (!current()) return;
        this.frames = this.framesOf(parts);
      } catch (error) {
        this.unmerged.textContent = error.message;
      }
    }
    this.merging.hidden = !this.frames.length;
    this.range.max = this.range.value = Math.max(0, this.frames.length - 1);
    this.drawSteps();
  }

  // One frame for each merge, over the parts of the word in their order.
  framesOf(parts) {
    const now = parts.map(([first]) => first[1]), frames = [{ rank: null, pieces: now.flat() }];
    parts.forEach((steps, at) => steps.slice(1).forEach(([rank, pieces]) => {
      now[at] = pieces;
      frames.push({ rank, pieces: now.flat() });
    }));
    return frames;
  }

  drawSteps() {
    this.steps.replaceChildren(...this.frames.slice(0, Number(this.range.value) + 1).map(({ rank, pieces }, at) => make("li", {},
      make("small", {}, at === 0 ? t("tokens.letters") : rank === null ? t("tokens.whole") : t("tokens.merge", { rank: whole(rank + 1) })),
      pieces.map((piece, place) => make("span", { class: `chip plain tone tone-${place % TONES}` }, piece)))));
  }

  play() {
    if (!this.frames?.length) return false;
    if (this.timer) { this.stop(); return true; }
    this.range.value = Number(this.range.value) < Number(this.range.max) ? this.range.value : 0;
    this.drawSteps();
    this.player.setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.range.value = Number(this.range.value) + 1;
      this.drawSteps();
      if (this.range.value === this.range.max) this.stop();
    }, 600);
    return true;
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.player.setAttribute("aria-pressed", "false");
  }

  // --- a tokenizer of one's own ---

  async train() {
    const fields = { text: this.source.value, kind: this.kinds.querySelector("select").value, vocab_size: Number(this.size.querySelector("input").value), lowercase: this.lower.querySelector("input").checked };
    this.trainer.disabled = true;
    this.outcome.textContent = t("tokens.training");
    try {
      const { key, kind, vocabulary, notes } = await call("train_tokenizer", fields);
      const name = t("tokens.trained", { number: this.trained.length + 1, kind: kindName(kind), size: whole(fields.vocab_size) });
      this.outcome.textContent = [t("tokens.done", { name, vocabulary: whole(vocabulary) }), ...notes.map(refused)].join(" ");
      this.keep([...this.trained.filter(([one]) => one !== key), [key, name]].slice(-MOST));
    } catch (error) {
      this.outcome.textContent = error.message;
    } finally {
      this.trainer.disabled = false;
    }
  }

  keep(trained) {
    this.trained = trained;
    sessionStorage.setItem(KEPT, JSON.stringify(trained));
    this.studio.update(new Set());
  }

  table() {
    return table(t("tokens.as_table"), ["", "vocabulary", "count", "fertility", "unknown", "back"].map((name) => (name ? t(`tokens.${name}`) : "")),
      this.found.columns.filter(({ error }) => !error).map((one) => [one.label, one.vocabulary, one.tokens.length, one.fertility === null ? "–" : one.fertility.toFixed(6),
        one.tokens.filter(([, id]) => id === one.unknown).length, t(one.decoded === this.studio.state.get("text") ? "masks.yes" : "masks.no")].map(String)));
  }

  figure() {
    const columns = this.found.columns.filter(({ error }) => !error), most = Math.max(1, ...columns.map(({ tokens }) => tokens.length));
    return barFigure("tokens", t("tokens.count"), columns.map(({ label, tokens }) => [label, tokens.length / most, whole(tokens.length)]), this.found, () => [this.table()]);
  }

  close() { this.stop(); }
}

export default { name: "tokens", text: "only", free: true, make: (studio) => new Tokens(studio) };
