// The texts of the page in its language; `{name}` in a text stands for a value.
import en from "./en.js";
import pt from "./pt-BR.js";
import { DIAGRAM, REFUSALS } from "./refusals.js";

export const LANGUAGES = { en: "English", "pt-BR": "Português" };
const TEXTS = { en, "pt-BR": pt };
let texts = en;

export function setLanguage(language) {
  texts = TEXTS[language] ?? en;
  document.documentElement.lang = TEXTS[language] ? language : "en";
}

export function language() { return document.documentElement.lang; }

export function has(key) { return key in texts; }

export function t(key, values = {}) { return filled(texts[key] ?? key, values); }

function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}

// What the service says, such as why it refuses, in the language of the page where it is known there.
export function refused(message, known = REFUSALS) {
  for (const [english, other] of texts === en ? [] : known) {
    const names = [...english.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    const parts = english.split(/\{\w+\}/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const found = new RegExp(`^${parts.join("(.+?)")}$`, "s").exec(message);
    if (found) return filled(other, Object.fromEntries(names.map((name, at) => [name, found[at + 1]])));
  }
  return message;
}

// What a box of a diagram says, each part for itself: words, numbers.
export function boxed(text) {
  return text.split("; ").map((part) => (/^\d[\d,]*$/.test(part) ? whole(Number(part.replaceAll(",", ""))) : refused(part, DIAGRAM))).join("; ");
}

// A whole number. Decimals have a point in both languages, as in Python, so that in Portuguese thousands stand apart by a space.
export function whole(value) { return value.toLocaleString("en").replaceAll(",", texts === en ? "," : "\u00a0"); }

// A count with its noun: `key.one` or `key.many`.
export function many(key, count) { return t(`${key}.${count === 1 ? "one" : "many"}`, { count: whole(count) }); }
