"""The names that tables give to their columns, in English and Portuguese, for the fields of records."""

import re
from unicodedata import normalize

NAMES = {
    "text": "text texts texto textos sentence sentence_a sentence1 premise frase frase1 sentenca sentenca1 "
    "premissa review resenha comment comentario content conteudo body corpo message mensagem msg tweet "
    "post t opiniao avaliacao feedback headline abstract resumo document documento utterance verso verse",
    "pair": "pair sentence_b sentence2 sentence_2 hypothesis hipotese frase2 sentenca2 text2 texto2 h par",
    "label": "label labels rotulo rotulos class classe classes category categoria sentiment sentimento polarity "
    "polaridade etiqueta intent intencao topic topico tema stars estrelas entailment emotion emocao genre "
    "genero",
    "score": "score scores nota notas rating grade similarity similaridade relatedness avaliacao pontuacao valor "
    "preco price",
    "tokens": "tokens words palavras",
    "tags": "tags ner etiquetas entidades entities",
    "question": "question pergunta questao",
    "context": "context contexto passage passagem paragraph",
    "answers": "answers answer resposta respostas",
    "query": "query consulta busca",
    "document": "document documento passage doc",
    "grade": "grade relevance relevancia",
    "positive": "positive positivo pos",
    "negative": "negative negativo neg",
    "source": "source src dialogue dialogo origem fonte input entrada article artigo en eng english ingles",
    "target": "target tgt trg destino alvo output saida summary resumo sumario translation traducao pt pt_br por "
    "portuguese portugues",
}
_FIELD_NAMES = {field: frozenset(names.split()) for field, names in NAMES.items()}


def folded(name: str) -> str:
    """A name in lower case, without accents, with underscores between its words."""
    plain = "".join(letter for letter in normalize("NFD", name) if letter.isascii())
    return re.sub(r"[^a-z0-9]+", "_", plain.casefold()).strip("_")


def is_usual(name: str, field: str) -> bool:
    """Whether a column of this name usually holds the field; the last part of a name with dots counts, or its word."""
    known, plain = _FIELD_NAMES.get(field, frozenset()), folded(name.rpartition(".")[2])
    return plain in known or plain.rpartition("_")[2] in known
