// The picture of One sentence: tokens as bands through the layers, attention as threads between them, heads as small maps.
// It runs from left to right; on a narrow page, from the top down. `along` counts in its direction, `across` over the tokens.
import { make, svg } from "./dom.js";
import { css } from "./maps.js";

const NARROW = 640, WIDTHS = [0.02, 0.08, 0.2, 0.4, 0.7];  // weights from which a thread is drawn in one more width
// A piece without the sign that it begins a word, or goes on with one.
export const clean = (label) => label.replace(/^[▁Ġ]/u, "").replace(/^##/, "") || "␣";
const short = (label, most) => (label.length > most ? `${label.slice(0, most - 1)}…` : label);

const round = (value) => Math.round(10 * value) / 10;
const MOST = 500;  // threads of a layer that are drawn at once, the strongest
const chosen = new WeakMap();
function strongest(links) {
  if (links.length <= MOST) return links;
  if (!chosen.has(links)) {
    const least = links.map((link) => link[2]).sort((a, b) => b - a)[MOST];
    chosen.set(links, links.filter((link) => link[2] >= least));
  }
  return chosen.get(links);
}

// An image of values from -1 to 1, or of shares, as a data address: a pixel a value, or `high` pixels and one between.
function image(width, height, value, above, below = above, high = 1) {
  const canvas = make("canvas", { width, height: height * (high + (high > 1 ? 1 : 0)) }), ctx = canvas.getContext("2d"), pixels = new ImageData(width, canvas.height);
  const [raised, lowered] = [above, below].map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));  // #rrggbb
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const share = value(row, column), [red, green, blue] = share < 0 ? lowered : raised;
      for (let part = 0; share && part < high; part++) {
        const at = 4 * ((row * (high > 1 ? high + 1 : 1) + part) * width + column);
        pixels.data[at] = red;
        pixels.data[at + 1] = green;
        pixels.data[at + 2] = blue;
        pixels.data[at + 3] = 255 * Math.min(1, Math.abs(share));
      }
    }
  }
  ctx.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

