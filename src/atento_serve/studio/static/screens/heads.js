// Heads: where each token looks. Lines between two columns of tokens, a heat map, or all heads as small pictures.
import { bytes, call, matrix, remembering } from "../api.js";
import { button, drop, folded, make, menu, fillMenu, number, table } from "../dom.js";
import { many, refused, t } from "../i18n.js";
import { css, drawHeat, drawLines, fillTokens, groupsOf, headColour, heatGeometry, heatHit, largest, largestOf, linkViews, MOST_LINKS, rampColours, shadeTokens,
  sized, strongest, viewOf } from "../maps.js";

const VIEWS = ["lines", "heat", "overview"], BADGES = ["entropy", "distance", "own", "first", "previous", "special", "induction"];

class Heads {
  constructor(studio) {
    this.studio = studio;
    this.weights = remembering(64, (fields) => matrix("weights", { format: "f32", ...fields }));
    this.strong = remembering(64, (fields) => bytes("links", fields));
    this.overviews = remembering(4, (fields) => bytes("overview", fields));
    this.cell = { row: -1, column: -1 };  // of the heat map, pointed at
    this.near = { row: -1, column: -1 };  // the token pointed at in the columns
    this.views = make("span", { class: "views", role: "group", "aria-label": t("heads.view") }, VIEWS.map((view) =>
      button(t(`heads.${view}`), () => this.set({ view }), { "data-view": view })));
    this.kinds = menu(t("heads.kind"), [], "", (kind) => this.set({ kind, layer: null, head: null }), { id: "kind" });
    this.layers = menu(t("heads.layer"), [], "", (layer) => this.set({ layer }), { id: "layer", "aria-keyshortcuts": "ArrowUp ArrowDown" });
    this.heads = menu(t("heads.head"), [], "", (head) => this.set({ head }), { id: "head", "aria-keyshortcuts": "[ ]" });
    this.scale = menu(t("heads.colours"), ["largest", "one"].map((scale) => [scale, t(`heads.scale.${scale}`)]), "", (scale) => this.set({ scale }), { id: "scale" });
    this.least = make("input", { type: "range", id: "least", min: 0, max: 100, on: { input: () => this.set({ least: this.least.value }, { replace: true }) } });
    this.caption = make("p", { id: "caption", role: "status" });
    this.switches = make("div", { class: "heads", role: "group", "aria-label": t("heads.drawn") });
    this.heat = make("canvas", { id: "heat-canvas" });
    this.space = make("div", { class: "space" }, this.heat);
    this.window = make("div", { id: "heat", class: "window", tabindex: 0, role: "group", "aria-label": t("heads.heat") }, this.space);
    this.tip = make("p", { class: "tip", role: "status" });
    this.rowList = make("ol", { id: "row-tokens" });
    this.columnList = make("ol", { id: "column-tokens" });
    this.links = make("canvas", { id: "lines-canvas", "aria-hidden": "true" });
    this.lines = make("div", { id: "lines" }, make("div", {}, this.rowTitle = make("h2", {}), this.rowList), this.links,
      make("div", {}, make("h2", {}, t("heads.is_read")), this.columnList));
    this.grid = make("div", { class: "window", tabindex: 0, role: "group", "aria-label": t("heads.overview") });
    this.details = make("aside", { class: "panel", "aria-label": t("heads.strongest") });
    this.ablation = make("section", { class: "panel ablation", "aria-label": t("heads.switch_off") });
    this.badges = menu(t("heads.badge"), ["", ...BADGES].map((badge) => [badge, t(`heads.badge.${badge || "none"}`)]), "", (badge) => this.set({ badge }), { id: "badge" });
    this.equivalent = folded(t("heads.as_table"), () => this.table());
    this.element = make("div", {}, make("div", { class: "controls" }, this.views, this.kinds, this.layers, this.heads, this.badges,
      drop(t("input.settings"), {}, this.scale, make("label", { class: "field" }, t("heads.least"), " ", this.least))),
    make("div", { class: "panels" }, make("section", { class: "panel wide", "aria-label": t("heads.map") }, this.switches, this.lines, this.window, this.grid, this.tip),
      this.details), this.caption, this.ablation, this.equivalent);
    this.listen();
  }

