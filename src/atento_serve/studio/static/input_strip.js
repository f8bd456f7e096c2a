// The input strip: the text, the target where the model writes one, examples, and the tokens of each side as chips.
import { button, check, drop, fillMenu, make, menu } from "./dom.js";
import { fitting } from "./examples.js";
import { LANGUAGES, t } from "./i18n.js";

const PAUSE = 400;  // milliseconds without a key until a text that is being typed is looked at

export class InputStrip {
  constructor(studio) {
    this.studio = studio;
    this.text = this.area("text");
    this.target = this.area("target");
    this.chips = make("div", { class: "sides" });
    this.examples = menu(t("input.examples"), [], "", (at) => {
      const { text, second = null, question = null } = this.fitting[at] ?? {};
      if (text) studio.state.set({ text, second, question, target: "", pin: "" });
      this.examples.querySelector("select").value = "";
    }, { id: "examples" });
    this.toggles = make("span", { class: "checks" });
    this.settings = drop(t("input.settings"), { class: "settings" }, this.target.label, this.toggles);
    this.element = make("section", { class: "strip", "aria-label": t("input.title") },
      make("div", { class: "texts" }, this.text.label, this.examples, this.settings), this.chips);
  }

  area(name) {
    let timer = 0, typing = false;
    const { state } = this.studio;
    const give = () => {
      clearTimeout(timer);
      state.set({ [name]: box.value, ...(name === "text" ? { target: "" } : {}), pin: "" }, { replace: typing });
      typing = true;
    };
    const box = make("textarea", { rows: 1, spellcheck: "false", on: {
      input: () => { this.fit(box); clearTimeout(timer); timer = setTimeout(give, PAUSE); },
      change: give,
      blur: () => { typing = false; },
    } });
    return { box, label: make("label", { class: "area" }, make("span", {}, t(`input.${name}`)), box) };
  }

  // As many rows as the text takes, up to four.
  fit(box) {
    if (!box.clientHeight) return;  // hidden
    box.rows = 1;
    while (box.rows < 4 && box.scrollHeight > box.clientHeight) box.rows += 1;
  }

  // Shows the texts, before anything is computed; a box that is being typed in is left alone.
  update() {
    const { state, card } = this.studio;
    for (const name of ["text", "target"])
      if (document.activeElement !== this[name].box || this[name].box.value.trim() === state.get(name).trim()) {
        if (this[name].box.value !== state.get(name)) this[name].box.value = state.get(name);
        this.fit(this[name].box);  // also where it was set while it was hidden
      }
    this.target.label.hidden = !card?.writes;
    this.fitting = fitting(card);
    fillMenu(this.examples.querySelector("select"), [["", t("input.examples")], ...this.fitting.map(({ language, text, second, question }, at) =>
      [at, `${LANGUAGES[language]}: ${[text, second ?? question].filter(Boolean).join(" · ")}`])], "");
    const toggle = (name) => check(t(`input.${name}`), state.on(name), (on) => state.set({ [name]: on }), { id: `toggle-${name}` });
    if (!this.toggles.contains(document.activeElement)) this.toggles.replaceChildren(...["hide", "words", "ids"].map(toggle));
  }

  // Shows the tokens of a trace; null: there are none.
  show(trace) {
    const { state } = this.studio;
    this.toggles.hidden = !trace;
    this.settings.hidden = !trace && this.target.label.hidden;
    this.target.box.placeholder = trace?.target ?? "";
    const focused = this.chips.contains(document.activeElement) ? document.activeElement.dataset.token : null;
    const names = trace ? Object.keys(trace.sides).filter((name) => name !== "target") : [];
    this.chips.replaceChildren(...names.map((name) => this.side(name, trace.sides[name], state)));
    if (focused) this.chips.querySelector(`[data-token="${focused}"]`)?.focus();
  }

  side(name, side, state) {
    const groups = side[state.on("words") ? "words" : "tokens"];
    const chips = groups.filter(([,,, special]) => !special || !state.on("hide")).map(([label, start, end, special]) => {
      const ids = side.ids.slice(start, end).join(" "), span = [side.spans[start], side.spans[end - 1]];
      const where = span[0] && span[1] ? t("input.characters", { start: span[0][0], end: span[1][1] }) : t("input.added");
      const token = `${name}-${start}`, at = this.studio.pinned(name);
      return make("li", {}, button(label, () => this.studio.pin(at >= start && at < end ? "" : token), {
        class: special ? "chip special" : "chip", title: `${t("input.id")} ${ids} · ${where}`, "data-token": token, "data-end": end,
        "aria-pressed": String(at >= start && at < end),
      }), state.on("ids") ? make("small", {}, ids) : null);
    });
    return make("div", { class: "side" }, make("h2", {}, t(`side.${name}`), " ", make("small", {}, String(groups.length))),
      make("ol", { class: "chips" }, chips));
  }

  // The chip of the pinned token, or of its word.
  pinned() {
    const [name, place] = this.studio.state.get("pin").split("-"), at = Number(place);
    return [...this.chips.querySelectorAll(`[data-token^="${CSS.escape(name)}-"]`)].find(({ dataset }) =>
      Number(dataset.token.slice(name.length + 1)) <= at && at < Number(dataset.end));
  }

  // Marks the pinned token without drawing the chips again.
  mark() {
    for (const chip of this.chips.querySelectorAll("[aria-pressed=true]")) chip.setAttribute("aria-pressed", "false");
    this.pinned()?.setAttribute("aria-pressed", "true");
  }

  // Pins the next token that has a text.
  find(wanted) {
    const chips = [...this.chips.querySelectorAll(".chip")];
    const now = chips.findIndex((chip) => chip.getAttribute("aria-pressed") === "true");
    const found = [...chips.slice(now + 1), ...chips.slice(0, now + 1)].find((chip) => chip.textContent.toLowerCase().includes(wanted));
    if (wanted && found) this.studio.pin(found.dataset.token);
    else this.studio.say(t("input.not_found"));
  }
}
