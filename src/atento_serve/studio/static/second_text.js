// The box of a second text: that of a pair, or a question.
import { make } from "./dom.js";

// What a model predicts from besides the text: a "question" or a "second" text, perhaps one ("optional"), or "" nothing.
export function beside(card) {
  if (!card) return "";
  const verb = card.verbs.find((one) => ["classify", "tag", "answer", "similarity", "translate", "summarize", "generate", "fill"].includes(one));
  if (verb === "answer") return "question";
  if (card.pairs || (verb === "similarity" && card.pairs !== false)) return "second";
  return verb === "classify" && card.pairs !== false ? "optional" : "";
}

// `name` is the part of the address that has it.
export function secondText(studio, label, name = () => "second") {
  const give = () => studio.state.set({ [name()]: box.value });
  const box = make("input", { type: "text", spellcheck: "false", on: { change: give } });
  const element = make("label", { class: "area" }, label, box);
  const show = () => {
    if (document.activeElement !== box || box.id !== name()) box.value = studio.state.get(name());
    box.id = name();
  };
  return { element, show };
}
