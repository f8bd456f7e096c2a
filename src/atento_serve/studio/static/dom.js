// Elements. Texts become text nodes, never markup: the page's policy allows no other way.
const SVG = "http://www.w3.org/2000/svg";

// `about`: `class`, `on` (handlers by event), properties that are true or false, and attributes; null leaves one out.
export function make(tag, about = {}, ...children) {
  return filled(document.createElement(tag), about, children);
}

export function svg(tag, about = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), about, children);
}

function filled(element, about, children) {
  for (const [name, value] of Object.entries(about)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (typeof value === "boolean" && !name.includes("-")) element.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function button(text, press, about = {}) {
  return make("button", { type: "button", ...about, on: { click: press } }, text);
}

// A menu in a label. `pairs` are [value, text]; `choose` gets the value.
export function menu(text, pairs, chosen, choose, about = {}) {
  const select = make("select", { ...about, on: { change: () => choose(select.value) } });
  fillMenu(select, pairs, chosen);
  return make("label", { class: "field" }, make("span", {}, text), select);
}

export function fillMenu(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
}

export function check(text, on, change, about = {}) {
  const box = make("input", { type: "checkbox", ...about, on: { change: () => change(box.checked) } });
  box.checked = on;
  return make("label", { class: "field check" }, box, " ", text);
}

// A number that is typed or stepped; `change` gets it once it is whole and within its range.
export function numberField(text, value, { min = 0, max = 1e9, step = 1 }, change) {
  const input = make("input", { type: "number", min, max, step, value, on: { change: () => {
    if (input.value !== "" && input.reportValidity()) change(Number(input.value));  // the browser says what is wrong
  } } });
  return make("label", { class: "field" }, text, " ", input);
}

// A table with a caption. Cells are texts or elements; the first of each row is its heading.
export function table(caption, heads, rows) {
  return make("table", { class: "numbers" }, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, rows.map(([first, ...cells]) => make("tr", {}, make("th", { scope: "row" }, first),
      cells.map((cell) => make("td", {}, cell))))));
}

// The table that says what a drawing says, folded away; filled when it is opened.
export function folded(title, content) {
  const box = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title });
  const details = make("details", { class: "equivalent", on: { toggle: () => {
    if (details.open) box.replaceChildren(content());
  } } }, make("summary", {}, title), box);
  details.renew = () => { if (details.open) box.replaceChildren(content()); };
  return details;
}

// What one rarely touches, behind one button.
export function drop(text, about, ...content) {
  return make("details", { class: `drop ${about.class ?? ""}` }, make("summary", about.label ? { title: about.label, "aria-label": about.label } : {}, text), make("div", { class: "menu" }, ...content));
}

export function number(value, digits = 4) {
  if (value === 0) return "0";
  return Math.abs(value) < 0.5 * 10 ** -digits ? value.toExponential(1) : value.toFixed(digits);
}
