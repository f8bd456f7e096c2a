// The lines view: tokens that read on the left, tokens that are read on the right, one line a link.
function headColour(head) { return css(`--series-${head % 8}`); }

function fillTokens(list, tokens, side, pinned, onPin, onNear) {
  const items = tokens.map((token, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = token.special ? "token special" : "token";
    button.textContent = token.label;
    button.title = token.label;
    button.setAttribute("aria-pressed", String(at === pinned));
    button.addEventListener("click", () => onPin(side, at));
    button.addEventListener("pointerenter", () => onNear(side, at));
    button.addEventListener("pointerleave", () => onNear(side, -1));
    button.addEventListener("focus", () => onNear(side, at));
    button.addEventListener("blur", () => onNear(side, -1));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  list.replaceChildren(...items);
}

function shadeTokens(list, shares) {
  const tint = css("--accent");
  Array.from(list.children).forEach((item, at) => {
    const share = shares ? shares(at) : 0, shade = share > 0.005 ? `color-mix(in srgb, ${tint} ${Math.round(6 + share * 42)}%, transparent)` : "";
    if ((item.shade ?? "") !== shade) item.firstChild.style.background = item.shade = shade;
  });
}

// The largest weight among the links of the token in focus, so that its lines stand out however small they are.
function largestOf(view, focus) {
  let top = 0;
  if (view.links) return view.links.reduce((most, [, , weight]) => Math.max(most, weight), 0) || 1;
  if (focus.row >= 0) view.columns.forEach((_, c) => { top = Math.max(top, view.at(focus.row, c)); });
  if (focus.column >= 0) view.rows.forEach((_, r) => { top = Math.max(top, view.at(r, focus.column)); });
  return top || 1;
}

// What was drawn last: of a long text only the part in sight is, so a scroll beyond it draws again.
const WHOLE = 2400;  // pixels: a drawing that is no higher is drawn whole
let lastLines = null;
for (const event of ["scroll", "resize"]) addEventListener(event, () => {
  if (!lastLines || !lastLines[0].isConnected) return;
  const [canvas] = lastLines, { top, bottom } = canvas.getBoundingClientRect(), { from, to, height } = canvas.drawn;
  if ((top > 0 && from > 0) || (bottom < innerHeight && to < height)) drawLines(...lastLines);
}, { passive: true, capture: true });

// The part of a drawing of `height` that is in sight, with half a window on both sides of it.
function partInSight(canvas, height) {
  if (height <= WHOLE) return { from: 0, to: Math.max(1, height), height };
  const top = canvas.getBoundingClientRect().top - (canvas.drawn ? canvas.drawn.from : 0), spare = innerHeight / 2;
  const from = Math.max(0, Math.min(height, Math.floor(-top - spare)));
  return { from, to: Math.max(from + 1, Math.min(height, Math.ceil(innerHeight - top + spare))), height };
}

// `maps` are [view, colour] pairs, drawn over one another; `focus` is {row} or {column}, the token whose links alone are
// drawn; both -1 for all of them. Without a focus, links that hold little more than even attention, or less, are left out.
// A view may have `links`, [row, column, weight], instead of all its weights: strong ones, or those of the focus.
// Returns how many links there are to draw, in sight or not.
function drawLines(canvas, maps, rowHeight, focus) {
  lastLines = [canvas, maps, rowHeight, focus];
  const [first] = maps[0], width = canvas.clientWidth, height = Math.max(first.rows.length, first.columns.length) * rowHeight;
  const { from, to } = canvas.drawn = partInSight(canvas, height), sharp = devicePixelRatio || 1;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round((to - from) * sharp);
  canvas.style.height = `${to - from}px`;
  canvas.style.top = `${from}px`;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(sharp, 0, 0, sharp, 0, -from * sharp);
  return maps.reduce((count, [view, colour]) => count + drawLinks(ctx, view, colour, width, rowHeight, focus, canvas.drawn), 0);
}

function drawLinks(ctx, view, colour, width, rowHeight, focus, part) {
  ctx.strokeStyle = colour;
  const focused = focus.row >= 0 || focus.column >= 0;
  const top = focused ? largestOf(view, focus) : view.top;
  const least = Math.max(view.least, focused ? 0.005 * top : 1.2 * view.even);
  let count = 0;
  const draw = (r, c, weight) => {
    if (weight <= least) return;
    count++;
    const start = (r + 0.5) * rowHeight, end = (c + 0.5) * rowHeight;
    if (Math.max(start, end) < part.from - 4 || Math.min(start, end) > part.to + 4) return;
    const share = Math.min(1, weight / top);
    ctx.globalAlpha = focused ? 0.25 + 0.75 * share : 0.12 + 0.8 * share * share;
    ctx.lineWidth = 0.7 + 3.3 * share;
    ctx.beginPath();
    ctx.moveTo(0, start);
    ctx.bezierCurveTo(width * 0.45, start, width * 0.55, end, width, end);
    ctx.stroke();
  };
  if (view.links) view.links.forEach((link) => draw(...link));
  else for (let r = 0; r < view.rows.length; r++) {
    if (focus.row >= 0 && r !== focus.row) continue;
    for (let c = 0; c < view.columns.length; c++) if (focus.column < 0 || c === focus.column) draw(r, c, view.at(r, c));
  }
  return count;
}
