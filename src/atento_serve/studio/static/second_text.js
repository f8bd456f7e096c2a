// The box of a second text: that of a pair, or a question.
import { make } from "./dom.js";

export function secondText(studio, label, name = "second") {
  const give = () => studio.state.set({ [name]: box.value });
  const box = make("input", { type: "text", id: name, spellcheck: "false", on: { change: give } });
  const element = make("label", { class: "area" }, label, box);
  const show = () => { if (document.activeElement !== box) box.value = studio.state.get(name); };
  return { element, show };
}