  listen() {
    const point = (event) => {
      const box = this.heat.getBoundingClientRect();
      return heatHit(this.view, this.geo, { x: event.clientX - box.left, y: event.clientY - box.top }, this.scroll());
    };
    this.heat.addEventListener("pointermove", (event) => this.pointAt(point(event)));
    this.heat.addEventListener("pointerleave", () => this.pointAt({ row: -1, column: -1 }));
    this.heat.addEventListener("click", (event) => {
      const { row, column } = point(event);
      if (row >= 0) this.pin("row", row);
      else if (column >= 0) this.pin("column", column);
    });
    this.window.addEventListener("scroll", () => this.drawHeatWindow());
  }

  set(changes, how) { this.studio.state.set(changes, how); }

  get kind() {
    const wanted = this.studio.state.get("kind"), names = Object.keys(this.trace.kinds);
    return wanted || (names.includes("cross") ? "cross" : names[0]);
  }

  get viewName() {
    const view = this.studio.state.get("view");
    return VIEWS.includes(view) ? view : "lines";
  }

  get head() { return this.studio.state.get("head"); }

  // What the keys and menus can choose.
  choices(name) {
    const heads = this.trace?.kinds[this.kind]?.heads;
    if (!heads || !["layer", "head"].includes(name)) return null;
    if (name === "layer") return [...heads.keys()];
    const alone = this.kind === "encoder" || (this.kind === "decoder" && !this.trace.kinds.cross);
    return ["mean", "max", ...(alone ? ["rollout"] : []), ...(this.viewName === "lines" ? ["all"] : []), ...Array(heads[this.studio.state.number("layer")] ?? 0).keys()];
  }

  fields(head) {
    const { state, input } = this.studio;
    return { ...input, kind: this.kind, layer: state.number("layer"), head: /^\d+$/.test(head) ? Number(head) : head, words: state.on("words") };
  }

  async update(trace, changed, current) {
    this.trace = trace;
    const { state } = this.studio, kind = trace.kinds[this.kind], name = this.viewName;
    const joined = this.head === "all" ? "mean" : this.head;
    const shown = this.switchedOn(kind), [words, hide] = [state.on("words"), state.on("hide")];
    const [rows, columns] = kind ? [kind.rows, kind.columns].map((side) => groupsOf(trace.sides[side], words, hide)) : [[], []];
    this.several = name === "lines" && this.head === "all";
    const [weights, links] = await Promise.all([  // refused are a kind, layer or head that there is not
      this.weights(this.fields(joined)), this.several ? this.linksFrom({ least: 1.2 / Math.max(1, columns.length), most: Math.floor(MOST_LINKS / Math.max(1, shown.length)) }) : null]);
    const overview = name === "overview" ? await this.overviews({ ...this.studio.input, kind: this.kind }) : null;
    const off = state.on("ablate") && /^\d+$/.test(this.head) && name !== "overview" ? await call("ablated", this.fields(this.head)).catch((error) => error) : null;
    if (!current()) return;
    this.ablated = off;
    const about = { least: Math.min(100, state.number("least")) / 100, scale: state.get("scale"), writes: this.kind === "cross" };
    this.view = viewOf(weights, rows, columns, about);
    this.mapsOf = (found) => { const views = linkViews(found, rows, columns, about); return shown.map((head) => [views[head], headColour(head)]); };
    this.maps = links ? this.mapsOf(links) : [[this.view, css("--accent")]];
    this.draw(kind, overview);
    await this.drawing;
  }

  // The links of all heads of the layer that fields ask for.
  linksFrom(fields) { return this.strong({ ...this.fields("each"), hide: this.studio.state.on("hide"), ...fields }); }

  switchedOn(kind) {
    const off = this.studio.state.get("off").split(",").filter(Boolean).map(Number);
    return [...Array(kind?.heads[this.studio.state.number("layer")] ?? 0).keys()].filter((head) => !off.includes(head));
  }

