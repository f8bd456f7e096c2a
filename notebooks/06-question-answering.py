# %% [markdown] lang="en"
# # Question answering
#
# An extractive model answers a question with a part of a given text, the context. It writes nothing: it points at a start and an end.

# %% [markdown] lang="pt-BR"
# # Perguntas e respostas
#
# Um modelo extrativo responde a uma pergunta com uma parte de um texto dado, o contexto. Ele não escreve nada: aponta um começo e um fim.

# %%
import pandas as pd

import atento
from atento.metrics import squad
from atento_world import labelled

model = atento.load("micro-world-answers", device="cpu")
context = "O turista bonito canta. A menina comprou uma casa na praia."
question = "Quem canta?"
answer = model.answer(question, context)
assert answer.text == context[answer.start : answer.end]
answer

# %% [markdown] lang="en"
# ## Two pointers
#
# The head has two vectors, $s$ for starts and $e$ for ends. The score of the span from token $i$ to token $j$ is a sum, and its probability a softmax over all spans that are allowed:
#
# $$\mathrm{score}(i, j) = s \cdot h_i + e \cdot h_j, \qquad p(i, j) = \frac{e^{\mathrm{score}(i, j)}}{\sum_{i' \le j'} e^{\mathrm{score}(i', j')}}$$
#
# So the model has an opinion about every span. These are the best five:

# %% [markdown] lang="pt-BR"
# ## Dois ponteiros
#
# A cabeça tem dois vetores, $s$ para começos e $e$ para fins. A pontuação do trecho do token $i$ ao token $j$ é uma soma, e sua probabilidade, um softmax sobre todos os trechos permitidos:
#
# $$\mathrm{score}(i, j) = s \cdot h_i + e \cdot h_j, \qquad p(i, j) = \frac{e^{\mathrm{score}(i, j)}}{\sum_{i' \le j'} e^{\mathrm{score}(i', j')}}$$
#
# Assim, o modelo tem uma opinião sobre cada trecho. Estes são os cinco melhores:

# %%
pd.DataFrame([vars(one) for one in model.answer(question, context, n_best=5)])

# %% [markdown] lang="en"
# ## Which words lead to the answer?

# %% [markdown] lang="pt-BR"
# ## Que palavras levam à resposta?

# %%
model.explain((question, context))

# %% [markdown] lang="en"
# ## The score
#
# Exact match is strict, so the metric of SQuAD also counts the words that the answer $a$ and the right one $g$ share, without articles:
#
# $$P = \frac{|a \cap g|}{|a|}, \qquad R = \frac{|a \cap g|}{|g|}, \qquad F_1 = \frac{2 P R}{P + R}$$

# %% [markdown] lang="pt-BR"
# ## A pontuação
#
# O acerto exato é rigoroso; por isso a métrica do SQuAD também conta as palavras que a resposta $a$ e a certa $g$ têm em comum, sem artigos:
#
# $$P = \frac{|a \cap g|}{|a|}, \qquad R = \frac{|a \cap g|}{|g|}, \qquad F_1 = \frac{2 P R}{P + R}$$

# %%
guess, gold = {"gato", "preto"}, {"gato", "preto", "grande"}  # without the article
P, R = len(guess & gold) / len(guess), len(guess & gold) / len(gold)
print(100 * 2 * P * R / (P + R), squad(["o gato preto"], ["o gato preto grande"], language="pt").value)

# %%
test = pd.DataFrame(labelled("answers", "combinations", 100))
atento.evaluate(model, test, language="pt")["squad"]

# %% [markdown] lang="en"
# ## Predictions as a table

# %% [markdown] lang="pt-BR"
# ## Previsões como tabela

# %%
answers = model.answer(list(test["question"]), list(test["context"]))
out = test.assign(
    gold=[spans[0]["text"] if spans else "" for spans in test["answers"]],
    answer=[one.text for one in answers],
    probability=[one.probability for one in answers],
)
out[["question", "context", "gold", "answer", "probability"]].head(10)

# %% [markdown] lang="en"
# ## Question
#
# Is the model more often right where it is more sure? Split the answers at the median of their probability and compare.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# O modelo acerta mais quando tem mais certeza? Divida as respostas na mediana da probabilidade e compare.

# %% [markdown] lang="en"
# **Solution.** Compare the share of exact answers in both halves. If the sure half is much better, a service can stay silent below a threshold.

# %% [markdown] lang="pt-BR"
# **Solução.** Compare a parcela de respostas exatas nas duas metades. Se a metade mais segura é bem melhor, um serviço pode calar-se abaixo de um limiar.

# %%
sure = out["probability"] >= out["probability"].median()
(out["answer"] == out["gold"]).groupby(sure.map({True: "sure", False: "unsure"})).mean().to_frame("exact")
