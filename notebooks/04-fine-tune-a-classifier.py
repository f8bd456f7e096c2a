# %% [markdown] lang="en"
# # Fine-tune a classifier
#
# A masked language model has read many sentences and knows something about words. With a small head on top and a few labelled examples, it becomes a classifier. The data come in as a pandas table, and the predictions go out as one.

# %% [markdown] lang="pt-BR"
# # Ajustar um classificador
#
# Um modelo de linguagem mascarado já leu muitas frases e sabe algo sobre palavras. Com uma pequena cabeça em cima e alguns exemplos rotulados, ele vira um classificador. Os dados entram como uma tabela do pandas, e as previsões saem como outra.

# %%
import pandas as pd
import torch

import atento
from atento.metrics import confusion_of
from atento_world import labelled

train = pd.DataFrame(labelled("tense", "train", 300))
valid = pd.DataFrame(labelled("tense", "valid", 60))
test = pd.DataFrame(labelled("tense", "combinations", 200))
train.head()

# %% [markdown] lang="en"
# The label is the tense of the sentence: present, past or future. Your own table needs the same two columns, `text` and `label`.
#
# ## From a vector to a label
#
# The encoder gives a vector $h$ for the text. The head is one matrix $W$ with a row for each label, and the softmax makes probabilities of its scores:
#
# $$p(c \mid x) = \frac{e^{w_c \cdot h + b_c}}{\sum_{c'} e^{w_{c'} \cdot h + b_{c'}}}$$

# %% [markdown] lang="pt-BR"
# O rótulo é o tempo verbal da frase: presente, passado ou futuro. A sua tabela precisa das mesmas duas colunas, `text` e `label`.
#
# ## De um vetor a um rótulo
#
# O codificador dá um vetor $h$ para o texto. A cabeça é uma matriz $W$ com uma linha para cada rótulo, e o softmax transforma suas pontuações em probabilidades:
#
# $$p(c \mid x) = \frac{e^{w_c \cdot h + b_c}}{\sum_{c'} e^{w_{c'} \cdot h + b_{c'}}}$$

# %%
scores = torch.tensor([2.0, 0.5, -1.0])
torch.exp(scores) / torch.exp(scores).sum()

# %% [markdown] lang="en"
# ## Train
#
# `init` names the model to start from: here the small one that comes with Atento; with internet, a hub name such as `neuralmind/bert-base-portuguese-cased`.

# %% [markdown] lang="pt-BR"
# ## Treinar
#
# `init` diz de que modelo se parte: aqui o pequeno que vem com o Atento; com internet, um nome do hub como `neuralmind/bert-base-portuguese-cased`.

# %%
steps = {"steps": 60, "batch_tokens": 32, "learning_rate": 1e-3, "warmup": 6, "schedule": "linear",
         "validate_every": 60, "checkpoint_every": 60}  # fmt: skip
recipe = {"task": "classification", "init": "micro-world-mlm", "training": steps}
data = {"train": train, "valid": valid}
run = atento.train(recipe, data=data, out="runs/tense", force=True, threads=1)
run

# %% [markdown] lang="en"
# ## Score it on sentences that it never saw

# %% [markdown] lang="pt-BR"
# ## Pontuá-lo em frases que ele nunca viu

# %%
model = atento.load(run.folder, device="cpu")
score = atento.evaluate(model, test, metrics=["report"])["report"]
print("accuracy", round(score.value, 3), "interval", score.interval())
confusion_of(score)

# %%
labels = model.classify(test["text"])
out = test.assign(predicted=[label.name for label in labels], probability=[label.probability for label in labels])
out[out["label"] != out["predicted"]].sort_values("probability", ascending=False).head()

# %% [markdown] lang="en"
# ## Which words decided?
#
# Words above zero speak for the label, words below zero against it.

# %% [markdown] lang="pt-BR"
# ## Que palavras decidiram?
#
# Palavras acima de zero falam a favor do rótulo, palavras abaixo de zero, contra.

# %%
model.explain("A menina vai abrir a porta.")

# %% [markdown] lang="en"
# ## Question
#
# How much did pretraining give? Train a network of the same kind from random weights with the same examples and steps, and compare.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# Quanto o pré-treino trouxe? Treine uma rede do mesmo tipo a partir de pesos aleatórios, com os mesmos exemplos e passos, e compare.

# %% [markdown] lang="en"
# **Solution.** The recipe is the same without `init`, with subwords and a network of its own. With 300 examples, the head start is usually large; with 10,000 it shrinks.

# %% [markdown] lang="pt-BR"
# **Solução.** A receita é a mesma sem `init`, com subpalavras e rede próprias. Com 300 exemplos, a vantagem costuma ser grande; com 10.000, ela diminui.

# %%
scratch = {
    "task": "classification",
    "tokenizer": {"kind": "wordpiece", "vocab_size": 1000},
    "network": {"preset": "bert-tiny", "n_layers": 2, "d_model": 96, "d_ff": 192, "n_heads": 4, "pooler": False},
    "training": steps,
}
other = atento.train(scratch, data=data, out="runs/scratch", force=True, threads=1)
compared = {"pretrained": model, "from scratch": atento.load(other.folder, device="cpu")}
pd.Series({name: atento.evaluate(one, test)["accuracy"].value for name, one in compared.items()}).to_frame("accuracy")
