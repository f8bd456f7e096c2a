// The parts of One sentence, unfolded: each says in one sentence what it does, with its numbers, its screen, its notes, its code.
import { Refusal, call } from "./api.js";
import { bars, percent } from "./bars.js";
import { strips } from "./charts.js";
import { button, make, number, table } from "./dom.js";
import { t, whole } from "./i18n.js";
import { clean } from "./sentence_picture.js";
import { sourceOf } from "./source.js";

const CELLS = 64;  // numbers of a vector that are drawn

function strip(title, rows, room = 640, left = 90) {
  const shown = rows.filter(([, values]) => values).map(([name, values]) => [name, values.slice(0, CELLS)]);
  return make("div", { class: "window", tabindex: 0, role: "group", "aria-label": title }, strips(title, shown, (label, column, value) => t("inside.cell", { label, column, value: number(value, 6) }), room, left));
}

// What a row of keys is worth to the query: scores as bars to both sides, weights as bars.
function weighed({ row }, labels) {
  const most = Math.max(1e-9, ...row.score.map(Math.abs)), shown = labels.map((label, at) => [label, at]).sort((a, b) => row.weight[b[1]] - row.weight[a[1]]).slice(0, 12);
  const bar = (share, name) => {
    const fill = make("i", { class: name });
    fill.style.setProperty("width", `${Math.min(100, 100 * Math.abs(share))}%`);
    return make("span", { class: "track", "aria-hidden": "true" }, fill);
  };
  return make("ol", { class: "links weighed", "aria-label": t("one.keys") }, shown.map(([label, at]) => make("li", {}, make("span", { class: "name" }, label),
    bar(row.score[at] / most, row.score[at] < 0 ? "lowers" : "raises"), make("span", { class: "value" }, row.allowed[at] ? number(row.score[at], 3) : "–"),
    bar(row.weight[at], "reads"), make("span", { class: "value" }, number(row.weight[at], 3)))));
}

async function head(screen, [, kind, layer, one], place) {
  const { full, flow } = screen, found = await call("inside", { ...full, kind, layer: Number(layer), head: Number(one), query: place });
  const side = (way) => flow.sides[flow.kinds[kind][way]].tokens.map(([label]) => label), names = { query: clean(side("rows")[place]), key: clean(side("columns")[found.key]) };
  const { vectors } = found;
  const step = (name, ...content) => make("div", { class: "stage" }, make("h3", {}, t(`one.stage.${name}`, names)), ...content);
  const pin = `${flow.kinds[kind].rows === "source" ? "source" : "output"}-${place}`;
  return { title: t("one.head", { kind: t(kind === "cross" ? "one.bridge" : `kind.${kind}`), layer, head: one }), text: t("one.about.head", names),
    content: [make("div", { class: "stages" }, step("vectors", strip(t("one.stage.vectors", names), [[t("inside.query"), vectors.query], [t("inside.key"), vectors.key]], 330, 64)),
      step("scores", weighed(found, side("columns"))), step("values", strip(t("one.stage.values", names), [[t("inside.value"), vectors.value], [t("inside.output"), vectors.output]], 330, 64)))],
    to: [["inside", { kind, layer, head: one, pin }], ["heads", { kind, layer, head: one, pin }]], notes: ["A9", "A11"], code: ["equation.weigh", "kernels.plain"] };
}

async function forward(screen, [, kind, layer], place) {
  const { inner, adds, norms } = await call("feed_forward", { ...screen.full, kind, layer: Number(layer), place });
  const active = inner.filter((value) => Math.abs(value) > 1e-3).length, label = screen.river.stacks.find(({ name }) => name === kind).labels[place];
  const strongest = inner.map((value, at) => [value, at]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 8), most = Math.abs(strongest[0][0]) || 1;
  return { title: t("one.forward_of", { kind: t(`kind.${kind}`), layer }), text: t("one.about.forward", { token: clean(label), active: whole(active), all: whole(inner.length), adds: number(adds, 2), from: number(norms[0], 2), to: number(norms[1], 2) }),
    content: [strip(t("one.units"), [[t("one.units"), inner]]), bars(t("one.strongest"), strongest.map(([value, at]) => [t("one.unit", { at }), Math.abs(value) / most, number(value, 4)]))],
    to: [["models", {}]], notes: ["C2"], code: ["FeedForward.forward"] };
}

