# %% [markdown] lang="en"
# # Entities in Portuguese
#
# Who, where, which organisation? A tagger marks the names in a text. This lesson uses the small Portuguese tagger that comes with Atento, scores it as the field does, and trains another from a pretrained model.

# %% [markdown] lang="pt-BR"
# # Entidades em português
#
# Quem, onde, que organização? Um etiquetador marca os nomes em um texto. Esta aula usa o pequeno etiquetador do português que vem com o Atento, pontua-o como se faz na área e treina outro a partir de um modelo pré-treinado.

# %%
import pandas as pd

import atento
from atento.metrics import entity_f1
from atento_world import labelled

model = atento.load("micro-world-entities", device="cpu")
texts = ["Maria viajou para o Brasil.", "João mora em Lisboa.", "O gato dorme."]
found = [{"text": text, **vars(entity)} for text, row in zip(texts, model.tag(texts)) for entity in row]
pd.DataFrame(found)

# %% [markdown] lang="en"
# `start` and `end` count characters of the text, so an entity can be marked in the original.
#
# ## A tag for each word
#
# The network gives each word $i$ a vector $h_i$ and the head a distribution over tags:
#
# $$p(t_i \mid x) = \mathrm{softmax}(W h_i + b)$$
#
# In the scheme IOB2, `B-PER` begins a person, `I-PER` goes on with it, and `O` is outside of any name. Why two tags? Because two names may stand side by side.

# %% [markdown] lang="pt-BR"
# `start` e `end` contam caracteres do texto, de modo que se pode marcar a entidade no original.
#
# ## Uma etiqueta para cada palavra
#
# A rede dá a cada palavra $i$ um vetor $h_i$, e a cabeça, uma distribuição sobre as etiquetas:
#
# $$p(t_i \mid x) = \mathrm{softmax}(W h_i + b)$$
#
# No esquema IOB2, `B-PER` começa uma pessoa, `I-PER` a continua, e `O` está fora de qualquer nome. Por que duas etiquetas? Porque dois nomes podem estar lado a lado.


# %%
def with_names(split, count):
    rows = pd.DataFrame(labelled("entities", split, 3 * count))
    return rows[rows["tags"].map(set).map(len) > 1].head(count).reset_index(drop=True)


test = with_names("combinations", 60)
test.head()

# %% [markdown] lang="en"
# ## The score
#
# An entity counts as right if its type and all its words are right. Precision $P$ is the share of right ones among those found, recall $R$ among those that exist:
#
# $$F_1 = \frac{2 P R}{P + R}$$

# %% [markdown] lang="pt-BR"
# ## A pontuação
#
# Uma entidade conta como certa se o tipo e todas as palavras estão certos. A precisão $P$ é a parcela de certas entre as encontradas, a cobertura $R$, entre as que existem:
#
# $$F_1 = \frac{2 P R}{P + R}$$

# %%
right = [["B-PER", "I-PER", "O", "O", "B-LOC"]]
guess = [["B-PER", "O", "O", "O", "B-LOC"]]
precision, recall = 1 / 2, 1 / 2
print(2 * precision * recall / (precision + recall), entity_f1(guess, right).value)

# %%
atento.evaluate(model, test)["entity-f1"]

# %% [markdown] lang="en"
# ## Which words make it a name?

# %% [markdown] lang="pt-BR"
# ## Que palavras fazem dela um nome?

# %%
model.explain("Maria viajou para o Brasil.")

# %% [markdown] lang="en"
# ## Train a tagger of your own
#
# A table with the columns `tokens` and `tags`, lists of words and tags, is enough; files in the CoNLL format are read too. `docs/portuguese.md` has recipes for LeNER-Br and HAREM with BERTimbau.

# %% [markdown] lang="pt-BR"
# ## Treinar o seu etiquetador
#
# Basta uma tabela com as colunas `tokens` e `tags`, listas de palavras e de etiquetas; arquivos no formato CoNLL também são lidos. `docs/portuguese.pt-BR.md` tem receitas para LeNER-Br e HAREM com o BERTimbau.

# %%
recipe = {
    "task": "tagging",
    "init": "micro-world-mlm",
    "training": {"steps": 100, "batch_tokens": 256, "learning_rate": 1e-3, "warmup": 10, "schedule": "linear",
                 "validate_every": 100, "checkpoint_every": 100},
}  # fmt: skip
data = {"train": with_names("train", 200), "valid": with_names("valid", 40)}
run = atento.train(recipe, data=data, out="runs/entities", force=True, threads=1)
atento.evaluate(run.folder, test, device="cpu")["entity-f1"]

# %% [markdown] lang="en"
# ## Question
#
# Most words are `O`. How many words would a tagger get right that never finds a name, and what is its $F_1$?

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# A maioria das palavras é `O`. Quantas palavras acertaria um etiquetador que nunca encontra um nome, e qual é o seu $F_1$?

# %% [markdown] lang="en"
# **Solution.** The share of right words is high, the $F_1$ is 0: this is why entities are counted, not words.

# %% [markdown] lang="pt-BR"
# **Solução.** A parcela de palavras certas é alta, o $F_1$ é 0: é por isso que se contam entidades, e não palavras.

# %%
gold = list(test["tags"])
nothing = [["O"] * len(tags) for tags in gold]
words = [tag == "O" for tags in gold for tag in tags]
print(sum(words) / len(words), entity_f1(nothing, gold).value)
