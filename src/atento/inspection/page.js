// The page itself: state (kept in the address), controls, keys, details and table.
const $ = (id) => document.getElementById(id);
const state = { view: "heat", hide: false, scale: "largest", fit: false, least: 0, off: [], sentence: 0, pin: null, ...DATA.start };
const cellAt = { row: -1, column: -1 };  // the cell pointed at or walked to, in the map as shown
const near = { row: -1, column: -1 };  // the token pointed at in the lines view
let view, geo, rowHeight;

function element(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

// --- state and address ---

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const choose = (name, allowed) => { if (allowed.includes(given.get(name))) state[name] = given.get(name); };
  const sentence = Number(given.get("sentence"));
  if (Number.isInteger(sentence) && sentence < PAGE.sentences.length && sentence !== state.sentence && sentence >= 0) {
    state.sentence = sentence;
    chooseSentence(sentence);
  }
  choose("view", ["overview", "heat", "lines"]);
  choose("kind", Object.keys(DATA.kinds));
  choose("scale", ["largest", "one"]);
  for (const name of ["merge", "hide", "fit"]) if (given.has(name)) state[name] = given.get(name) === "1";
  if (/^\d+$/.test(given.get("least") || "")) state.least = Math.min(100, Number(given.get("least"))) / 100;
  if (/^\d+$/.test(given.get("layer") || "")) state.layer = Number(given.get("layer"));
  if (/^(\d+|mean|max|colours)$/.test(given.get("head") || "")) state.head = given.get("head");
  const pin = /^(row|column)-(\d+)$/.exec(given.get("pin") || "");
  if (given.toString()) state.pin = pin ? { side: pin[1], token: Number(pin[2]) } : null;
}

function writeAddress() {
  const { view: shown, kind, layer, head, scale, pin } = state;
  const given = new URLSearchParams({ view: shown, kind, layer, head, scale });
  for (const name of ["merge", "hide", "fit"]) given.set(name, state[name] ? "1" : "0");
  if (state.least) given.set("least", String(Math.round(100 * state.least)));
  if (state.sentence) given.set("sentence", String(state.sentence));
  if (pin) given.set("pin", `${pin.side}-${pin.token}`);
  if (location.protocol === "about:") return;  // in a notebook's frame, which has no address of its own
  if (location.hash.slice(1) !== given.toString()) history.replaceState(null, "", `#${given}`);
}

// Brings layer, head and pin into what the chosen kind has.
function settle() {
  if (!DATA.kinds[state.kind]) state.kind = Object.keys(DATA.kinds)[0];
  const { layers, sides } = DATA.kinds[state.kind];
  state.layer = Math.min(state.layer, layers.length - 1);
  if (state.head === "colours" && state.view !== "lines") state.head = "mean";  // one map shows one head, or them joined
  if (!["mean", "max", "colours"].includes(state.head))
    state.head = Math.min(Number(state.head), layers[state.layer].length - 1);
  const side = state.pin && sides[state.pin.side === "row" ? 0 : 1];
  if (side && state.pin.token >= side.tokens.length) state.pin = null;
}

function change(part) {
  const kind = state.kind, before = state.pin;
  Object.assign(state, part);
  if ("sentence" in part) { chooseSentence(state.sentence); state.pin = null; }
  if (state.kind !== kind && before && state.pin) {  // a pin stays only where its side is still the same text
    const at = before.side === "row" ? 0 : 1;
    const text = (name) => JSON.stringify(DATA.kinds[name].sides[at].tokens);
    if (text(kind) !== text(state.kind)) state.pin = null;
  }
  render();
}

// --- pins: kept by token, shown by place in the map ---

function placeOf(side) {
  if (!state.pin || state.pin.side !== side) return -1;
  return view[side === "row" ? "rows" : "columns"].findIndex(
    (token) => token.start <= state.pin.token && state.pin.token < token.end);
}

function pinAt(side, place) {
  const token = view[side === "row" ? "rows" : "columns"][place];
  const again = token && placeOf(side) === place;
  change({ pin: token && !again ? { side, token: token.start } : null });
}

function stepToken(by) {
  const side = state.pin ? state.pin.side : "row";
  const count = view[side === "row" ? "rows" : "columns"].length;
  if (!count) return;
  const place = placeOf(side);
  const next = place < 0 ? (by > 0 ? 0 : count - 1) : Math.max(0, Math.min(count - 1, place + by));
  if (next !== place) pinAt(side, next);
  if (state.view === "heat") reveal(side === "row" ? next : -1, side === "column" ? next : -1);
  $("said").textContent = $("details").innerText;
}