  draw(kind, overview) {
    const { state } = this.studio, name = this.viewName, layer = state.number("layer");
    for (const one of this.views.children) one.setAttribute("aria-pressed", String(one.dataset.view === name));
    const plain = (text) => t(`kind.${text}`);
    fillMenu(this.kinds.querySelector("select"), Object.keys(this.trace.kinds).map((one) => [one, plain(one)]), this.kind);
    fillMenu(this.layers.querySelector("select"), this.choices("layer").map((one) => [one, one]), layer);
    fillMenu(this.heads.querySelector("select"), this.choices("head").map((one) => [one, typeof one === "string" ? t(`heads.${one}`) : one]), this.head);
    this.scale.querySelector("select").value = state.get("scale") || "largest";
    if (document.activeElement !== this.least) this.least.value = state.number("least");
    const which = { mean: t("heads.mean_of", { heads: many("heads.count", kind.heads[layer]) }), max: t("heads.max_of", { heads: many("heads.count", kind.heads[layer]) }),
      all: many("heads.count", this.maps.length), rollout: t("heads.rollout_to", { layer }) }[this.head] ?? t("heads.one", { head: this.head });
    this.text = t("heads.caption", { kind: plain(this.kind), layer, which, mask: refused(kind.mask) });
    this.caption.textContent = name === "overview" ? t("heads.overview_caption", { kind: plain(this.kind) })
      : `${this.text} ${t(this.view.writes ? "heads.writes" : "heads.rows_read")}`;
    this.lines.hidden = name !== "lines";
    this.window.hidden = name !== "heat";
    this.grid.hidden = this.badges.hidden = name !== "overview";
    this.tip.textContent = "";
    this.drawSwitches(kind);
    if (name === "lines") this.layLines();
    else if (name === "heat") this.layHeat();
    else this.layOverview(overview);
    this.drawDetails();
    this.drawAblation(name);
    this.equivalent.renew();
  }

  // One head switched off, and what the model says then.
  drawAblation(name) {
    const can = /^\d+$/.test(this.head) && name !== "overview", on = this.studio.state.on("ablate"), rows = this.ablated?.rows ?? [];
    this.ablation.hidden = !can;
    if (!can) return;
    const log = rows.length === 1, shown = (value) => number(value, 6);
    this.ablation.replaceChildren(button(t("heads.ablate", { head: this.head }), () => this.set({ ablate: !on }), { id: "ablate", "aria-pressed": String(on) }),
      ...(on && this.ablated?.message ? [make("p", {}, this.ablated.message)] : []), ...(rows.length ? [table(t(log ? "heads.log_prob" : "heads.probability"),
        [t("fill.text"), t("heads.with"), t("heads.without"), t("heads.change")], rows.map(([text, before, after]) => [text, shown(before), shown(after), `${after > before ? "+" : ""}${shown(after - before)}`]))] : []));
  }

  drawSwitches(kind) {
    const shown = this.viewName === "lines" && this.head === "all", on = this.switchedOn(kind);
    this.switches.hidden = !shown;
    if (!shown) return;
    this.switches.replaceChildren(...Array.from({ length: kind.heads[this.studio.state.number("layer")] }, (_, head) => {
      const sign = make("i"), off = () => [...this.studio.state.get("off").split(",").filter(Boolean).map(Number)];
      sign.style.setProperty("background", headColour(head));
      const made = button(String(head), () => this.set({ off: (on.includes(head) ? [...off(), head] : off().filter((one) => one !== head)).join(",") }),
        { "aria-pressed": String(on.includes(head)), "aria-label": t("heads.one", { head }), class: "switch" });
      made.prepend(sign);
      return made;
    }));
  }

  // --- the pinned token: in self-attention it reads, unless it was chosen among those that are read ---

  sideOf(way) {
    const { rows, columns } = this.trace.kinds[this.kind];
    return way === "row" && rows === "target" ? "output" : way === "row" ? rows : columns;  // row t writes output t
  }

  place(way) {
    const isRead = this.studio.state.get("way") === "read", same = this.sideOf("row") === this.sideOf("column");
    if (same && isRead !== (way === "column")) return -1;
    const token = this.studio.pinned(this.sideOf(way));
    return token < 0 ? -1 : this.view[way === "row" ? "rows" : "columns"].findIndex(({ start, end }) => start <= token && token < end);
  }

  pin(way, at) {
    const again = this.place(way) === at;
    this.set({ pin: again ? "" : `${this.sideOf(way)}-${this.view[way === "row" ? "rows" : "columns"][at].start}`, way: way === "column" ? "read" : "" });
  }

  // --- lines ---

