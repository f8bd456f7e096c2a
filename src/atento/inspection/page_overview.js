// The overview: every layer and head of a kind as a small picture; a click opens it.
const THUMB = 88;  // pixels of a side at most
let overviewJob = 0;

function thumbnail(canvas, view, ramp, zero) {
  const rows = view.rows.length, columns = view.columns.length;
  const wide = Math.max(1, Math.min(THUMB, columns)), high = Math.max(1, Math.min(THUMB, rows));
  canvas.width = wide;
  canvas.height = high;
  const ctx = canvas.getContext("2d");
  for (let y = 0; y < high; y++) {
    const from = Math.floor((y * rows) / high), to = Math.max(from + 1, Math.floor(((y + 1) * rows) / high));
    for (let x = 0; x < wide; x++) {
      const left = Math.floor((x * columns) / wide), right = Math.max(left + 1, Math.floor(((x + 1) * columns) / wide));
      let most = 0;  // the strongest link of the block, so that none is lost
      for (let r = from; r < to && r < rows; r++) for (let c = left; c < right && c < columns; c++) most = Math.max(most, view.at(r, c));
      const faint = most === 0 || most < view.least;
      ctx.fillStyle = faint ? zero : ramp[Math.min(255, Math.round((most / view.top) * 255))].fill;
      ctx.fillRect(x, y, 1, 1);
    }
  }
}

// Lays the grid at once and draws a row of it a frame, so that a large model does not stop the page.
function layOverview(box, state, open) {
  const { layers } = DATA.kinds[state.kind], job = ++overviewJob;
  const heads = Math.max(...layers.map((layer) => layer.length));
  const grid = element("div", "thumbs");
  grid.style.setProperty("--heads", heads);
  grid.append(element("span", "", "layer"));
  for (let head = 0; head < heads; head++) grid.append(element("span", "", `head ${head}`));
  const rows = layers.map((layer, at) => {
    grid.append(element("span", "", String(at)));
    return Array.from({ length: heads }, (_, head) => {
      if (head >= layer.length) { grid.append(element("span")); return null; }
      const canvas = document.createElement("canvas"), button = element("button", "thumb", canvas);
      button.type = "button";
      button.setAttribute("aria-label", `Layer ${at}, head ${head}`);
      button.title = `Layer ${at}, head ${head}`;
      if (at === state.layer && String(head) === String(state.head)) button.classList.add("chosen");
      button.addEventListener("click", () => open(at, head));
      grid.append(button);
      return canvas;
    });
  });
  box.replaceChildren(grid);
  const ramp = rampColours(), zero = css("--zero");
  const draw = (at) => {
    if (job !== overviewJob || at >= rows.length) return;
    rows[at].forEach((canvas, head) => {
      if (canvas) thumbnail(canvas, buildView({ ...state, layer: at, head }), ramp, zero);
    });
    requestAnimationFrame(() => draw(at + 1));
  };
  draw(0);
}
