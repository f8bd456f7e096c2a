// Models: what each one is, and the diagram of its own blocks.
import { bytes } from "../api.js";
import { button, folded, make } from "../dom.js";
import { boxed, refused, t, whole } from "../i18n.js";

// A diagram in the language of the page: as SVG, and as text, whose lines are a name, its repetitions, details and parameters.
function translated(svgText) {
  return svgText.replace(/(<text[^>]*>)([^<]*)/g, (all, start, text) => start + boxed(text.replaceAll("&#x27;", "'")));
}

function outlined(text) {
  return text.replace(/^( *)(.*?)( × \d+)?(?: \((.*)\))?(  [\d,]+)?$/gm, (line, indent, name, times = "", details, count = "") =>
    indent + boxed(name) + times + (details ? ` (${boxed(details)})` : "") + (count && `  ${boxed(count.trim())}`));
}

class Models {
  constructor(studio) {
    this.studio = studio;
    this.list = make("ul", { class: "cards", "aria-label": t("models.all") });
    this.facts = make("dl", { class: "facts" });
    this.picture = make("img", { class: "diagram paper" });
    this.text = make("pre", {});
    this.equivalent = folded(t("models.as_text"), () => this.text);
    this.element = make("div", {}, this.list, make("div", { class: "panels" },
      make("section", { class: "panel", "aria-label": t("models.diagram") }, this.picture, this.equivalent),
      make("section", { class: "panel", "aria-label": t("models.facts") }, this.facts)));
  }

  async update(trace, changed, current) {
    const { card, known, model } = this.studio;
    this.list.replaceChildren(...known.models.map((name) => make("li", {}, button(name, () => this.studio.choose(name), { "aria-pressed": String(name === model), class: "card" }))));
    const number = (value) => (value === null ? t("models.none") : whole(value));
    const rows = { task: card.task || t("models.none"), architecture: [card.architecture, card.family].filter(Boolean).join(" · "),
      verbs: card.verbs.join(", ") || t("models.none"), parameters: number(card.parameters), layers: card.layers.join(" + "), heads: number(card.heads),
      width: number(card.width), vocabulary: number(card.vocabulary), tokenizer: card.tokenizer || t("models.none"), mask: refused(card.mask) || t("models.none"),
      positions: card.positions.join(", ") || t("models.none"), longest: number(card.longest) };
    this.facts.replaceChildren(...Object.entries(rows).flatMap(([name, value]) =>
      [make("dt", {}, t(`models.${name}`)), make("dd", {}, value)]));
    this.picture.hidden = !card.diagram;
    this.text.textContent = card.diagram ? outlined(card.diagram) : t("models.no_diagram");
    this.equivalent.renew();
    if (!card.diagram) return;
    const { data } = await bytes("diagram", { model });
    if (!current()) return;
    this.svgText = translated(new TextDecoder().decode(data));
    URL.revokeObjectURL(this.picture.src);
    this.picture.src = URL.createObjectURL(new Blob([this.svgText], { type: "image/svg+xml" }));
    this.picture.alt = t("models.diagram_of", { name: model });
  }

  figure() {
    if (!this.studio.card.diagram) return null;
    return { name: `${this.studio.model}-diagram`, title: this.picture.alt, svgText: this.svgText, data: this.studio.card,
      tables: () => [make("pre", {}, outlined(this.studio.card.diagram))] };
  }

  close() { URL.revokeObjectURL(this.picture.src); }
}

export default { name: "models", make: (studio) => new Models(studio) };
