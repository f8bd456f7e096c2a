// Texts to begin with, by language, in the words of the micro-world, which the package's small models know.
export const EXAMPLES = {
  en: ["The cat sees the old house.", "Ana reads two books in the garden.", "The dog that sleeps is small."],
  "pt-BR": ["O gato vê a casa velha.", "Ana lê dois livros no jardim.", "O cachorro que dorme é pequeno."],
};
