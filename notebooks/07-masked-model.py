# %% [markdown] lang="en"
# # Pretrain a masked model and use it
#
# BERT learns from text alone: hide some words, guess them from both sides. This lesson pretrains a very small one in about a minute, then uses a better one of the same kind, which comes with Atento, to fill gaps, compare sentences and score texts.

# %% [markdown] lang="pt-BR"
# # Pré-treinar um modelo mascarado e usá-lo
#
# O BERT aprende só com texto: esconde algumas palavras e as adivinha pelos dois lados. Esta aula pré-treina um bem pequeno em cerca de um minuto e depois usa um melhor do mesmo tipo, que vem com o Atento, para preencher lacunas, comparar frases e pontuar textos.

# %%
import pandas as pd

import atento
from atento_world import write

train = pd.DataFrame({"text": [pair.target for pair in write("train", 6000)]})
valid = pd.DataFrame({"text": [pair.target for pair in write("valid", 100)]})
train.head()

# %% [markdown] lang="en"
# ## The objective
#
# A set $M$ of about 15 % of the tokens is chosen. Of these, 80 % become the mask token, 10 % a random token, and 10 % stay as they are. From the changed text $\tilde{x}$ the network predicts the right tokens at these places alone:
#
# $$\mathcal{L} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$

# %% [markdown] lang="pt-BR"
# ## O objetivo
#
# Escolhe-se um conjunto $M$ de cerca de 15 % dos tokens. Destes, 80 % viram o token de máscara, 10 % um token ao acaso, e 10 % ficam como estão. Do texto alterado $\tilde{x}$, a rede prevê os tokens certos só nesses lugares:
#
# $$\mathcal{L} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$

# %%
recipe = {
    "task": "masked-language-modeling",
    "tokenizer": {"kind": "wordpiece", "vocab_size": 1000},
    "network": {"preset": "bert-tiny", "n_layers": 2, "d_model": 96, "d_ff": 192, "n_heads": 4, "pooler": False},
    "training": {"steps": 400, "batch_tokens": 256, "learning_rate": 2e-3, "warmup": 40, "schedule": "cosine",
                 "validate_every": 200, "checkpoint_every": 200},
}  # fmt: skip
run = atento.train(recipe, data={"train": train, "valid": valid}, out="runs/masked", force=True, threads=1)
run

# %% [markdown] lang="en"
# `batch_tokens` counts hidden tokens: about seven times as many are read for them.
#
# ## Fill a gap
#
# The model of this lesson beside the one that comes with Atento. After a minute, a model knows hardly more than which tokens are frequent; the other one read many times as much:

# %% [markdown] lang="pt-BR"
# `batch_tokens` conta tokens escondidos: para eles, leem-se cerca de sete vezes mais.
#
# ## Preencher uma lacuna
#
# O modelo desta aula ao lado do que vem com o Atento. Depois de um minuto, um modelo mal sabe mais do que quais tokens são frequentes; o outro leu muitas vezes mais:

# %%
ours, shipped = atento.load(run.folder, device="cpu"), atento.load("micro-world-mlm", device="cpu")
text = "A menina abriu a <mask>."
pd.DataFrame(
    {
        name: [f"{one.token} {one.probability:.2f}" for one in model.fill(text, top=5)]
        for name, model in (("ours", ours), ("shipped", shipped))
    }
)

# %% [markdown] lang="en"
# ## It looks to both sides
#
# An encoder has no causal mask: in the figure each word may look at those behind it too.

# %% [markdown] lang="pt-BR"
# ## Ele olha para os dois lados
#
# Um codificador não tem máscara causal: na figura, cada palavra também pode olhar para as que vêm depois.

# %%
shipped.attend("A menina abriu a porta.")

# %% [markdown] lang="en"
# ## Vectors of sentences
#
# The mean of the last layer's vectors, without special tokens, is a vector of the sentence. Two sentences are compared by the cosine:
#
# $$\cos(u, v) = \frac{u \cdot v}{\lVert u \rVert \, \lVert v \rVert}$$

# %% [markdown] lang="pt-BR"
# ## Vetores de frases
#
# A média dos vetores da última camada, sem os tokens especiais, é um vetor da frase. Comparam-se duas frases pelo cosseno:
#
# $$\cos(u, v) = \frac{u \cdot v}{\lVert u \rVert \, \lVert v \rVert}$$

# %%
texts = ["O gato dorme.", "O gato branco dorme.", "O cachorro dorme.", "Maria viajou para o Brasil."]
vectors = shipped.embed(texts)
unit = vectors / (vectors**2).sum(axis=1, keepdims=True) ** 0.5
assert abs(shipped.similarity(texts[0], texts[1]) - unit[0] @ unit[1]) < 1e-4
pd.DataFrame(unit @ unit.T, index=texts, columns=texts).round(2)

# %% [markdown] lang="en"
# ## How natural is a text?
#
# Pseudo-perplexity hides one token at a time and asks how probable it was:
#
# $$\mathrm{PPPL}(x) = \exp\left(-\frac{1}{N} \sum_{i=1}^{N} \log p(x_i \mid x_{\setminus i})\right)$$
#
# ## Question
#
# Which of the two is more natural to each model: *A menina abriu a porta.* or *A menina abriu o porta.*? Does the model that read more tell them apart more clearly?

# %% [markdown] lang="pt-BR"
# ## Quão natural é um texto?
#
# A pseudoperplexidade esconde um token por vez e pergunta quão provável ele era:
#
# $$\mathrm{PPPL}(x) = \exp\left(-\frac{1}{N} \sum_{i=1}^{N} \log p(x_i \mid x_{\setminus i})\right)$$
#
# ## Pergunta
#
# Qual das duas é mais natural para cada modelo: *A menina abriu a porta.* ou *A menina abriu o porta.*? O modelo que leu mais as distingue com mais clareza?

# %% [markdown] lang="en"
# **Solution.** The lower number is the more natural text. Agreement in gender is learned from text alone: nobody told the model that *porta* is feminine.

# %% [markdown] lang="pt-BR"
# **Solução.** O número menor é o do texto mais natural. A concordância de gênero é aprendida só com texto: ninguém disse ao modelo que *porta* é feminina.

# %%
pair = ["A menina abriu a porta.", "A menina abriu o porta."]
pd.DataFrame(
    {name: [model.perplexity([one]).value for one in pair] for name, model in (("ours", ours), ("shipped", shipped))},
    index=pair,
).round(1)