// --- drawing ---

function marks() {
  const pinRow = placeOf("row"), pinColumn = placeOf("column");
  return { pinRow, pinColumn, row: cellAt.row, column: cellAt.column };
}

function layHeat() {
  const box = $("heat"), ctx = $("heat-canvas").getContext("2d");
  geo = heatGeometry(ctx, view, box.clientWidth, state.fit);
  $("heat-space").style.width = `${geo.width}px`;
  $("heat-space").style.height = `${geo.height}px`;
  drawHeatWindow();
}

function drawHeatWindow() {
  if (state.view !== "heat") return;
  const box = $("heat"), canvas = $("heat-canvas"), sharp = devicePixelRatio || 1;
  const size = { width: Math.min(box.clientWidth, geo.width), height: Math.min(box.clientHeight, geo.height) };
  const wide = Math.round(size.width * sharp), high = Math.round(size.height * sharp);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${size.width}px`;
    canvas.style.height = `${size.height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(sharp, 0, 0, sharp, 0, 0);
  drawHeat(ctx, view, geo, size, { x: box.scrollLeft, y: box.scrollTop }, marks());
}

function reveal(row, column) {
  const box = $("heat"), spare = geo.cell * 2;
  const scroll = (place, start, shown, before) =>
    Math.max(place * geo.cell - shown + before + spare, Math.min(start, Math.max(0, place * geo.cell - geo.cell)));
  if (row >= 0) box.scrollTop = scroll(row, box.scrollTop, box.clientHeight, geo.top);
  if (column >= 0) box.scrollLeft = scroll(column, box.scrollLeft, box.clientWidth, geo.left);
}

function layLines() {
  const most = Math.max(view.rows.length, view.columns.length);
  rowHeight = most <= 24 ? 30 : most <= 80 ? 24 : 20;
  $("lines").style.setProperty("--row", `${rowHeight}px`);
  $("lines-rows").textContent = view.writes ? "while writing" : "reads";
  $("lines-columns").textContent = "is read";
  const nearTo = (side, at) => { near.row = near.column = -1; near[side] = at; drawLinkLines(); };
  fillTokens($("row-tokens"), view.rows, "row", placeOf("row"), pinAt, nearTo);
  fillTokens($("column-tokens"), view.columns, "column", placeOf("column"), pinAt, nearTo);
  near.row = near.column = -1;
  drawLinkLines();
}

function drawLinkLines() {
  const pointed = near.row >= 0 || near.column >= 0;
  const focus = pointed ? near : { row: placeOf("row"), column: placeOf("column") };
  const top = largestOf(view, focus);
  shadeTokens($("column-tokens"), focus.row >= 0 ? (c) => view.at(focus.row, c) / top : null);
  shadeTokens($("row-tokens"), focus.column >= 0 ? (r) => view.at(r, focus.column) / top : null);
  const heads = view.layers[state.layer].map((_, head) => head).filter((head) => !state.off.includes(head));
  const maps = state.head === "colours"
    ? heads.map((head) => [buildView({ ...state, head }), headColour(head)]) : [[view, css("--accent")]];
  drawLines($("lines-canvas"), maps.length ? maps : [[{ ...view, rows: [] }, ""]], rowHeight, focus);
}

function layHeads() {
  const shown = state.view === "lines" && state.head === "colours";
  $("heads").hidden = !shown;
  if (!shown) return;
  $("heads").replaceChildren(...view.layers[state.layer].map((_, head) => {
    const sign = element("i"), button = element("button", "", sign, `head ${head}`);
    sign.style.background = headColour(head);
    button.type = "button";
    button.setAttribute("aria-pressed", String(!state.off.includes(head)));
    button.addEventListener("click", () => change({
      off: state.off.includes(head) ? state.off.filter((other) => other !== head) : [...state.off, head] }));
    return button;
  }));
}

function drawLegend() {
  $("ramp").style.background = `linear-gradient(to right, ${rampStops().join(", ")})`;
  $("ramp-top").textContent = state.view === "overview" && state.scale === "largest" ? "each head's largest" : view.top === 1 ? "1" : view.top.toFixed(view.top < 0.1 ? 3 : 2);
  $("zero-sign").hidden = !view.zeros || state.view !== "heat";
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
}

function renderControls() {
  const { layers, sides } = view;
  const kindName = (kind) => DATA.kinds[kind].name.replace(/-attention$/, "");
  options($("kind"), Object.keys(DATA.kinds).map((kind) => [kind, kindName(kind)]), state.kind);
  options($("layer"), layers.map((_, at) => [at, String(at)]), state.layer);
  const joined = [["mean", "mean"], ["max", "max"], ...(state.view === "lines" ? [["colours", "all, in colours"]] : [])];
  options($("head"), [...joined, ...layers[state.layer].map((_, at) => [at, String(at)])], state.head);
  $("scale").value = state.scale;
  $("least").value = String(Math.round(100 * state.least));
  $("least-value").textContent = state.least ? number(view.least) : "0";
  $("fit").checked = state.fit;
  $("fit").disabled = state.view !== "heat";
  $("layer").disabled = $("head").disabled = state.view === "overview";
  $("sentence").value = String(state.sentence);
  $("merge").checked = state.merge;
  $("merge").disabled = sides.every((side) => JSON.stringify(side.words) === JSON.stringify(side.tokens));
  $("hide").checked = state.hide;
  $("hide").disabled = !sides.some((side) => side.tokens.some((token) => token[3]));
  for (const name of ["overview", "heat", "lines"]) $(`view-${name}`).setAttribute("aria-pressed", String(state.view === name));
}

function render() {
  settle();
  view = buildView(state.head === "colours" ? { ...state, head: "mean" } : state);
  cellAt.row = cellAt.column = -1;
  hideTip();
  headline();
  renderControls();
  if ($("caption").textContent !== caption()) $("caption").textContent = caption();
  $("heat").setAttribute("aria-label", `Heat map of ${view.rows.length} by ${view.columns.length} weights. ${caption()} The table below holds the same numbers.`);
  $("heat").hidden = state.view !== "heat";
  $("lines").hidden = state.view !== "lines";
  $("overview").hidden = state.view !== "overview";
  $("save").hidden = state.view === "overview";
  layHeads();
  if (state.view === "heat") layHeat();
  else if (state.view === "lines") layLines();
  else layOverview($("overview"), state, (layer, head) => change({ view: "heat", layer, head }));
  drawLegend();
  renderDetails();
  renderTable();
  writeAddress();
}

// --- pointing, keys ---

function hideTip() { $("tip").style.visibility = "hidden"; }

function showTip() {
  const { row, column } = cellAt, tip = $("tip"), box = $("heat");
  if (row < 0 || column < 0) { hideTip(); return; }
  tip.textContent = `${view.rows[row].label} reads ${view.columns[column].label}: ${number(view.at(row, column))}`;
  const canvas = $("heat-canvas").getBoundingClientRect(), plot = tip.parentElement.getBoundingClientRect();
  const x = canvas.left - plot.left + geo.left + (column + 1) * geo.cell - box.scrollLeft + 6;
  const y = canvas.top - plot.top + geo.top + (row + 1) * geo.cell - box.scrollTop + 6;
  tip.style.left = `${Math.max(4, Math.min(x, plot.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y}px`;
  tip.style.visibility = "visible";
}

function pointed(event) {
  const box = $("heat-canvas").getBoundingClientRect();
  return heatHit(view, geo, { x: event.clientX - box.left, y: event.clientY - box.top },
    { x: $("heat").scrollLeft, y: $("heat").scrollTop });
}

function walk(key) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
  const keep = (value, count) => Math.max(0, Math.min(count - 1, value));
  if (cellAt.row < 0 || cellAt.column < 0) Object.assign(cellAt, { row: Math.max(0, placeOf("row")), column: Math.max(0, placeOf("column")) });
  else Object.assign(cellAt, { row: keep(cellAt.row + step[0], view.rows.length), column: keep(cellAt.column + step[1], view.columns.length) });
  reveal(cellAt.row, cellAt.column);
  drawHeatWindow();
  showTip();
  $("said").textContent = $("tip").textContent;
}

