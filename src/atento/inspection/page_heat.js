// The heat map: one canvas as large as what is in sight, drawn anew on every scroll, so that long texts cost no more.
const ANGLE = (55 * Math.PI) / 180;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

// A colour of the palette, in the present theme.
function css(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim(), pair = value.match(/#\w+/g) ?? [];
  return value.startsWith("light-dark") ? pair[isDark() ? 1 : 0] : value;
}

function isDark() { return matchMedia("(prefers-color-scheme: dark)").matches; }

function rampStops() { return Array.from({ length: 9 }, (_, at) => css(`--ramp-${at}`)); }

// 256 colours along the ramp of the present theme, and whether dark ink reads on each.
function rampColours() {
  const stops = rampStops().map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, step) => {
    const place = (step / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (place - low)));
    return { fill: `rgb(${r} ${g} ${b})`, darkInk: 0.299 * r + 0.587 * g + 0.114 * b > 140 };
  });
}

function fitText(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && ctx.measureText(characters.join("") + "…").width > width) characters.pop();
  return characters.join("") + "…";
}

function heatGeometry(ctx, view, width, fit) {
  const narrow = width < 520;
  const size = Math.max(view.rows.length, view.columns.length) > 60 ? 11 : 13;
  ctx.font = `${size}px ${FONT}`;
  const measure = (tokens, cap) =>
    Math.min(cap, tokens.reduce((most, token) => Math.max(most, ctx.measureText(token.label.slice(0, 60)).width), 12));
  const rowText = Math.ceil(measure(view.rows, narrow ? 88 : 170));
  const columnText = Math.ceil(measure(view.columns, narrow ? 96 : 150));
  const left = rowText + 12, least = fit ? 1 : size === 11 ? 13 : 15, most = 64;
  const fitted = (room) => {
    const share = room / Math.max(1, view.columns.length);
    return Math.max(least, Math.min(most, share < 4 ? share : Math.floor(share)));
  };
  let cell = fitted(width - left), top = size + 14, overhang = 0;
  const flat = columnText + 8 <= cell;
  if (!flat) {
    // how far slanted labels reach beyond the last column
    const reach = () => Math.max(0, ...view.columns.slice(-24).map((token, at, last) =>
      Math.min(columnText, ctx.measureText(token.label).width) * Math.cos(ANGLE) + size - (last.length - at - 0.5) * cell));
    overhang = Math.ceil(reach());
    cell = fitted(width - left - overhang);
    overhang = Math.ceil(reach());
    top = Math.ceil(columnText * Math.sin(ANGLE)) + 18;
  }
  const every = Math.max(1, Math.ceil((size + 2) / cell));  // one label in so many, where cells are small
  return { size, rowText, columnText, left, top, cell, flat, every, gap: cell < 4 ? 0 : 1,
    width: left + view.columns.length * cell + overhang, height: top + view.rows.length * cell + 2 };
}

