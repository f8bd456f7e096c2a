// A drawing as a file: a picture, a page that needs nothing else, or its numbers.
import { make } from "./dom.js";
import { css } from "./maps.js";

const LOOK = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight", "text-anchor",
  "opacity", "fill-opacity", "stroke-opacity", "stop-color", "image-rendering", "paint-order"];

export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// An SVG as text that stands alone: what the style sheet says of each element is written at it.
export function svgText(drawing) {
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, at) => {
    const look = getComputedStyle(originals[at]);
    for (const name of LOOK) element.setAttribute(name, look.getPropertyValue(name));
    element.removeAttribute("class");
  });
  const box = drawing.viewBox.baseVal;
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

function canvasSvg(canvas) {
  const { width, height } = canvas;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<image width="${width}" height="${height}" href="${canvas.toDataURL("image/png")}"/></svg>`;
}

async function drawn(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = make("canvas", { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = css("--surface");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function page(title, picture, tables) {
  const made = document.implementation.createHTMLDocument(title);
  const style = made.createElement("style"), policy = made.createElement("meta"), charset = made.createElement("meta");
  charset.setAttribute("charset", "utf-8");
  policy.setAttribute("http-equiv", "Content-Security-Policy");
  policy.setAttribute("content", "default-src 'none'; img-src data:; style-src 'unsafe-inline'");
  style.append("body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:1rem auto;padding:0 1rem}" +
    "img{max-width:100%}table{border-collapse:collapse}th,td{padding:.1rem .6rem;text-align:left}");
  made.head.prepend(charset, policy, style);
  const heading = made.createElement("h1"), image = made.createElement("img");
  heading.append(title);
  image.src = picture;
  image.alt = title;
  made.body.append(heading, image, ...tables.map((one) => made.importNode(one, true)));
  return `<!doctype html>\n${made.documentElement.outerHTML}\n`;
}

// The figure of a screen in one format. A figure has `name`, `title`, and a `canvas`, an `svg` element or `svgText`;
// `tables()`, `data`, and `file(format)`, which gives a file where the library writes it better, else null.
export async function saved(figure, format) {
  const given = await figure.file?.(format);
  if (given) return given;
  if (format === "json") return new Blob([JSON.stringify(figure.data, null, 1)], { type: "application/json" });
  const text = figure.svgText ?? (figure.svg ? svgText(figure.svg) : canvasSvg(figure.canvas));
  if (format === "svg") return new Blob([text], { type: "image/svg+xml" });
  let canvas = figure.canvas;
  if (!canvas) {
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    canvas = await drawn(address);
    URL.revokeObjectURL(address);
  }
  if (format === "png") return new Promise((done) => { canvas.toBlob(done); });
  return new Blob([page(figure.title, canvas.toDataURL("image/png"), figure.tables?.() ?? [])], { type: "text/html" });
}