  layLines() {
    const most = Math.max(this.view.rows.length, this.view.columns.length);
    const height = most <= 24 ? 30 : most <= 80 ? 24 : 20, key = JSON.stringify([this.kind, this.view.rows, this.view.columns]);
    this.lines.style.setProperty("--row", `${height}px`);
    this.rowTitle.textContent = t(this.view.writes ? "heads.while_writing" : "heads.reads");
    if (this.listed !== key) {
      const near = (side, at) => { this.near = { row: -1, column: -1, [side]: at }; this.drawLinks(height); };
      fillTokens(this.rowList, this.view.rows, "row", -1, (side, at) => this.pin(side, at), near);
      fillTokens(this.columnList, this.view.columns, "column", -1, (side, at) => this.pin(side, at), near);
      for (const [list, way, groups] of [[this.rowList, "row", this.view.rows], [this.columnList, "column", this.view.columns]])
        [...list.children].forEach((item, at) => { Object.assign(item.firstChild.dataset, { token: `${this.sideOf(way)}-${groups[at].start}`, end: groups[at].end }); });
      this.listed = key;
    }
    for (const [list, way] of [[this.rowList, "row"], [this.columnList, "column"]]) {
      list.querySelector("[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
      list.children[this.place(way)]?.firstChild.setAttribute("aria-pressed", "true");
    }
    this.drawLinks(height);
  }

  drawLinks(height) {
    const pointed = this.near.row >= 0 || this.near.column >= 0;
    const focus = pointed ? this.near : { row: this.place("row"), column: this.place("column") }, top = largestOf(this.view, focus);
    shadeTokens(this.columnList, focus.row >= 0 ? (c) => this.view.at(focus.row, c) / top : null);
    shadeTokens(this.rowList, focus.column >= 0 ? (r) => this.view.at(r, focus.column) / top : null);
    const free = focus.row < 0 && focus.column < 0, [side, at] = focus.row >= 0 ? ["row", focus.row] : ["column", focus.column];
    const paint = (maps) => drawLines(this.links, maps.length ? maps : [[{ ...this.view, rows: [] }, ""]], height, focus);
    this.tip.textContent = "";
    this.drawing = null;
    if (this.several && !free) {
      const place = this.view[`${side}s`][at].place;
      const drawing = this.drawing = this.linksFrom({ [side]: place }).then((found) => { if (this.drawing === drawing) paint(this.mapsOf(found)); }, (error) => this.studio.refuse(error));
    } else if (free) this.tip.textContent = many("heads.links", paint(this.maps.map(([view, colour]) => [{ ...view, least: Math.max(view.least, view.lines ?? 0) }, colour])));
    else paint(this.maps);
  }

  // --- heat map ---

  scroll() { return { x: this.window.scrollLeft, y: this.window.scrollTop }; }

  layHeat() {
    this.geo = heatGeometry(this.heat.getContext("2d"), this.view, this.window.clientWidth, false);
    this.space.style.setProperty("width", `${this.geo.width}px`);
    this.space.style.setProperty("height", `${this.geo.height}px`);
    this.drawHeatWindow();
  }

  drawHeatWindow() {
    if (this.viewName !== "heat" || !this.view) return;
    const size = { width: Math.min(this.window.clientWidth, this.geo.width), height: Math.min(this.window.clientHeight, this.geo.height) };
    const marks = { pinRow: this.place("row"), pinColumn: this.place("column"), ...this.cell };
    drawHeat(sized(this.heat, size.width, size.height), this.view, this.geo, size, this.scroll(), marks);
  }

  pointAt(cell) {
    this.cell = cell;
    this.drawHeatWindow();
    const { row, column } = cell, inside = row >= 0 && column >= 0;
    this.tip.textContent = inside ? t("heads.weight", { row: this.view.rows[row].label, column: this.view.columns[column].label, weight: number(this.view.at(row, column), 6) }) : "";
  }

  // --- all heads ---

  layOverview({ about, data }) {
    const values = new Uint8Array(data), { heads, rows, columns, names, statistics } = about, ramp = rampColours(), zero = css("--zero");
    const badge = BADGES.includes(this.studio.state.get("badge")) ? this.studio.state.get("badge") : "";
    const most = Math.max(...heads), grid = make("div", { class: badge ? "thumbs sorted" : "thumbs" });
    if (!badge) grid.append(make("span", {}, t("heads.layer")), ...Array.from({ length: most }, (_, head) => make("span", {}, String(head))));
    grid.style.setProperty("--heads", most);
    this.badges.querySelector("select").value = badge;
    let shown = 0;
    const made = [];
    heads.forEach((count, layer) => {
      if (!badge) grid.append(make("span", {}, String(layer)));
      for (let head = 0; head < most; head++) {
        if (head >= count) { if (!badge) grid.append(make("span")); continue; }
        const canvas = make("canvas", { width: columns, height: rows }), ctx = canvas.getContext("2d"), from = shown * rows * columns;
        for (let cell = 0; cell < rows * columns; cell++) {
          ctx.fillStyle = values[from + cell] ? ramp[values[from + cell]].fill : zero;
          ctx.fillRect(cell % columns, Math.floor(cell / columns), 1, 1);
        }
        const said = Object.fromEntries(names.map((name, at) => [name, statistics[shown][at]])), two = (value) => (value === null ? "–" : value.toFixed(2));
        const label = t("heads.thumb", { layer, head, ...Object.fromEntries(BADGES.map((name) => [name, two(said[name])])) });
        const thumb = button(canvas, () => this.set({ view: null, layer, head }), { class: "thumb", title: label, "aria-label": label });
        if (badge) made.push([said[badge] ?? -1, make("div", {}, thumb, make("span", { class: "badge", "data-head": `${layer}.${head}` }, said[badge] === null ? "–" : number(said[badge], 6)), make("small", {}, `${layer}.${head}`))]);
        else grid.append(thumb);
        shown++;
      }
    });
    grid.append(...made.sort((a, b) => b[0] - a[0]).map(([, one]) => one));
    this.grid.replaceChildren(grid);
  }

  // --- words beside the map ---

  list(pairs, top) {
    if (!pairs.length) return make("p", { class: "muted" }, t("heads.nothing"));
    return make("ol", { class: "links" }, pairs.map(([label, weight]) => {
      const bar = make("i");
      bar.style.setProperty("width", `${Math.min(100, (100 * weight) / top)}%`);
      return make("li", {}, make("span", { class: "name", title: label }, label), make("span", { class: "track" }, bar), make("span", { class: "value" }, number(weight, 6)));
    }));
  }

  drawDetails() {
    const row = this.place("row"), column = this.place("column"), { view, details } = this;
    if (row < 0 && column < 0) {
      details.replaceChildren(make("h2", {}, t("heads.strongest")), this.list(strongest(view, 8), view.largest || 1), make("p", { class: "muted" }, t("heads.choose")));
      return;
    }
    const reads = (at) => [make("h3", {}, t(view.writes ? "heads.written_from" : "heads.reads_most")), this.list(largest(view.columns.map((one, c) => [one.label, view.at(at, c)]), 10), 1)];
    const isRead = (at) => [make("h3", {}, t("heads.read_by")), this.list(largest(view.rows.map((one, r) => [one.label, view.at(r, at)]), 10), 1)];
    details.replaceChildren(make("div", { class: "pinned" }, make("h2", {}, row >= 0 ? view.rows[row].label : view.columns[column].label),
      button(t("heads.unpin"), () => this.set({ pin: "" }))), ...(row >= 0 ? reads(row) : isRead(column)));
  }

  table() {
    const { rows, columns, at } = this.view, small = rows.length * columns.length <= 20000;
    const heads = [t(this.view.writes ? "heads.writes_reads" : "heads.reads_is_read"), ...(small ? columns.map(({ label }) => label) : [t("heads.eight")])];
    return table(this.text, heads, rows.map(({ label }, r) => [label, ...(small ? columns.map((_, c) => number(at(r, c), 6))
      : [largest(columns.map((one, c) => [one.label, at(r, c)]), 8).map(([name, weight]) => `${name} ${number(weight, 6)}`).join(", ")])]));
  }

  figure() {
    if (!this.view || this.viewName === "overview") return null;
    const canvas = make("canvas"), whole = heatGeometry(canvas.getContext("2d"), this.view, 1000, false);
    const ctx = sized(canvas, whole.width, whole.height);
    drawHeat(ctx, this.view, whole, whole, { x: 0, y: 0 }, { pinRow: this.place("row"), pinColumn: this.place("column"), row: -1, column: -1 });
    ctx.globalCompositeOperation = "destination-over";
    ctx.fillStyle = css("--surface");
    ctx.fillRect(0, 0, whole.width, whole.height);
    const { rows, columns, at } = this.view, head = this.head === "all" ? "mean" : this.head;
    const file = async (format) => {
      if (!["svg", "html"].includes(format) || this.head === "rollout") return null;
      const { data } = await bytes("picture", { ...this.fields(head), format });
      return new Blob([data], { type: format === "svg" ? "image/svg+xml" : "text/html" });
    };
    return { name: `attention-${this.kind}-layer-${this.studio.state.number("layer")}-head-${head}`, title: this.text, canvas, file,
      data: { caption: this.text, rows: rows.map(({ label }) => label), columns: columns.map(({ label }) => label), weights: rows.map((_, r) => columns.map((_, c) => at(r, c))) } };
  }

  resize() { if (this.view && this.viewName !== "overview") this[this.viewName === "heat" ? "layHeat" : "layLines"](); }
}

export default { name: "heads", text: true, weights: true, make: (studio) => new Heads(studio) };
