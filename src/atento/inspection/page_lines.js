// The lines view: tokens that read on the left, tokens that are read on the right, one line a link.
const FAINTEST = 0.03;

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

// `focus` is {row} or {column}, the token whose links alone are drawn; both -1 for all of them.
function drawLines(canvas, view, rowHeight, focus) {
  const width = canvas.clientWidth, height = Math.max(view.rows.length, view.columns.length) * rowHeight;
  const sharp = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, height));
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(sharp, sharp);
  ctx.strokeStyle = css("--accent");
  const focused = focus.row >= 0 || focus.column >= 0;
  const crowded = view.rows.length * view.columns.length > 40000;
  const top = focused ? largestOf(view, focus) : view.top;
  const least = (focused ? 0.005 : crowded ? 0.15 : FAINTEST) * top;
  for (let r = 0; r < view.rows.length; r++) {
    if (focus.row >= 0 && r !== focus.row) continue;
    for (let c = 0; c < view.columns.length; c++) {
      if (focus.column >= 0 && c !== focus.column) continue;
      const weight = view.at(r, c);
      if (weight <= least) continue;
      const share = Math.min(1, weight / top);
      const from = (r + 0.5) * rowHeight, to = (c + 0.5) * rowHeight;
      ctx.globalAlpha = focused ? 0.25 + 0.75 * share : 0.08 + 0.8 * share * share;
      ctx.lineWidth = 0.7 + 3.3 * share;
      ctx.beginPath();
      ctx.moveTo(0, from);
      ctx.bezierCurveTo(width * 0.45, from, width * 0.55, to, width, to);
      ctx.stroke();
    }
  }
}
