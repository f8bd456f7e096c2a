// The lines view: tokens that read on the left, tokens that are read on the right, one line a link.
// Heads told apart by every kind of colour vision (Okabe & Ito 2008), brighter on a dark ground.
const HEAD_COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3db8", "#3c4b5c"],
  dark: ["#4fa8e0", "#ff8a3d", "#2ecc9b", "#e79bc4", "#e0c040", "#8ed0f7", "#b98af0", "#a9b8c6"],
};

function headColour(head) { return HEAD_COLOURS[isDark() ? "dark" : "light"][head % 8]; }

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
    const share = shares ? shares(at) : 0;
    item.firstChild.style.background = share > 0.005
      ? `color-mix(in srgb, ${tint} ${Math.round(6 + share * 42)}%, transparent)` : "";
  });
}

// The largest weight among the links of the token in focus, so that its lines stand out however small they are.
function largestOf(view, focus) {
  let top = 0;
  if (focus.row >= 0) view.columns.forEach((_, c) => { top = Math.max(top, view.at(focus.row, c)); });
  if (focus.column >= 0) view.rows.forEach((_, r) => { top = Math.max(top, view.at(r, focus.column)); });
  return top || 1;
}

// `maps` are [view, colour] pairs, drawn over one another; `focus` is {row} or {column}, the token whose links alone are
// drawn; both -1 for all of them. Without a focus, links that hold little more than even attention, or less, are left out.
function drawLines(canvas, maps, rowHeight, focus) {
  const [first] = maps[0];
  const width = canvas.clientWidth, height = Math.max(first.rows.length, first.columns.length) * rowHeight;
  const sharp = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, height));
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(sharp, sharp);
  for (const [view, colour] of maps) drawLinks(ctx, view, colour, width, rowHeight, focus);
}

function drawLinks(ctx, view, colour, width, rowHeight, focus) {
  ctx.strokeStyle = colour;
  const focused = focus.row >= 0 || focus.column >= 0;
  const top = focused ? largestOf(view, focus) : view.top;
  const least = Math.max(view.least, focused ? 0.005 * top : 1.2 * view.even);
  for (let r = 0; r < view.rows.length; r++) {
    if (focus.row >= 0 && r !== focus.row) continue;
    for (let c = 0; c < view.columns.length; c++) {
      if (focus.column >= 0 && c !== focus.column) continue;
      const weight = view.at(r, c);
      if (weight <= least) continue;
      const share = Math.min(1, weight / top);
      const from = (r + 0.5) * rowHeight, to = (c + 0.5) * rowHeight;
      ctx.globalAlpha = focused ? 0.25 + 0.75 * share : 0.12 + 0.8 * share * share;
      ctx.lineWidth = 0.7 + 3.3 * share;
      ctx.beginPath();
      ctx.moveTo(0, from);
      ctx.bezierCurveTo(width * 0.45, from, width * 0.55, to, width, to);
      ctx.stroke();
    }
  }
}