// Draws what a window of `size` at `scroll` shows; `marks` are the rows and columns pinned or pointed at.
function drawHeat(ctx, view, geo, size, scroll, marks) {
  const { left, top, cell } = geo, ramp = rampColours();
  const zero = css("--zero"), zeroSign = css("--zero-sign"), mark = css("--mark"), ink = css("--ink");
  ctx.clearRect(0, 0, size.width, size.height);
  const from = { row: Math.max(0, Math.floor(scroll.y / cell)), column: Math.max(0, Math.floor(scroll.x / cell)) };
  const to = {
    row: Math.min(view.rows.length, Math.ceil((scroll.y + size.height - top) / cell)),
    column: Math.min(view.columns.length, Math.ceil((scroll.x + size.width - left) / cell)),
  };
  const x = (c) => left + c * cell - scroll.x, y = (r) => top + r * cell - scroll.y;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, size.width - left, size.height - top);
  ctx.clip();
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.font = `${cell >= 48 ? 13 : 11}px ${FONT}`;
  for (let r = from.row; r < to.row; r++) {
    for (let c = from.column; c < to.column; c++) {
      const weight = view.at(r, c);
      if (weight > 0 && weight < view.least) continue;
      const colour = ramp[Math.min(255, Math.round((weight / view.top) * 255))];
      ctx.fillStyle = weight === 0 ? zero : colour.fill;
      ctx.fillRect(x(c), y(r), cell - geo.gap, cell - geo.gap);
      if (weight === 0) {
        if (cell < 6) continue;
        ctx.fillStyle = zeroSign;
        ctx.fillRect(x(c) + cell / 2 - 1.5, y(r) + cell / 2 - 1.5, 2, 2);
      } else if (cell >= 38) {
        ctx.fillStyle = colour.darkInk ? "#10202f" : "#ffffff";
        ctx.fillText(weight < 0.005 ? "0.00" : weight.toFixed(2), x(c) + cell / 2 - 0.5, y(r) + cell / 2);
      }
    }
  }
  ctx.lineWidth = 2;
  ctx.strokeStyle = mark;
  if (marks.pinRow >= 0) ctx.strokeRect(left, y(marks.pinRow) - 1, view.columns.length * cell, cell + 1);
  if (marks.pinColumn >= 0) ctx.strokeRect(x(marks.pinColumn) - 1, top, cell + 1, view.rows.length * cell);
  ctx.strokeStyle = ink;
  if (marks.row >= 0 && marks.column >= 0) ctx.strokeRect(x(marks.column), y(marks.row), cell - 1, cell - 1);
  ctx.restore();
  drawHeatLabels(ctx, view, geo, size, { from, to, x, y }, marks);
}

function drawHeatLabels(ctx, view, geo, size, seen, marks) {
  const { left, top, cell } = geo, ink = css("--ink"), muted = css("--muted"), mark = css("--mark");
  const style = (token, pinned, near) => {
    ctx.fillStyle = pinned ? mark : token.special ? muted : ink;
    ctx.font = `${token.special ? "italic " : ""}${pinned || near ? "600 " : ""}${geo.size}px ${FONT}`;
  };
  ctx.textBaseline = "middle";
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, top - geo.size / 2, left, size.height);
  ctx.clip();
  ctx.textAlign = "right";
  for (let r = seen.from.row; r < seen.to.row; r++) {
    if (r % geo.every && r !== marks.pinRow && r !== marks.row) continue;
    style(view.rows[r], r === marks.pinRow, r === marks.row);
    ctx.fillText(fitText(ctx, view.rows[r].label, geo.rowText + 4), left - 7, seen.y(r) + cell / 2);
  }
  ctx.restore();
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, 0, size.width - left, top);
  ctx.clip();
  for (let c = seen.from.column; c < seen.to.column; c++) {
    if (c % geo.every && c !== marks.pinColumn && c !== marks.column) continue;
    style(view.columns[c], c === marks.pinColumn, c === marks.column);
    const label = fitText(ctx, view.columns[c].label, geo.columnText + 4);
    ctx.save();
    ctx.translate(seen.x(c) + cell / 2, top - (geo.flat ? 11 : 8));
    if (!geo.flat) ctx.rotate(-ANGLE);
    ctx.textAlign = geo.flat ? "center" : "left";
    ctx.fillText(label, 0, 0);
    ctx.restore();
  }
  ctx.restore();
}

// The row and column under a point of the window, -1 outside; a point on a label gives that row or column alone.
function heatHit(view, geo, point, scroll) {
  let row = Math.floor((point.y - geo.top + scroll.y) / geo.cell);
  let column = Math.floor((point.x - geo.left + scroll.x) / geo.cell);
  if (point.y < geo.top) {
    row = -1;
    // slanted labels lean to the right of their column
    if (!geo.flat) column = Math.floor((point.x - (geo.top - 8 - point.y) / Math.tan(ANGLE) - geo.left + scroll.x) / geo.cell);
  }
  if (point.x < geo.left) column = -1;
  return { row: row < view.rows.length ? Math.max(-1, row) : -1,
    column: column < view.columns.length ? Math.max(-1, column) : -1 };
}
