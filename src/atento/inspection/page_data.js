// What the page knows: sentences with their tokens, words, and weights decoded only when they are looked at.
const PAGE = JSON.parse(document.getElementById("data").textContent);
const decoded = new Map();
let DATA = PAGE.sentences[0];  // the sentence shown

function chooseSentence(at) {
  DATA = PAGE.sentences[at];
  decoded.clear();
}

function decode(kind, layer, head) {
  const key = `${kind} ${layer} ${head}`;
  if (decoded.has(key)) return decoded.get(key);
  const raw = atob(DATA.kinds[kind].layers[layer][head]);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const values = DATA.exact
    ? new Float32Array(bytes.buffer)
    : Float32Array.from(new Uint16Array(bytes.buffer), (step) => step / 65535);
  if (decoded.size >= 48) decoded.delete(decoded.keys().next().value);
  decoded.set(key, values);
  return values;
}

// One head, or the mean or maximum over a layer's heads.
function headWeights(kind, layer, head) {
  if (head !== "mean" && head !== "max") return decode(kind, layer, head);
  const count = DATA.kinds[kind].layers[layer].length;
  let sum = null;
  for (let h = 0; h < count; h++) {
    const one = decode(kind, layer, h);
    if (!sum) { sum = Float64Array.from(one); continue; }
    if (head === "mean") for (let i = 0; i < one.length; i++) sum[i] += one[i];
    else for (let i = 0; i < one.length; i++) if (one[i] > sum[i]) sum[i] = one[i];
  }
  if (head === "mean") for (let i = 0; i < sum.length; i++) sum[i] /= count;
  return sum;
}

function sideTokens(kind, side, merge) {
  return DATA.kinds[kind].sides[side][merge ? "words" : "tokens"].map(
    ([label, start, end, special]) => ({ label, start, end, special }));
}

// The map as shown: columns of a word summed, rows averaged, hidden ones left out and what they held counted.
function buildView(state) {
  const { kind, merge, hide } = state;
  const full = headWeights(kind, state.layer, state.head);
  const all = [sideTokens(kind, 0, merge), sideTokens(kind, 1, merge)];
  const rows = all[0].filter((token) => !hide || !token.special);
  const columns = all[1].filter((token) => !hide || !token.special);
  const width = all[1].length ? all[1][all[1].length - 1].end : 0;
  const weights = new Float64Array(rows.length * columns.length);
  const hidden = new Float64Array(rows.length);
  let top = 0, zeros = false;
  rows.forEach((row, r) => {
    const length = row.end - row.start;
    let total = 0, shown = 0;
    for (let i = row.start; i < row.end; i++) for (let j = 0; j < width; j++) total += full[i * width + j];
    columns.forEach((column, c) => {
      let sum = 0;
      for (let i = row.start; i < row.end; i++)
        for (let j = column.start; j < column.end; j++) sum += full[i * width + j];
      weights[r * columns.length + c] = sum / length;
      shown += sum;
      if (sum / length > top) top = sum / length;
      if (sum === 0) zeros = true;
    });
    hidden[r] = Math.max(0, total - shown) / length;
  });
  const even = 1 / Math.max(1, columns.length);
  // Four times even attention is the least that gets the strongest colour: a map of even weights stays pale.
  const shown = state.scale === "one" ? 1 : Math.max(top, Math.min(1, 4 * even)) || 1;
  return { ...DATA.kinds[kind], kind, rows, columns, weights, hidden, largest: top, zeros, even, top: shown,
    least: state.least * (top || 1), at: (r, c) => weights[r * columns.length + c] };
}

function number(weight) {
  if (weight === 0) return "0";
  return weight < 0.00005 ? weight.toExponential(1) : weight.toFixed(4);
}

// The `count` largest of [name, weight] pairs, largest first.
function largest(pairs, count) {
  return pairs.filter((pair) => pair[1] > 0).sort((a, b) => b[1] - a[1]).slice(0, count);
}

function strongestLinks(view, count) {
  let best = [];
  view.rows.forEach((row, r) => view.columns.forEach((column, c) => {
    const weight = view.at(r, c);
    if (best.length < count || weight > best[best.length - 1][1]) {
      best.push([`${row.label} → ${column.label}`, weight]);
      best.sort((a, b) => b[1] - a[1]);
      best = best.slice(0, count);
    }
  }));
  return best.filter((pair) => pair[1] > 0);
}

// Mean entropy of the shown rows, in nats, each row brought to a sum of one; and the mean weight on special columns.
function mapSummary(view) {
  let entropy = 0, special = 0, read = 0;
  view.rows.forEach((_, r) => {
    let total = 0, logs = 0;
    view.columns.forEach((column, c) => {
      const weight = view.at(r, c);
      total += weight;
      if (weight > 0) logs += weight * Math.log(weight);
      if (column.special) special += weight;
    });
    if (total > 0) { entropy += Math.log(total) - logs / total; read += 1; }
  });
  return { entropy: read ? Math.max(0, entropy / read) : 0, special: read ? special / read : 0 };
}
