// Words beside the map: its caption, the strongest links, the token in focus, the table of numbers.
function many(count, thing) { return `${count} ${thing}${count === 1 ? "" : "s"}`; }

function caption() {
  const heads = view.layers[state.layer].length;
  const joined = { mean: "mean", max: "maximum" }[state.head];
  const head = state.head === "colours" ? `${many(heads, "head")}, each in its colour`
    : joined ? `${joined} of ${many(heads, "head")}` : `head ${state.head}`;
  const name = view.name[0].toUpperCase() + view.name.slice(1);
  if (state.view === "overview") return `${name}, every layer and head: choose one. Rows read columns.`;
  const reading = view.writes ? `Each row is a target ${state.merge ? "word" : "token"} being written; it reads the columns.`
    : "Each row reads the columns.";
  return `${name}, layer ${state.layer}, ${head}${view.mask ? ` (mask: ${view.mask})` : ""}. ${reading}`;
}

function linkList(pairs, top) {
  const list = element("ol", "links");
  for (const [label, weight] of pairs) {
    const bar = element("i");
    bar.style.width = `${Math.min(100, (100 * weight) / top)}%`;
    const name = element("span", "name", label);
    name.title = label;
    list.append(element("li", "", name, element("span", "track", bar), element("span", "value", number(weight))));
  }
  return pairs.length ? list : element("p", "muted", "nothing");
}

function renderDetails() {
  const box = $("details"), row = placeOf("row"), column = placeOf("column"), place = Math.max(row, column);
  box.replaceChildren();
  if (place < 0) {
    box.append(element("h2", "", "Strongest links"), linkList(strongestLinks(view, 8), view.largest || 1));
    box.append(element("p", "muted", "Choose a token, by click or with the → key, to see where it looks."));
  } else {
    const token = row >= 0 ? view.rows[row] : view.columns[column];
    const free = element("button", "", "Unpin");
    free.type = "button";
    free.addEventListener("click", () => change({ pin: null }));
    box.append(element("div", "pinned", element("h2", "", token.label), free));
    const reads = () => {
      const pairs = view.columns.map((other, c) => [other.label, view.at(place, c)]);
      box.append(element("h3", "", view.writes ? "While it is written, most is read from" : "reads most from"), linkList(largest(pairs, 10), 1));
      if (view.hidden[place] > 0.00005) box.append(element("p", "muted", `Hidden special tokens hold ${number(view.hidden[place])} of this row.`));
    };
    const isRead = () => {
      const pairs = view.rows.map((other, r) => [other.label, view.at(r, place)]);
      box.append(element("h3", "", "is read most by"), linkList(largest(pairs, row >= 0 ? 5 : 10), 1));
    };
    if (row >= 0) reads(); else isRead();
    if (view.same && row >= 0) isRead(); else if (view.same) reads();
  }
  const { entropy, special } = mapSummary(view);
  const even = Math.log(Math.max(1, view.columns.length));
  box.append(element("p", "muted",
    `Spread of this map: ${entropy.toFixed(2)} nats a row (0: one token is read; ${even.toFixed(2)}: all alike).`));
  if (special > 0) box.append(element("p", "muted", `On special tokens: ${number(special)} of the weight.`));
}

function renderTable() {
  if (!$("numbers").open) return;
  const table = element("table", "numbers"), body = element("tbody"), head = element("tr");
  const small = view.rows.length * view.columns.length <= 20000;
  const cell = (tag, text, scope) => {
    const made = element(tag, "", text);
    if (scope) made.scope = scope;
    return made;
  };
  head.append(cell("th", view.writes ? "writes \\ reads" : "reads \\ is read"));
  if (small) head.append(...view.columns.map((token) => cell("th", token.label, "col")));
  view.rows.forEach((token, r) => {
    const pairs = view.columns.map((other, c) => [other.label, view.at(r, c)]);
    const cells = small ? pairs.map((pair) => cell("td", number(pair[1])))
      : largest(pairs, 8).map((pair) => cell("td", `${pair[0]} ${number(pair[1])}`));
    body.append(element("tr", "", cell("th", token.label, "row"), ...cells));
  });
  table.append(element("caption", "", small ? caption() : `${caption()} The map is large: each row's eight strongest.`));
  table.append(element("thead", "", head), body);
  $("table").replaceChildren(table);
}

