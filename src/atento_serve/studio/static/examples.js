// Texts to begin with, in the words of the micro-world, which the package's small models know: sentences, pairs, and questions.
import { beside } from "./second_text.js";

const EXAMPLES = [
  { language: "en", text: "The cat sees the old house." },
  { language: "en", text: "Ana buys two books in the garden." },
  { language: "en", text: "The dog that sleeps is small." },
  { language: "pt-BR", text: "O gato vê a casa velha." },
  { language: "pt-BR", text: "Ana compra dois livros no jardim." },
  { language: "pt-BR", text: "O cachorro que dorme é pequeno." },
  { language: "en", text: "The famous man admires Paulo at night.", second: "The famous man does not admire Paulo at night." },
  { language: "en", text: "The tall poet worked.", second: "The poet worked." },
  { language: "pt-BR", text: "O homem famoso admira Paulo à noite.", second: "O homem famoso não admira Paulo à noite." },
  { language: "pt-BR", text: "O poeta alto trabalhou.", second: "O poeta trabalhou." },
  { language: "en", text: "The young father will study biology. The judge sang.", question: "What will the young father study?" },
  { language: "en", text: "The husbands entered the hotel. Ana slept.", question: "Who entered the hotel?" },
  { language: "pt-BR", text: "O pai jovem vai estudar biologia. O juiz cantou.", question: "O que o pai jovem vai estudar?" },
  { language: "pt-BR", text: "Os maridos entraram no hotel. Ana dormiu.", question: "Quem entrou no hotel?" },
];

// Whether a text is one of the examples, which nobody typed.
export function isExample(text) { return EXAMPLES.some((one) => one.text === text); }

// The examples in the languages that a model reads, of the kind that its task takes; without a model, all sentences.
export function fitting(card) {
  const asked = beside(card), kind = asked === "optional" ? (card.labels.includes("entailment") ? "second" : "") : asked;
  return EXAMPLES.filter((one) => (!card || card.languages.includes(one.language.slice(0, 2))) && (kind ? kind in one : !one.second && !one.question));
}

// What to begin with: a sentence in a language that the model reads, of a tagger one with a name, and a pair or a question where
// it must have one; without a model, the first of all.
export function firstExample(card) {
  const must = ["second", "question"].includes(beside(card)), own = EXAMPLES.filter(({ language }) => card?.languages.includes(language.slice(0, 2)));
  return (must ? fitting(card)[0] : card?.verbs[0] === "tag" ? own.find(({ text }) => text.startsWith("Ana")) : own[0]) ?? EXAMPLES[0];
}
