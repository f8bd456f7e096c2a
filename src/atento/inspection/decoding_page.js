// The decoding page: one search, one step of it, one beginning of that step.
const data = JSON.parse(document.getElementById("data").textContent);
const part = (id) => document.getElementById(id);
const ALIVE = ["kept", "finished", "cut off by the length limit"];
const number = (value) => (value === null ? "−∞" : value.toFixed(3));
const words = (tokens) => tokens.join(" ") || "(nothing)";
let run = 0;

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(table, heads, rows) {
  const head = document.createElement("thead"), body = document.createElement("tbody");
  const line = document.createElement("tr");
  heads.forEach((text) => { const cell = element("th", text); cell.scope = "col"; line.append(cell); });
  head.append(line);
  rows.forEach(({ cells, className }) => {
    const made = document.createElement("tr");
    if (className) made.className = className;
    cells.forEach((text) => made.append(element("td", text, /^[−-]?[\d.∞]+$/.test(text) ? "number" : "")));
    body.append(made);
  });
  table.replaceChildren(head, body);
}

function options(select, texts) {
  select.replaceChildren(...texts.map((text, at) => {
    const made = element("option", text);
    made.value = String(at);
    return made;
  }));
}

function showRun() {
  run = Number(part("run").value);
  const { steps, found } = data.runs[run];
  document.querySelectorAll(".tree").forEach((tree) => { tree.hidden = Number(tree.dataset.run) !== run; });
  part("step").max = String(Math.max(1, steps.length));
  part("step").value = part("step").max;
  showRoot();
  fill(part("found"), ["output", "log-probability", "score", ""], found.map((one) => ({
    cells: [words(one.text), number(one.log_prob), number(one.score), one.finished ? "finished" : "cut off"],
  })));
  showStep();
}

// The tree opens on its root, with as many words of the winning path (thick lines) as can be in view beside it.
function showRoot() {
  const box = document.querySelector(".trees"), tree = box.querySelector(`.tree[data-run="${run}"]`);
  const root = tree && tree.querySelector(".step-0 rect");
  if (!root) return;
  box.scrollLeft = 0;
  const at = root.getBoundingClientRect(), height = box.clientHeight;
  const ends = [...tree.querySelectorAll('path[stroke-width="3.2"]')].map((line) =>
    line.getPointAtLength(line.getTotalLength()).matrixTransform(line.getScreenCTM()).y);
  const seen = (top) => ends.filter((y) => y >= top + at.height && y <= top + height - at.height).length;
  let best = at.top + at.height / 2 - height / 2;
  for (const y of ends) for (const edge of [y - at.height, y + at.height - height]) {
    const top = Math.min(at.top, Math.max(at.bottom - height, edge));
    if (seen(top) > seen(best)) best = top;
  }
  box.scrollTop += best - box.getBoundingClientRect().top;
}

function showStep() {
  const { steps, strategy, stopped } = data.runs[run], at = Number(part("step").value);
  const reached = Math.max(0, ...steps.slice(0, at).map((step) => step.length + 1));
  document.querySelectorAll(`.tree[data-run="${run}"] g[class^="step-"]`).forEach((group) => {
    group.setAttribute("visibility", Number(group.getAttribute("class").slice(5)) > reached ? "hidden" : "visible");
  });
  part("back").disabled = at <= 1;
  part("next").disabled = at >= steps.length;
  const step = steps[at - 1];
  const last = at === steps.length && stopped ? ` The search was over here: ${stopped}.` : "";
  part("caption").textContent = step
    ? `${strategy}, step ${at} of ${steps.length}: ${step.live.length} live, ${step.candidates.length} weighed.${last}`
    : `${strategy}: nothing was searched.`;
  options(part("beginning"), step ? step.live.map(words) : []);
  fill(part("weighed"), ["beginning", "token", "log p", "sum", "what became of it"], (step ? step.candidates : [])
    .slice().sort((a, b) => (b.total ?? -Infinity) - (a.total ?? -Infinity)).map((one) => ({
      cells: [words(step.live[one.parent]), one.token, number(one.log_prob), number(one.total), one.fate],
      className: ALIVE.includes(one.fate) ? "" : "gone",
    })));
  showBars();
}

function showBars() {
  const step = data.runs[run].steps[Number(part("step").value) - 1], parent = Number(part("beginning").value);
  const parts = [];
  (step ? step.distributions : []).filter((one) => one.parent === parent).forEach((one) => {
    parts.push(element("h3", `${one.filter}: ${one.left} left`));
    const list = element("ul", "", "links");
    one.tokens.forEach((token, at) => {
      const item = document.createElement("li"), bar = document.createElement("progress");
      bar.max = 1;
      bar.value = one.probabilities[at];
      item.append(element("span", token, "name"), bar, element("span", one.probabilities[at].toFixed(4), "value"));
      list.append(item);
    });
    parts.push(list);
  });
  part("bars").replaceChildren(...parts);
}

function go(by) {
  part("step").value = String(Number(part("step").value) + by);
  showStep();
}

options(part("run"), data.runs.map((one, at) => `${at + 1}. ${one.strategy}`));
part("run").addEventListener("change", showRun);
part("step").addEventListener("input", showStep);
part("back").addEventListener("click", () => go(-1));
part("next").addEventListener("click", () => go(1));
part("beginning").addEventListener("change", showBars);
showRun();
