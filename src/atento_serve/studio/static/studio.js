// The frame: top bar, rail of screens, input strip, the screen that is shown, and one sentence where it cannot be.
import { Refusal, about, call, remembering, setKey } from "./api.js";
import { button, drop, fillMenu, make, menu } from "./dom.js";
import { LANGUAGES, has, setLanguage, t } from "./i18n.js";
import { firstExample, isExample } from "./examples.js";
import { InputStrip } from "./input_strip.js";
import { download, saved } from "./save.js";
import { GROUPS, SCREENS } from "./screens.js";
import { State } from "./state.js";

const DEFAULTS = { screen: "one", language: "", theme: "", b: "", text: "The cat sees the old house.", target: "", layer: 0,
  head: "mean", words: "0", hide: "0", ids: "0", pin: "", mask: "causal()" };

class Studio {
  constructor() {
    this.state = new State(DEFAULTS);
    this.known = null;  // what the service says of itself
    this.card = null;   // the chosen model
    this.reasons = {};  // why it cannot feed a screen, by its name
    this.round = 0;     // of updates: an answer that comes after the next one began is dropped
    this.cards = remembering(16, async (model, b) => [await call("card", { model }), await call("screens", { model, b })]);
    this.traces = remembering(8, (model, text, target) => call("trace", { model, text, ...(target ? { target } : {}) }));
    this.state.addEventListener("change", ({ detail }) => this.update(detail));
    for (const name of ["pointerover", "focusin"]) document.addEventListener(name, (event) => this.point(event.target.closest?.("[data-token]")));
    for (const name of ["pointerleave", "focusout"]) document.documentElement.addEventListener(name, () => this.point(null));
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("click", ({ target }) => this.close(target));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update(new Set(["theme"])));
    matchMedia("print").addEventListener("change", () => this.screen?.paint?.());  // in light colours on paper
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; this.screen?.resize?.(); } });
    globalThis.isDark = () => this.dark;  // of the drawings that the attention page shares
    this.mount();
    this.update(new Set());
  }

  get dark() {
    const theme = this.state.get("theme");
    if (matchMedia("print").matches) return false;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  get model() { return this.state.get("model") || this.known?.models[0] || ""; }

  // The fields of a question about the text that is shown.
  get input() {
    const target = this.state.get("target");
    return { model: this.model, text: this.state.get("text"), ...(target && this.card?.writes ? { target } : {}) };
  }

  trace() {
    const { model, text, target } = this.input;
    return this.traces(model, text, target ?? "");
  }

  // --- the frame ---

  mount() {
    setLanguage(this.state.get("language") || navigator.languages?.find((one) => one.startsWith("pt")) && "pt-BR" || "en");
    this.screen = null;
    this.shown = "";
    this.failed = new Map();  // models that could not be loaded, and why: they are asked for again by hand alone
    this.models = menu(t("bar.model"), [], "", (model) => this.choose(model), { id: "model" });
    this.second = menu(t("bar.second"), [], "", (b) => this.state.set({ b }), { id: "second" });
    this.badge = make("span", { class: "badge", id: "badge" });
    const languages = menu(t("bar.language"), Object.keys(LANGUAGES).map((one) => [one, one.slice(0, 2).toUpperCase()]), document.documentElement.lang, (language) => this.state.set({ language }), { id: "language" });
    const themes = menu(t("bar.theme"), ["", "light", "dark"].map((theme) => [theme, t(`theme.${theme || "system"}`)]),
      this.state.get("theme"), (theme) => this.state.set({ theme }), { id: "theme" });
    this.files = make("div", { class: "formats", role: "group", "aria-label": t("bar.save") }, make("span", {}, t("bar.save")), ["png", "svg", "html", "json"].map((format) => button(format.toUpperCase(), () => this.save(format))));
    this.more = drop("⋯", { class: "save", label: t("bar.more") }, this.second, this.badge, themes, button(t("bar.copy"), () => this.copy(), { id: "copy" }), this.files,
      button(t("help.open"), () => this.help.showModal(), { "aria-keyshortcuts": "?" }));
    this.opener = button("☰", () => this.unroll(), { class: "opener", "aria-label": t("bar.screens"), "aria-expanded": "false" });
    this.rail = make("nav", { class: "rail", "aria-label": t("bar.screens") });
    this.strip = new InputStrip(this);
    this.heading = make("h1", { tabindex: -1 });
    this.purpose = make("p", { class: "muted purpose" });
    this.honesty = make("p", { class: "honesty" }, t("honesty"), " ", button(t("help.open"), () => this.help.showModal(), { class: "link" }));
    this.problem = make("div", { class: "problem", role: "alert", hidden: true });
    this.place = make("div", { id: "screen" });
    this.live = make("p", { class: "unseen", role: "status" });
    this.help = this.helpDialog();
    const bar = make("header", { class: "bar" }, this.opener, make("strong", { class: "brand" }, make("img", { class: "mark", src: "mark.svg", alt: "" }), make("span", {}, "Atento Studio")), this.models,
      make("span", { class: "right" }, this.finder(), languages, this.more));
    const main = make("main", { id: "main" }, this.heading, this.purpose, this.strip.element, this.problem, this.place, this.honesty);
    document.body.replaceChildren(make("a", { class: "skip", href: "#main", on: { click: (event) => {
      event.preventDefault();
      this.heading.focus();
    } } }, t("bar.skip")), bar, make("div", { class: "below" }, this.rail, main), this.live, this.help);
  }

  // One box finds a screen, a model, or a token of the text.
  finder() {
    const box = make("input", { type: "search", list: "found", placeholder: t("bar.search_hint"), "aria-label": t("bar.search"), "aria-keyshortcuts": "/", on: {
      focus: () => list.replaceChildren(...[...SCREENS.map(({ name }) => t(`screen.${name}`)), ...(this.known?.models ?? [])].map((value) => make("option", { value }))),
      keydown: (event) => { if (event.key === "Enter") find(box.value.trim().toLowerCase()); },
      input: (event) => { if (event.inputType === "insertReplacementText" || !event.inputType) find(box.value.trim().toLowerCase()); },
    } });
    const list = make("datalist", { id: "found" });
    const find = (wanted) => {
      const screen = SCREENS.find(({ name }) => t(`screen.${name}`).toLowerCase() === wanted), model = this.known?.models.find((name) => name.toLowerCase() === wanted);
      if (screen || model) box.value = "";
      if (screen) this.state.set({ screen: screen.name });
      else if (model) this.choose(model);
      else this.strip.find(wanted);
    };
    this.search = box;
    return make("span", { class: "finder" }, box, list);
  }

  // Another model, with the screen that is shown.
  choose(model, more = {}) { this.state.set({ model, ...more, layer: null, head: null, kind: null, pin: null, part: null, at: null, target: null }); }

  helpDialog() {
    const keys = [["← →", "token"], ["↑ ↓", "layer"], ["[ ]", "head"], ["␣", "play"], ["/", "search"], ["?", "help"], ["Esc", "release"]];
    const dialog = make("dialog", { "aria-labelledby": "help-title" }, make("h2", { id: "help-title" }, t("help.title")),
      make("ul", {}, ["route", "deep", "mean", "words", "state"].map((name) => make("li", {}, t(`help.${name}`)))),
      make("table", { class: "keys" }, make("caption", {}, t("help.keys")), make("tbody", {}, keys.map(([key, name]) =>
        make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, key)), make("td", {}, t(`key.${name}`)))))),
      button(t("help.close"), () => dialog.close()));
    return dialog;
  }

  drawRail() {
    const key = JSON.stringify([this.shown, this.reasons]);
    if (this.rail.dataset.key === key) return;
    this.rail.dataset.key = key;
    const entry = ({ name }) => {
      const reason = this.reason(name);
      return make("li", {}, button(t(`screen.${name}`), () => { this.unroll(false); this.state.set({ screen: name }); }, { "data-screen": name,
        "aria-current": name === this.shown ? "page" : null, class: reason ? "off" : null, title: reason || t(`about.${name}`) }));
    };
    this.rail.replaceChildren(...Object.entries(GROUPS).map(([group, screens]) => make("section", {}, make("h2", { id: `group-${group}` }, t(`group.${group}`)), make("ul", { "aria-labelledby": `group-${group}` }, screens.map(entry)))));
  }

  // Why the service or the model cannot feed a screen, in the language of the page; "" if it can.
  reason(name) {
    const reason = this.known?.reasons[name] ?? this.reasons[name];
    if (!reason) return "";
    return has(`reason.${reason.code}`) ? t(`reason.${reason.code}`, reason.values) : reason.text;
  }

  // --- updates ---

  async update(changed) {
    const round = ++this.round, { state } = this, held = document.activeElement;
    const like = () => [...this.place.querySelectorAll(held.tagName)], at = like().indexOf(held);
    this.settled = false;  // for tests
    const language = state.get("language");
    if (language && language !== document.documentElement.lang) this.mount();
    document.documentElement.dataset.theme = state.get("theme");
    const busy = setTimeout(() => this.place.setAttribute("aria-busy", "true"), 150);
    try {
      this.known ??= await about();
      fillMenu(this.models.querySelector("select"), this.known.models.map((name) => [name, name]), this.model);
      fillMenu(this.second.querySelector("select"), [["", t("bar.none")], ...this.known.models.map((name) => [name, name])], state.get("b"));
      const row = SCREENS.find(({ name }) => name === state.get("screen"));
      this.name(row?.name ?? "");
      const told = this.tell(round);
      if (row?.free) told.catch(() => {});  // it needs no model
      else await told;
      if (round !== this.round) return;
      if (!row) throw new Refusal(t("error.screen", { name: state.get("screen").slice(0, 40) }), "unknown_screen", 404);
      if (this.reason(row.name)) {
        const { model } = row.name === "training" || !this.card ? { model: "" } : await call("offer", { screen: row.name });
        if (round !== this.round) return;
        throw Object.assign(new Refusal(this.reason(row.name), "cannot_feed", 0), { offer: model });
      }
      await this.fill(row, changed, round);
      if (round === this.round) this.refuse(null);
      if (at >= 0 && document.activeElement === document.body) like()[at]?.focus({ preventScroll: true });  // it was drawn again
    } catch (error) {
      if (round === this.round && error.name !== "AbortError") this.refuse(error);
    } finally {
      clearTimeout(busy);
      if (round === this.round) {
        this.place.removeAttribute("aria-busy");
        this.settled = true;
      }
    }
  }

  // Shows what the chosen model is and feeds; where it cannot be loaded, the screens that need one say why.
  async tell(round) {
    const asked = [this.model, this.state.get("b")], key = JSON.stringify(asked);
    let found, problem = this.failed.get(key);
    try {
      if (!problem) found = await this.cards(...asked);
    } catch (error) {
      problem = error;
      if ([404, 422].includes(error.status)) this.failed.set(key, error);
    }
    if (round !== this.round) return;
    const [card, reasons] = found ?? [null, Object.fromEntries(SCREENS.filter(({ free }) => !free).map(({ name }) => [name, { text: problem.message }]))];
    Object.assign(this, { card, reasons });
    const { text, second = "", question = "" } = firstExample(card), given = this.state.get("text") !== this.state.defaults.text;
    if (!given) Object.assign(this.state.defaults, { second, question });
    if (text !== this.state.defaults.text) {  // a text that the model reads, where none was given
      this.state.defaults.text = text;
      if (!given && SCREENS.find(({ name }) => name === this.shown)?.text === "only") this.update(new Set(["text"]));
    }
    this.badge.textContent = card ? `${card.device} · ${card.precision}` : "";
    this.drawRail();
    this.strip.update();
    if (problem) throw problem;
  }

  name(screen) {
    this.shown = screen;
    this.place.dataset.screen = screen;
    this.heading.textContent = screen ? t(`screen.${screen}`) : "Studio";
    this.purpose.textContent = screen ? t(`about.${screen}`) : "";
    document.title = `${this.heading.textContent} · Atento Studio`;
    this.drawRail();
  }

  async fill(row, changed, round) {
    this.strip.element.hidden = !row.text;
    this.honesty.hidden = !row.weights;
    this.strip.update();
    if (row.text && row.name !== "tokens" && !this.state.get("text").trim()) {
      this.strip.show(this.strip.trace = null);
      throw new Refusal(t("input.empty"), "empty_text", 422);
    }
    let trace = null;
    if (row.text === "only") this.strip.show(this.strip.trace = null);
    else if (row.text) {
      trace = await this.trace();
      if (round !== this.round) return;
      if (this.strip.trace === trace && !["words", "hide", "ids", "language"].some((name) => changed.has(name))) this.strip.mark();
      else this.strip.show(trace);
      this.strip.trace = trace;
    }
    if (this.screen?.row !== row) {
      this.screen?.close?.();
      this.screen = Object.assign(row.make(this), { row });
      this.place.replaceChildren(this.screen.element);
    }
    this.place.hidden = false;  // a drawing measures its room
    this.place.classList.remove("refused");
    await this.screen.update(trace, changed, () => round === this.round);
    this.files.hidden = !this.screen.figure;
  }

  // Says in one sentence what cannot be shown, in the place of the screen; null: all can.
  refuse(error) {
    const here = [413, 422].includes(error?.status) && this.screen?.row.name === this.shown;  // what was chosen can be changed
    this.place.hidden = Boolean(error) && !here;
    this.place.classList.toggle("refused", Boolean(error));
    this.problem.hidden = !error;
    this.problem.classList.toggle("offers", error?.code === "cannot_feed");
    this.problem.classList.toggle("quiet", error?.code === "empty_text");
    if (!error) return;
    if (!(error instanceof Refusal)) console.error(error);
    const sentence = error instanceof Refusal ? error.message : t("error.page", { what: `${error.name}: ${error.message}` });
    const parts = [make("p", {}, sentence)];
    if (error.code === "wrong_api_key") {
      const key = make("input", { type: "password", autocomplete: "off", "aria-label": t("error.key") });
      parts.push(make("p", {}, key, " ", button(t("error.send"), () => { setKey(key.value); this.update(new Set()); })));
    } else if (error.code === "cannot_feed") {
      if (error.offer) parts.push(make("p", {}, t(`needs.${this.shown}`)), button(t("offer.open", { model: error.offer }), () => this.choose(error.offer, isExample(this.state.get("text")) ? { text: null, second: null, question: null } : {}), { id: "offer" }));
      else if (error.offer === null) parts.push(make("p", {}, t(`needs.${this.shown}`), " ", t("offer.none")));
    } else if (error.code !== "empty_text") {
      parts.push(button(t("error.again"), () => { this.failed.clear(); this.update(new Set()); }), " ",
        make("small", {}, [error.code, error.number].filter(Boolean).join(" · ")));
    }
    this.problem.replaceChildren(...parts);
  }

  // Closes the menus that an element is not in.
  close(target) {
    for (const menu of document.querySelectorAll(".drop[open]")) if (!menu.contains(target)) menu.open = false;
    if (!this.rail.contains(target) && target !== this.opener) this.unroll(false);
  }

  // Shows the list of screens where it has no room beside them.
  unroll(open = !this.rail.classList.contains("open")) {
    this.rail.classList.toggle("open", open);
    this.opener.setAttribute("aria-expanded", String(open));
  }

  // Says something for two seconds, under the menus and to screen readers.
  say(text) {
    clearTimeout(this.silence);
    this.live.textContent = text;
    this.live.className = text ? "toast" : "unseen";
    this.silence = setTimeout(() => { this.live.textContent = ""; this.live.className = "unseen"; }, 2000);
  }

  // --- the shared token ---

  // The place of the pinned token on a side, -1 if it is none of that side.
  pinned(side) {
    const match = /^(\w+)-(\d{1,6})$/.exec(this.state.get("pin"));
    return match && match[1] === side ? Number(match[2]) : -1;
  }

  pin(token) { this.state.set({ pin: token }); }

  // Lights up, in all panels, what stands for the tokens of the element that is pointed at; null: there is none. `data-token` has the
  // first of them ("source-3"), `data-end` the place behind the last one.
  point(pointed) {
    const place = ({ dataset: { token, end } }) => {
      const [side, start] = token.split("-");
      return [side, Number(start), Number(end ?? Number(start) + 1)];
    };
    const [side, start, end] = pointed ? place(pointed) : [""];
    for (const one of document.querySelectorAll("[data-token]")) {
      const [own, from, to] = place(one);
      one.classList.toggle("pointed", own === side && from < end && start < to);
    }
  }

  // --- keys and files ---

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (event.target.closest?.("input:not([type=checkbox]), textarea, select, .scroll, summary")) return;
    if (event.key === " " && event.target.closest?.("button, label, a, input")) return;
    const step = (name, by) => this.step(name, by);
    const actions = { ArrowLeft: () => step("token", -1), ArrowRight: () => step("token", 1), ArrowUp: () => step("layer", 1),
      ArrowDown: () => step("layer", -1), "[": () => step("head", -1), "]": () => step("head", 1), " ": () => this.screen?.play?.(),
      "?": () => this.help.showModal(), "/": () => this.search.focus(), Escape: () => { this.close(null); this.pin(""); } };
    if (!actions[event.key] || actions[event.key]() === false) return;
    event.preventDefault();
  }

  // A step along what the screen says can be chosen (`choices(name)`); false if there is nothing to choose.
  step(name, by) {
    if (name === "token") return this.stepToken(by);
    if (this.screen?.move) return this.screen.move(name, by);
    const choices = this.screen?.choices?.(name)?.map(String);
    if (!choices) return false;
    const next = choices[choices.indexOf(this.state.get(name)) + by];
    if (next !== undefined) this.state.set({ [name]: next });
    return true;
  }

  stepToken(by) {
    if (this.screen?.turn) return this.screen.turn(by);
    const chips = [...this.strip.chips.querySelectorAll(".chip")];
    if (this.strip.element.hidden || !chips.length) return false;
    const now = chips.indexOf(this.strip.pinned());
    this.pin(chips[now < 0 ? (by > 0 ? 0 : chips.length - 1) : Math.max(0, Math.min(chips.length - 1, now + by))].dataset.token);
    return true;
  }

  // A link to what is shown, with its text also where that is the example to begin with, which the address leaves out.
  get link() {
    const { state, strip } = this, shown = strip.element.hidden ? [] : ["text", "second", "question"].filter((name) => state.get(name));
    return `${location.href.split("#")[0]}#${new URLSearchParams({ ...state.values, ...Object.fromEntries(shown.map((name) => [name, state.get(name)])) })}`;
  }

  async copy() {
    this.close(null);
    try {
      await navigator.clipboard.writeText(this.link);
      this.say(t("bar.copied"));
    } catch {
      this.say(t("bar.not_copied"));
    }
  }

  async save(format) {
    this.close(null);
    try {
      const figure = this.screen?.figure?.();
      if (!figure) throw new Refusal(t("error.nothing_to_save"), "nothing_to_save", 0);
      download(await saved(figure, format), `${figure.name}.${format}`);
    } catch (error) {
      this.refuse(error);
    }
  }
}

globalThis.studio = new Studio();
