// A function of the package, by a name of the service's list: its file, its first line and, once opened, its lines as they run.
import { call, remembering } from "./api.js";
import { make } from "./dom.js";

const sources = remembering(40, (name) => call("source", { name }));

export function sourceOf(name) {
  const place = make("code", {}, name), lines = make("code", {});
  sources(name).then(({ file, line, text }) => {
    place.textContent = `${file}, ${line}: ${name}`;
    lines.textContent = text;
  }, (error) => { lines.textContent = error.message; });
  return make("details", { class: "source", "data-source": name }, make("summary", {}, place),
    make("pre", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, lines));
}
