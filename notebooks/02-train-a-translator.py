# %% [markdown] lang="en"
# # Train a translator
#
# This lesson trains a small Transformer from English to Portuguese, from nothing to its first sentences, in about a minute. The sentence pairs come from the micro-world, a little grammar inside Atento; at the end you know how to use your own.

# %% [markdown] lang="pt-BR"
# # Treinar um tradutor
#
# Esta aula treina um pequeno Transformer do inglês para o português, do nada às primeiras frases, em cerca de um minuto. Os pares de frases vêm do micromundo, uma pequena gramática dentro do Atento; no fim você saberá usar os seus.

# %%
import json
import math

import pandas as pd

import atento
from atento.inspection.figures.curves import sparkline
from atento_world import write


def frame(split, count):
    pairs = write(split, count)
    return pd.DataFrame({"source": [p.source for p in pairs], "target": [p.target for p in pairs]})


train, test = frame("train", 4000), frame("combinations", 50)
train.head()

# %% [markdown] lang="en"
# The test sentences have words that stand in the training data, in combinations that do not. A model that only remembers sentences fails on them.
#
# ## What is learned
#
# The network reads the source $x$ and gives the probability of each next token of the target $y$. Training lowers the cross-entropy, the mean of the negative logarithm of the probabilities of the right tokens:
#
# $$\mathcal{L} = -\frac{1}{T} \sum_{t=1}^{T} \log p(y_t \mid y_{<t}, x)$$

# %% [markdown] lang="pt-BR"
# As frases de teste têm palavras que estão nos dados de treino, em combinações que não estão. Um modelo que só decora frases erra nelas.
#
# ## O que se aprende
#
# A rede lê a fonte $x$ e dá a probabilidade de cada próximo token do alvo $y$. O treino diminui a entropia cruzada, a média do logaritmo negativo das probabilidades dos tokens certos:
#
# $$\mathcal{L} = -\frac{1}{T} \sum_{t=1}^{T} \log p(y_t \mid y_{<t}, x)$$

# %% [markdown] lang="en"
# ## The recipe
#
# A recipe says task, subwords, network and training. `steps` counts updates; `batch_tokens` is how many target tokens each one sees; the learning rate rises during `warmup` and falls afterwards.

# %% [markdown] lang="pt-BR"
# ## A receita
#
# Uma receita diz tarefa, subpalavras, rede e treino. `steps` conta as atualizações; `batch_tokens` é quantos tokens do alvo cada uma vê; a taxa de aprendizado sobe durante o `warmup` e depois desce.

# %%
recipe = {
    "task": "translation",
    "tokenizer": {"kind": "bpe", "vocab_size": 1000},
    "network": {"preset": "transformer-tiny", "n_layers": 2, "d_model": 96, "d_ff": 192, "n_heads": 4},
    "training": {"steps": 500, "batch_tokens": 1500, "learning_rate": 4e-3, "warmup": 50, "schedule": "cosine",
                 "validate_every": 250, "checkpoint_every": 250, "log_every": 50},
}  # fmt: skip
run = atento.train(recipe, data={"train": train, "valid": test}, out="runs/en-pt", force=True, threads=1)
run

# %% [markdown] lang="en"
# ## The learning curve
#
# Each line of `metrics.jsonl` is an event. The first loss is near $\log V$, that of a guess among $V$ subwords.

# %% [markdown] lang="pt-BR"
# ## A curva de aprendizado
#
# Cada linha de `metrics.jsonl` é um evento. A primeira perda está perto de $\log V$, a de um chute entre $V$ subpalavras.

# %%
lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
events = pd.DataFrame([json.loads(line) for line in lines])
curve = events[events["event"] == "train"][["step", "nll"]].astype({"step": int})
print("log V =", round(math.log(1000), 2), " ", sparkline(list(curve["nll"])))
curve.set_index("step").round(2)

# %% [markdown] lang="en"
# ## Translate and score

# %% [markdown] lang="pt-BR"
# ## Traduzir e pontuar

# %%
model = atento.load(run.folder, device="cpu")
scores = atento.evaluate(model, test)
test.assign(output=model.translate(list(test["source"]))).head(10)

# %%
scores["bleu"]

# %%
model.attend(test["source"][0])

# %% [markdown] lang="en"
# ## Your own text
#
# Put your pairs into the data frame `train` with the columns `source` and `target`, for example with `pd.read_csv("mine.csv")`. Raise `vocab_size` to 8000, the network to `transformer-small` and `steps` to some ten thousands.
#
# ## Question
#
# The loss per token is $\mathcal{L}$. What is the perplexity $e^{\mathcal{L}}$ of the first and of the last line of the curve, and what does it mean?

# %% [markdown] lang="pt-BR"
# ## O seu texto
#
# Ponha os seus pares na tabela `train` com as colunas `source` e `target`, por exemplo com `pd.read_csv("meu.csv")`. Aumente `vocab_size` para 8000, a rede para `transformer-small` e `steps` para algumas dezenas de milhares.
#
# ## Pergunta
#
# A perda por token é $\mathcal{L}$. Qual é a perplexidade $e^{\mathcal{L}}$ da primeira e da última linha da curva, e o que ela significa?

# %% [markdown] lang="en"
# **Solution.** Perplexity is the number of equally probable tokens among which a guess would be as hard: near the size of the vocabulary at first, a few at the end.

# %% [markdown] lang="pt-BR"
# **Solução.** A perplexidade é o número de tokens igualmente prováveis entre os quais um chute seria tão difícil: perto do tamanho do vocabulário no começo, poucos no fim.

# %%
first, last = curve["nll"].iloc[0], curve["nll"].iloc[-1]
math.exp(first), math.exp(last)