async function vectors(screen, [, kind], place) {
  const stack = screen.river.stacks.find(({ name }) => name === kind) ?? screen.river.stacks[0];
  return { title: t("one.vectors"), text: t("one.about.vectors", { token: clean(stack.labels[place]), width: whole(stack.width), shown: whole(stack.vectors[0].length) }), content: [strip(t("one.vectors"), [[stack.labels[place], stack.vectors[place]]])],
    to: [["positions", {}]], notes: ["B1"], code: ["InputLayer.forward"] };
}

async function pieces(screen) {
  const { source } = screen.flow.sides;
  return { title: t("one.pieces"), text: t("one.about.pieces"), content: [make("ol", { class: "chips" }, source.tokens.map(([label], at) => make("li", {}, make("span", { class: "chip plain" }, label), make("small", {}, String(source.ids[at])))))],
    to: [["tokens", {}]], notes: ["D1"], code: ["Tokenizer.encode"] };
}

// What is said in the end, and for the vocabulary what would have been said after each layer.
async function end(screen, parts, place, { rows, found, vector }) {
  const { ends } = screen, screens = { next: screen.writes ? ["translate", "beam", "next"] : ["next", "beam"], fill: ["fill"], labels: ["labels", "why"], tags: ["labels"], answers: ["answer"], vector: ["compare"] }[ends];
  const most = rows[0]?.[1] || 1, list = bars(t("one.end"), rows.map(([label, share, value, press]) => [label, share / most, value, press]));
  const layers = found ? table(t("one.lens", { token: found.follows }), [t("heads.layer"), t("one.says"), found.follows], found.layers.map(({ share, tokens }, layer) =>
    [layer ? String(layer - 1) : t("one.before"), tokens.map(([token, p]) => `${token} ${percent(p)}`).join("  "), percent(share)])) : null;
  return { title: t("one.end"), text: t(`one.about.${ends}`, { entropy: found ? number(found.entropy, 2) : "" }), content: [vector ? strip(t("one.end"), [["", vector]], 640, 8) : make("div", { class: "stages" }, list, ...(layers ? [make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("one.lens", { token: found.follows }) }, layers)] : []))],
    to: screens.map((name) => [name, {}]), notes: ["C5"], code: [screen.writes ? "EncoderDecoder.forward" : ends === "next" ? "Decoder.forward" : "Encoder.forward"] };
}

const PARTS = { head, forward, vectors, pieces, end };

// The panel of a part: its sentence, its numbers, and where to go on.
export async function unfolded(screen, part, place, said) {
  const parts = part.split("-");
  if (!(parts[0] in PARTS)) return null;
  const { state } = screen.studio;
  const failed = (error) => {
    if (!(error instanceof Refusal)) throw error;
    return { title: part, text: error.message, content: [], to: [], notes: [], code: [] };  // the picture stays
  };
  const { title, text, content, to, notes, code } = await PARTS[parts[0]](screen, parts, place, said).catch(failed);
  return make("section", { class: "panel unfold", "aria-label": title }, make("div", { class: "pinned" }, make("h2", {}, title), button("×", () => state.set({ part: null }), { "aria-label": t("help.close") })),
    make("p", {}, text), ...content, make("p", { class: "onward" }, ...to.map(([name, values]) => button(t("one.open", { screen: t(`screen.${name}`) }), () => state.set({ screen: name, ...values }))),
      notes.length ? make("span", { class: "muted" }, t("one.notes"), " ", ...notes.flatMap((row) => [make("code", {}, `atento notes ${row}`), " "])) : null), ...code.map(sourceOf));
}