// An image of some data, made once for each key.
const known = new WeakMap();
function once(data, key, make) {
  if (!known.has(data)) known.set(data, new Map());
  const made = known.get(data);
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

// The small map of a head.
function mapImage({ data, rows, columns }, head, colour) {
  const base = head * rows * columns;
  return once(data, `${head} ${colour}`, () => image(columns, rows, (row, column) => data[base + row * columns + column] / 255, colour));
}

export class River {
  // `given`: stacks [{ name, side, labels, norms, vectors }], links { kind: [[row, column, weight]s a layer] }, maps { kind: overview },
  // `written` (labels behind the last stack), `onward` (what comes later is faint), `texts` (names), and `open(part)`, `point(side, place)`, `choose(side, place)`.
  constructor(given, width) {
    Object.assign(this, given);
    this.narrow = width < NARROW;
    this.width = width;
    this.most = Math.max(...this.stacks.map(({ labels }) => labels.length));
    this.layout();
    this.threads = svg("g", { class: "threads" });
    this.lit = svg("g", { class: "lit" });
    this.fan = svg("g", { class: "fan" });
    this.front = svg("g", {});
    const scale = Math.max(0.8, Math.min(1, width / this.size[0]));  // what is little too wide is drawn smaller; what is much wider scrolls
    this.element = svg("svg", { class: this.lane < 4 ? "river dense" : "river", viewBox: `0 0 ${this.size[0]} ${this.size[1]}`, width: Math.floor(scale * this.size[0]), height: Math.floor(scale * this.size[1]), role: "group", "aria-label": this.texts.title },
      svg("defs", {}, svg("linearGradient", { id: "bridge", gradientUnits: "userSpaceOnUse", ...this.ends() }, svg("stop", { offset: 0, class: "from" }), svg("stop", { offset: 1, class: "to" }))),
      svg("rect", { width: "100%", height: "100%", class: "ground" }), this.threads, this.lit, this.front, this.fan);
    this.draw();
    this.listen();
  }

  // --- places ---

  layout() {
    const { narrow, stacks, width } = this, gates = stacks.reduce((sum, { norms }) => sum + norms.length - 1, 0), two = stacks.length > 1;
    this.lane = narrow ? Math.min(40, (width - 12) / this.most) : Math.min(27, 430 / this.most);
    const cells = narrow ? 20 : 34, out = this.written ? (narrow ? (this.tilts(this.written) ? 60 : 34) : 64) : 8, end = narrow ? 150 : 264;
    const room = ({ labels }) => (narrow ? 56 : this.lane < 11 ? 14 : 20 + 7.4 * Math.min(9, Math.max(4, ...labels.map((one) => clean(one).length))));
    const fixed = stacks.reduce((sum, stack) => sum + room(stack) + cells, 0) + (two ? 134 : 0) + out + end;
    this.gap = narrow ? 0 : Math.max(48, Math.min(280, (width - fixed) / gates));
    const most = (maps) => Math.max(1, ...maps.flatMap(({ heads }) => heads)), own = most(Object.entries(this.maps).flatMap(([kind, one]) => (kind === "cross" ? [] : [one])));
    const grid = (heads, room, wrap) => {
      const columns = narrow ? Math.min(heads, 8) : wrap && room / heads < 24 ? Math.ceil(Math.sqrt(heads)) : heads, size = Math.min(narrow ? 44 : 34, Math.max(3, room / columns - 3));
      return { columns, size, tall: Math.ceil(heads / columns) * (size + 3) };
    };
    const cross = this.maps.cross?.heads.length ?? 0;
    this.grids = { own: grid(own, narrow ? width - 16 : this.gap - 12, true), cross: grid(cross ? most([this.maps.cross]) : 1, narrow ? width - 16 : 116, false) };
    this.over = (layers, { tall } = this.grids.own) => 22 + tall * layers + 6;  // what stands over the threads of a gap
    this.from = narrow ? Math.max(6, (width - this.lane * this.most) / 2) : Math.max(this.over(1), two ? this.over(cross, this.grids.cross) : 0) + 4;
    if (narrow) this.gap = this.over(1) + 78;
    let along = 0;
    for (const stack of stacks) {
      const label = room(stack);
      if (stack !== stacks[0]) {
        stack.bridge = [along + 4, along + (narrow ? this.over(cross, this.grids.cross) + 86 : 136)];
        along += narrow ? this.over(cross, this.grids.cross) + 92 : 134;
      }
      stack.label = along + label - 6;
      stack.cells = along + label;
      stack.at = stack.norms.map((_, layer) => along + label + cells + layer * this.gap);
      along = stack.at.at(-1);
    }
    this.out = along + 8;
    this.tip = along + out;
    const deep = along + out + end, broad = this.from + this.lane * this.most + 10;
    this.size = narrow ? [width, Math.ceil(deep)] : [Math.ceil(Math.max(width, deep)), Math.ceil(Math.max(broad, this.from + 190))];
    this.room = narrow ? width : this.size[1];
    this.largest = Math.max(...stacks.flatMap(({ norms }) => norms.flat())) || 1;
  }

  // Whether labels stand slantwise: side by side they have no room.
  tilts(labels) { return this.narrow && labels.some((label) => label !== null && clean(label).length * 6.5 > this.lane); }

  across(place) { return this.from + this.lane * (place + 0.5); }

  spot(along, across) { return this.narrow ? `${round(across)},${round(along)}` : `${round(along)},${round(across)}`; }

  ends() {
    const [from, to] = this.stacks[1]?.bridge ?? [0, 1];
    return this.narrow ? { x1: 0, y1: from, x2: 0, y2: to } : { x1: from, y1: 0, x2: to, y2: 0 };
  }

  curve(from, a, to, b) { return this.curves(from, to)(String(round(a)), String(round(b))); }

  // What draws the curves from one place along to another, between two places across, which are texts: there are thousands.
  curves(from, to) {
    const [start, middle, end] = [from, (from + to) / 2, to].map((place) => String(round(place)));
    return this.narrow ? (a, b) => `M${a},${start}C${a},${middle} ${b},${middle} ${b},${end}` : (a, b) => `M${start},${a}C${middle},${a} ${middle},${b} ${end},${b}`;
  }

  // The outline of a token's band, whose width is the length of its vector before and after each layer.
  band({ at, norms }, place) {
    const middle = this.across(place), half = (layer) => Math.max(0.3, 0.36 * this.lane * norms[layer][place] / this.largest);
    const side = (sign, layers) => layers.map((layer, n) => {
      const spot = this.spot(at[layer], middle + sign * half(layer));
      if (!n) return spot;
      if (this.lane < 4) return `L${spot}`;  // too thin for a curve
      const before = layers[n - 1], half_way = (at[before] + at[layer]) / 2;
      return `C${this.spot(half_way, middle + sign * half(before))} ${this.spot(half_way, middle + sign * half(layer))} ${spot}`;
    }).join("");
    const order = [...at.keys()];
    return `M${side(-1, order)}L${side(1, order.toReversed())}Z`;
  }

  // The kinds of attention with the place of each layer's threads: [kind, layer, from, to, the stack that reads].
  gaps() {
    return this.stacks.flatMap((stack) => {
      const own = stack.norms.slice(1).map((_, layer) => [stack.name, layer, stack.at[layer] + (this.narrow ? this.over(1) : 6), stack.at[layer + 1] - 16, stack]);
      const cross = this.maps.cross?.heads.length ?? 0;
      return [...own, ...(stack.bridge && cross ? [["cross", this.bridged ?? cross - 1, stack.bridge[0] + (this.narrow ? this.over(cross, this.grids.cross) : 0), stack.bridge[1] - 4, stack]] : [])];
    }).filter(([kind, layer]) => this.links[kind]?.[layer]);
  }

  // --- drawing ---

  draw() {
    this.front.replaceChildren(...this.stacks.flatMap((stack) => [...this.bands(stack), ...this.gates(stack), ...this.names(stack)]), ...this.heads());
    this.tokens = [...this.front.querySelectorAll("[data-token]")].map((one) => [one, one.dataset.token.split("-")[0], Number(one.dataset.token.split("-")[1])]);
    this.weave();
  }

  // What is pointed at and pressed: one listener for all tokens and parts.
  listen() {
    const token = (target) => target.closest?.("[data-token]")?.dataset.token.split("-"), part = (target) => target.closest?.("[data-part]")?.dataset.part;
    const press = (target) => {
      const [side, place] = token(target) ?? [];
      if (part(target)) this.open(part(target));
      else if (side) this.choose(side, Number(place));
    };
    const over = ({ target }) => {
      const [side, place] = token(target) ?? [], named = target.closest?.("[data-part]");
      if (side) this.point(side, Number(place));
      if (named && !named.querySelector("title")) named.append(svg("title", {}, named.getAttribute("aria-label")));
    };
    const on = { click: ({ target }) => press(target), pointerover: over,
      pointerout: ({ target }) => { if (token(target)) this.point(null); },
      keydown: (event) => { if (["Enter", " "].includes(event.key) && part(event.target)) { event.preventDefault(); event.stopPropagation(); press(event.target); } } };
    for (const [name, handler] of Object.entries(on)) this.element.addEventListener(name, handler);
  }

  bands(stack) {
    return stack.labels.map((_, place) => svg("path", { d: this.band(stack, place), class: `band ${stack.name}`, "data-token": `${stack.side}-${place}` }));
  }

  // What opens when it is pressed.
  part(name, label, about, ...content) {
    return svg("g", { class: "part", role: "button", tabindex: 0, "aria-label": label, "aria-pressed": "false", "data-part": name, ...about }, ...content);
  }

  box(along, across, deep, broad, about) {
    const [x, y, width, height] = this.narrow ? [across, along, broad, deep] : [along, across, deep, broad];
    return svg("rect", { x: x.toFixed(1), y: y.toFixed(1), width, height, ...about });
  }

  gates(stack) {
    const { length } = stack.labels, broad = this.lane * length, most = Math.max(...stack.vectors.flat().map(Math.abs)) || 1, width = stack.vectors[0].length;
    const [above, below] = [css("--raises"), css("--lowers")], value = (row, column) => Math.sqrt(Math.abs(stack.vectors[row][column]) / most) * Math.sign(stack.vectors[row][column]);
    const high = length < 60 ? 4 : 1, deep = this.narrow ? 14 : 26, [x, y] = this.narrow ? [this.from, stack.cells] : [stack.cells, this.from];
    const turned = once(stack.norms, `${this.narrow} ${above}`, () => (this.narrow ? image(length, width, (row, column) => value(column, row), above, below) : image(width, length, value, above, below, high)));
    const picture = svg("image", { x, y, width: this.narrow ? broad : deep, height: this.narrow ? deep : broad, preserveAspectRatio: "none", href: turned });
    const name = (layer) => `${this.texts[stack.name]} ${layer}`;
    return [this.part(`vectors-${stack.name}`, this.texts.vectors, {}, this.box(stack.cells - 2, this.from, deep + 4, broad, { class: "back" }), picture),
      ...(stack.plain ? [] : stack.at.slice(1).map((end, layer) => this.part(`forward-${stack.name}-${layer}`, `${name(layer)}: ${this.texts.forward}`, {},
        this.box(end - 13, this.from - 2, 9, broad + 4, { rx: 4.5, class: "gate" }))))];
  }

  names(stack) {
    const shown = this.lane >= 11, leans = this.tilts(stack.labels), slants = this.tilts(this.written || []);
    const text = (along, place, label, tilt, about) => {
      const [x, y] = this.narrow ? [this.across(place), along] : [along, this.across(place) + 4.5];
      return svg("text", { x, y, "text-anchor": this.narrow ? (tilt ? "start" : "middle") : "end", class: "name", ...(tilt ? { transform: `rotate(-60 ${x} ${y})` } : {}), ...about }, label);
    };
    const own = stack.labels.map((label, place) => (shown ? text(stack.label, place, short(clean(label), leans ? 7 : 9), leans, {
      "data-token": `${stack.side}-${place}`, class: `name ${stack.name}` }) : null));
    const behind = stack === this.stacks.at(-1) && this.written && shown ? this.written.map((label, place) => (label === null ? null :
      text(this.out + (slants ? 46 : this.narrow ? 14 : 0), place, short(clean(label), slants ? 7 : 8), slants, { ...(this.narrow ? {} : { "text-anchor": "start" }), class: "name written", "data-token": `${stack.side}-${place}` }))) : [];
    const head = stack === this.stacks[0] && !this.narrow ? this.part("pieces", this.texts.pieces, {}, svg("text", { class: "title", x: 4, y: 14 }, this.texts.pieces)) : null;
    return [head, ...own, ...behind].filter(Boolean);
  }

  // The heads of each layer as small maps over its threads.
  heads() {
    return Object.entries(this.maps).flatMap(([kind, map]) => {
      const reader = this.stacks.find(({ name }) => name === kind) ?? this.stacks.at(-1), colour = css(kind === "encoder" ? "--reads" : kind === "cross" ? "--bridge" : "--writes");
      let next = 0;
      return map.heads.flatMap((count, layer) => {
        const { columns: across, size, tall } = this.grids[kind === "cross" ? "cross" : "own"], step = size + 3, start = kind === "cross" ? reader.bridge[0] : reader.at[layer];
        const room = kind === "cross" && !this.narrow ? 132 : this.gap, wide = Math.min(count, across) * step;
        const left = this.narrow ? (this.width - wide) / 2 : start + (room - 10 - wide) / 2 + 2, top = (this.narrow ? start : 0) + 22 + (kind === "cross" ? layer * tall : 0);
        const whole = `${this.texts[kind]} ${layer}`, title = kind === "cross" ? this.texts.cross : this.gap < 8 * whole.length && !this.narrow ? String(layer) : whole;
        const named = kind === "cross" && layer ? [] : [svg("text", { class: "title", x: this.narrow ? this.width / 2 : start + room / 2 - 3, y: top - 8, "text-anchor": "middle" }, title)];
        return [...named, ...Array.from({ length: count }, (_, head) => {
          const x = left + (head % across) * step, y = top + Math.floor(head / across) * step;
          return this.part(`head-${kind}-${layer}-${head}`, `${this.texts[kind]} ${layer}, ${this.texts.head} ${head}`, { "data-kind": kind }, svg("rect", { x: x - 1, y: y - 1, width: size + 2, height: size + 2, rx: 3, class: "back" }),
            svg("image", { x, y, width: size, height: size, preserveAspectRatio: "none", href: mapImage(map, next++, colour) }));
        })];
      });
    });
  }

  // The threads of all tokens, in a few paths: what is strong is thick.
  weave() {
    const thick = Math.min(8, 0.34 * this.lane), spots = Array.from({ length: this.most }, (_, place) => String(round(this.across(place))));
    this.threads.replaceChildren(...this.gaps().flatMap(([kind, layer, from, to]) => {
      const paths = WIDTHS.map(() => ""), curve = this.curves(from, to);
      for (const [row, column, weight] of strongest(this.links[kind][layer])) {
        const width = WIDTHS.findLastIndex((start) => weight >= start);
        if (width >= 0) paths[width] += curve(spots[column], spots[row]);
      }
      return paths.map((d, at) => (d ? svg("path", { d, class: `thread ${kind}`, "stroke-width": Math.max(0.5, thick * (WIDTHS[at] + 0.12)).toFixed(2), "stroke-opacity": 0.2 + 0.06 * at }) : null)).filter(Boolean);
    }));
  }

  // Lights up what a token reads in its own stack and over the bridge, and what of the other stack is read with it.
  light(side, place, chosen) {
    const thick = Math.min(10, 0.4 * this.lane), shares = new Map(), lit = [];
    const reads = this.stacks.find((stack) => stack.side === side), last = this.stacks.at(-1);
    for (const [kind, layer, from, to, stack] of reads ? this.gaps() : []) {
      const backwards = kind === "cross" && side !== stack.side;
      if (kind !== "cross" && stack !== reads) continue;
      for (const [row, column, weight] of this.links[kind][layer]) {
        if ((backwards ? column : row) !== place || weight < 0.02) continue;
        lit.push(svg("path", { d: this.curve(from, this.across(column), to, this.across(row)), class: `thread ${kind}`, pathLength: 1, "stroke-width": Math.max(0.8, thick * (weight + 0.05)).toFixed(2), "stroke-opacity": Math.min(1, 0.3 + weight) }));
        if (kind === "cross") shares.set(`${backwards ? last.side : this.stacks[0].side}-${backwards ? row : column}`, weight);
      }
    }
    this.lit.replaceChildren(...lit);
    this.element.classList.toggle("lighted", lit.length > 0);
    const most = Math.max(0.05, ...shares.values());
    for (const token of this.tokens) {  // those of a long text that look as before are left alone
      const [one, own, at, before] = token, here = own === side && at === place, share = here ? "1" : ((shares.get(`${own}-${at}`) ?? 0) / most).toFixed(3);
      const ahead = own === last.side && Boolean(this.onward) && at > chosen, look = `${here} ${ahead} ${share}`;
      if (look === before) continue;
      token[3] = look;
      one.classList.toggle("here", here);
      one.classList.toggle("ahead", ahead);
      one.style.setProperty("--share", share);
    }
  }

  // From a token, or from all (`place` null), to what the model says: [label, share, value, press]; or to one vector of numbers.
  say(place, rows, places = [place], vector = null) {
    const wide = Math.max(74, ...rows.map(([label], at) => clean(label).length * (at ? 9 : 12.5) + 8)), step = this.narrow ? Math.min(wide, (this.width - 10) / Math.max(1, rows.length)) : 31, span = step * (rows.length - 1);
    const middle = places.length > 1 || this.narrow ? (this.narrow ? this.width / 2 : this.from + this.lane * this.most / 2) : this.across(places[0] ?? 0);
    const first = Math.max(this.narrow ? step / 2 + 4 : 36, Math.min(this.room - span - (this.narrow ? step / 2 + 4 : 18), middle - span / 2));
    const knot = this.tip + (places.length > 1 ? 34 : 0), source = places.length > 1 ? middle : this.across(places[0] ?? 0);
    const joined = places.length > 1 ? places.map((one) => svg("path", { d: this.curve(this.stacks.at(-1).at.at(-1), this.across(one), knot, middle), class: "ray", "stroke-width": Math.max(0.5, Math.min(2, 40 / places.length)), "stroke-opacity": 0.3 })) : [];
    const end = knot + (this.narrow ? 58 : 52);
    const ending = this.part("end", this.texts.end, {}, svg("text", { class: "title", ...(this.narrow ? { x: this.width / 2, y: end + 62, "text-anchor": "middle" } : { x: this.size[0] - 6, y: 14, "text-anchor": "end" }) }, this.texts.end));
    this.fan.replaceChildren(...joined, ending, ...(vector ? this.summed(vector, knot, middle) : []), ...rows.flatMap(([label, share, value, press, about], at) => {
      const across = first + at * step, small = at > 0 || (this.narrow && clean(label).length * 12.5 > step), big = at === 0 ? `said first${small ? " long" : ""}` : "said";
      const [x, y] = this.narrow ? [across, end + 20] : [end + 8, across + (at === 0 ? 6 : 5)];
      const words = svg("text", { x, y, class: big, "text-anchor": this.narrow ? "middle" : "start" }, short(clean(label), Math.floor((this.narrow ? step : this.size[0] - end - 66) / (small ? 9 : 12.5))));
      const number = svg("text", { x: this.narrow ? x : this.size[0] - 6, y: this.narrow ? y + 17 : y, class: "tick", "text-anchor": this.narrow ? "middle" : "end" }, value);
      const hit = svg("rect", { class: "hit", ...(this.narrow ? { x: x - step / 2 + 2, y: y - 20, width: step - 4, height: 42 } : { x: x - 4, y: across - 14, width: this.size[0] - x, height: 28 }) });
      return [svg("path", { d: this.curve(knot - 2, source, end, across), class: "ray", pathLength: 1, "stroke-width": (1 + Math.max(0, share) * 15).toFixed(2) }),
        press ? svg("g", { class: "part", role: "button", tabindex: 0, "aria-label": `${label} ${value}`, ...about, on: { click: press, keydown: (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); event.stopPropagation(); press(); } } } }, hit, words, number) : svg("g", about ?? {}, words, number)];
    }));
  }

  // One vector that stands for the whole text, cell by cell.
  summed(vector, knot, middle) {
    const most = Math.max(...vector.map(Math.abs)) || 1, long = this.narrow ? this.width - 40 : Math.min(this.room - 60, 260), end = knot + 52;
    const cell = (at) => Math.sqrt(Math.abs(vector[at]) / most) * Math.sign(vector[at]), colours = [css("--raises"), css("--lowers")];
    const href = this.narrow ? image(vector.length, 1, (_, at) => cell(at), ...colours) : image(1, vector.length, cell, ...colours);
    const first = Math.max(this.narrow ? 20 : 40, Math.min(this.room - long - 10, middle - long / 2)), [x, y, width, height] = this.narrow ? [first, end, long, 26] : [end, first, 26, long];
    return [svg("path", { d: this.curve(knot - 2, middle, end, first + long / 2), class: "ray", "stroke-width": 12 }), svg("rect", { x: x - 2, y: y - 2, width: width + 4, height: height + 4, class: "back" }),
      svg("image", { class: "vector", x, y, width, height, preserveAspectRatio: "none", href }),
      svg("text", { class: "said", ...(this.narrow ? { x: x + width / 2, y: y + 46, "text-anchor": "middle" } : { x: x + 40, y: y + height / 2 + 5 }) }, this.texts.numbers)];
  }

  // Marks the part that is open.
  mark(name) { for (const one of this.element.querySelectorAll("[data-part]")) one.setAttribute("aria-pressed", String(one.dataset.part === name)); }
}
