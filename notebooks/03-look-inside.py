# %% [markdown] lang="en"
# # Look inside a translator
#
# A trained model is a set of numbers. This lesson opens the small English–Portuguese translator that comes with Atento and asks three questions: where does it look, which heads do what, and which words does an output come from?

# %% [markdown] lang="pt-BR"
# # Por dentro de um tradutor
#
# Um modelo treinado é um conjunto de números. Esta aula abre o pequeno tradutor inglês–português que vem com o Atento e faz três perguntas: para onde ele olha, que cabeça faz o quê, e de que palavras vem uma saída?

# %%
import numpy as np
import pandas as pd

import atento

model = atento.load("micro-world-en-pt", device="cpu")
text = "The white cat sleeps."
model.translate(text)

# %% [markdown] lang="en"
# ## Where it looks
#
# In cross-attention the queries come from the output $Y$ and the keys and values from the encoded source $H$:
#
# $$A = \mathrm{softmax}\left(\frac{(Y W^Q)(H W^K)^\top}{\sqrt{d_k}}\right)$$
#
# Row $t$ of $A$ says where the model looks when it writes token $t$. The figure shows every layer and head; choose *cross* and look for *branco*, which stands behind *gato* while *white* stands before *cat*.

# %% [markdown] lang="pt-BR"
# ## Para onde ele olha
#
# Na atenção cruzada, as consultas vêm da saída $Y$, e as chaves e os valores vêm da fonte codificada $H$:
#
# $$A = \mathrm{softmax}\left(\frac{(Y W^Q)(H W^K)^\top}{\sqrt{d_k}}\right)$$
#
# A linha $t$ de $A$ diz para onde o modelo olha quando escreve o token $t$. A figura mostra todas as camadas e cabeças; escolha *cross* e procure *branco*, que fica depois de *gato*, enquanto *white* fica antes de *cat*.

# %%
record = model.attend(text)
record

# %% [markdown] lang="en"
# The same numbers as a table, of the last layer and the mean of its heads: rows are the words that are written, columns those that are read.

# %% [markdown] lang="pt-BR"
# Os mesmos números em uma tabela, da última camada e da média de suas cabeças: as linhas são as palavras que são escritas, as colunas as que são lidas.

# %%
weights = record.weights(layer=-1, head="mean", kind="cross")
pd.DataFrame(weights, index=record.output_tokens, columns=record.source_tokens).round(2)

# %% [markdown] lang="en"
# ## How sharp is a head?
#
# The entropy of a row is small if the head looks at one word, and $\log N$ if it looks at all alike:
#
# $$H_t = -\sum_j A_{tj} \log A_{tj}$$

# %% [markdown] lang="pt-BR"
# ## Quão focada é uma cabeça?
#
# A entropia de uma linha é pequena se a cabeça olha para uma só palavra, e é $\log N$ se ela olha para todas igualmente:
#
# $$H_t = -\sum_j A_{tj} \log A_{tj}$$

# %%
heads = np.stack(record.kinds["cross"])  # layers, heads, rows, columns
entropy = -(heads * np.log(heads + 1e-9)).sum(axis=-1).mean(axis=-1)
print("log N =", round(float(np.log(heads.shape[-1])), 2))
pd.DataFrame(entropy).rename_axis("layer").rename_axis("head", axis=1).round(2)

# %% [markdown] lang="en"
# ## Which words an output comes from
#
# Attention says where information *may* come from, not what was used. Integrated gradients follow the log-probability $f$ from a baseline $x'$ to the text $x$, and share the difference among the words:
#
# $$\phi_i = (x_i - x'_i) \cdot \int_0^1 \frac{\partial f}{\partial x_i}\big(x' + \alpha (x - x')\big)\, d\alpha, \qquad \sum_i \phi_i = f(x) - f(x')$$
#
# Each row of the figure is a word of the output.

# %% [markdown] lang="pt-BR"
# ## De que palavras vem uma saída
#
# A atenção diz de onde a informação *pode* vir, não o que foi usado. Os gradientes integrados acompanham o logaritmo da probabilidade $f$ de uma base $x'$ até o texto $x$ e repartem a diferença entre as palavras:
#
# $$\phi_i = (x_i - x'_i) \cdot \int_0^1 \frac{\partial f}{\partial x_i}\big(x' + \alpha (x - x')\big)\, d\alpha, \qquad \sum_i \phi_i = f(x) - f(x')$$
#
# Cada linha da figura é uma palavra da saída.

# %%
explanation = model.explain(text)
explanation

# %%
print(sum(explanation.scores), "=", explanation.total, "±", explanation.error)
pd.DataFrame([part.scores for part in explanation.parts], columns=explanation.words,
             index=[part.target for part in explanation.parts]).round(2)  # fmt: skip

# %% [markdown] lang="en"
# ## Question
#
# Which source word does *branco* depend on most: does the explanation agree with a second method, which leaves out one word at a time? Compute it.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# De que palavra da fonte *branco* mais depende: a explicação concorda com um segundo método, que retira uma palavra por vez? Calcule.

# %% [markdown] lang="en"
# **Solution.** Both methods are asked for the part of the output whose word is *branco*, and the largest score among the words of the source is taken. Where two methods disagree, trust neither before you have changed the text and looked.

# %% [markdown] lang="pt-BR"
# **Solução.** Pede-se aos dois métodos a parte da saída cuja palavra é *branco* e toma-se a maior pontuação entre as palavras da fonte. Onde dois métodos discordam, não confie em nenhum antes de mudar o texto e olhar.

# %%
for method in ("integrated-gradients", "leave-out"):
    found = model.explain(text, method=method)
    part = next(part for part in found.parts if part.target.strip() == "branco")
    read = [(score, word) for score, word, side in zip(part.scores, found.words, found.sides) if side == "source"]
    print(method, max(read))