function stepHead(by) {
  const order = ["mean", "max", ...(state.view === "lines" ? ["colours"] : []), ...DATA.kinds[state.kind].layers[state.layer].keys()];
  const next = order.findIndex((head) => String(head) === String(state.head)) + by;
  if (next >= 0 && next < order.length) change({ head: order[next] });
}

function stepLayer(by) {
  const next = state.layer + by;
  if (next >= 0 && next < DATA.kinds[state.kind].layers.length) change({ layer: next });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.closest && event.target.closest("select, .scroll, input[type=range]")) return;
  if (event.shiftKey && event.key.startsWith("Arrow") && state.view === "heat") {
    walk(event.key);
    event.preventDefault();
    return;
  }
  const actions = {
    ArrowLeft: () => stepToken(-1), ArrowRight: () => stepToken(1), ArrowUp: () => stepLayer(1), ArrowDown: () => stepLayer(-1),
    ",": () => stepHead(-1), ".": () => stepHead(1), "?": () => $("help").showModal(), Escape: () => change({ pin: null }),
  };
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
}

function savePicture() {
  const canvas = document.createElement("canvas"), ctx = canvas.getContext("2d");
  const whole = heatGeometry(ctx, view, 1000, false), sharp = Math.min(2, 12000 / Math.max(whole.width, whole.height));
  canvas.width = Math.round((whole.width + 24) * sharp);
  canvas.height = Math.round((whole.height + 24) * sharp);
  ctx.scale(sharp, sharp);
  ctx.translate(12, 12);
  drawHeat(ctx, view, whole, whole, { x: 0, y: 0 }, marks());
  ctx.globalCompositeOperation = "destination-over";
  ctx.fillStyle = css("--surface");
  ctx.fillRect(-12, -12, whole.width + 24, whole.height + 24);
  canvas.toBlob((blob) => {
    const link = document.createElement("a"), address = URL.createObjectURL(blob);
    link.href = address;
    link.download = `attention-${state.kind}-layer-${state.layer}-head-${state.head}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
}

function foldTitle() {
  const title = $("title"), more = $("title-more");
  if (more.getAttribute("aria-expanded") === "true") return;
  title.classList.add("folded");
  more.hidden = title.scrollHeight <= title.clientHeight + 2;
}

function headline() {
  const names = Object.values(DATA.kinds);
  $("title").textContent = DATA.title || "Attention";
  const size = ({ layers }) => `${many(layers.length, "layer")} of ${many(layers[0].length, "head")}`;
  const sizes = names.every((kind) => size(kind) === size(names[0])) ? [size(names[0])]
    : names.map((kind) => `${kind.name}: ${size(kind)}`);
  $("subtitle").textContent = [DATA.model, ...sizes].filter(Boolean).join(" · ") + (DATA.exact ? "" : " · weights rounded to 0.00001");
  foldTitle();
}

function start() {
  options($("sentence"), PAGE.sentences.map((one, at) => [at, `${at + 1}. ${one.title || "Attention"}`]), 0);
  $("sentence-label").hidden = PAGE.sentences.length < 2;
  $("sentence").addEventListener("change", (event) => change({ sentence: Number(event.target.value) }));
  $("least").addEventListener("input", (event) => change({ least: Number(event.target.value) / 100 }));
  $("title-more").addEventListener("click", () => {
    const more = $("title-more"), opened = more.getAttribute("aria-expanded") === "true";
    more.setAttribute("aria-expanded", String(!opened));
    more.textContent = opened ? "Whole title" : "Fold title";
    $("title").classList.toggle("folded", opened);
  });
  for (const id of ["kind", "scale"]) $(id).addEventListener("change", (event) => change({ [id]: event.target.value }));
  $("layer").addEventListener("change", (event) => change({ layer: Number(event.target.value) }));
  $("head").addEventListener("change", (event) => change({ head: event.target.value }));
  for (const id of ["merge", "hide", "fit"]) $(id).addEventListener("change", (event) => change({ [id]: event.target.checked }));
  for (const name of ["overview", "heat", "lines"]) $(`view-${name}`).addEventListener("click", () => change({ view: name }));
  const canvas = $("heat-canvas");
  canvas.addEventListener("pointermove", (event) => { Object.assign(cellAt, pointed(event)); drawHeatWindow(); showTip(); });
  canvas.addEventListener("pointerleave", () => { cellAt.row = cellAt.column = -1; drawHeatWindow(); hideTip(); });
  canvas.addEventListener("click", (event) => {
    const { row, column } = pointed(event);
    if (row >= 0) pinAt("row", row); else if (column >= 0) pinAt("column", column);
    Object.assign(cellAt, { row, column });
    drawHeatWindow();
    showTip();
  });
  $("heat").addEventListener("scroll", () => { hideTip(); drawHeatWindow(); });
  $("numbers").addEventListener("toggle", renderTable);
  $("save").addEventListener("click", savePicture);
  $("help-open").addEventListener("click", () => $("help").showModal());
  $("help-close").addEventListener("click", () => $("help").close());
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => { readAddress(); render(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  readAddress();
  render();
  let width = $("heat").parentElement.clientWidth;
  new ResizeObserver(() => {
    const now = $("heat").parentElement.clientWidth;
    if (now !== width) { width = now; foldTitle(); render(); }
  }).observe($("heat").parentElement);
}

start();
