// The texts of the page in its language; `{name}` in a text stands for a value.
import en from "./en.js";
import pt from "./pt-BR.js";

export const LANGUAGES = { en: "English", "pt-BR": "Português" };
const TEXTS = { en, "pt-BR": pt };
let texts = en;

export function setLanguage(language) {
  texts = TEXTS[language] ?? en;
  document.documentElement.lang = TEXTS[language] ? language : "en";
}

export function language() { return document.documentElement.lang; }

export function has(key) { return key in texts; }

export function t(key, values = {}) {
  const text = texts[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}

// A count with its noun: `key.one` or `key.many`.
export function many(key, count) { return t(`${key}.${count === 1 ? "one" : "many"}`, { count: count.toLocaleString(language()) }); }
