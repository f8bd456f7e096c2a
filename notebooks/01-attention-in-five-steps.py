# %% [markdown] lang="en"
# # Attention in five steps
#
# Attention lets each word look at the others and take what it needs. This lesson computes it by hand, one equation at a time, and checks each number against Atento.

# %% [markdown] lang="pt-BR"
# # Atenção em cinco passos
#
# A atenção permite que cada palavra olhe para as outras e tome o que precisa. Esta aula a calcula à mão, uma equação por vez, e confere cada número com o Atento.

# %%
import torch

from atento.attention import attend, attention_weights
from atento.attention.masks import causal
from atento.inspection import AttentionRecord

words = ["o", "gato", "branco", "dorme"]
torch.manual_seed(1)
X = torch.randn(len(words), 8)  # N x d
X.shape

# %% [markdown] lang="en"
# ## Step 1: queries, keys and values
#
# Each word is a row of $X \in \mathbb{R}^{N \times d}$. Three matrices, which a network learns, give each word three roles: what it asks for (query), what it offers (key), and what it passes on (value):
#
# $$Q = X W^Q, \qquad K = X W^K, \qquad V = X W^V$$

# %% [markdown] lang="pt-BR"
# ## Passo 1: consultas, chaves e valores
#
# Cada palavra é uma linha de $X \in \mathbb{R}^{N \times d}$. Três matrizes, que a rede aprende, dão a cada palavra três papéis: o que ela procura (consulta), o que ela oferece (chave) e o que ela entrega (valor):
#
# $$Q = X W^Q, \qquad K = X W^K, \qquad V = X W^V$$

# %%
W_q, W_k, W_v = (torch.randn(8, 4) / 8**0.5 for _ in range(3))
Q, K, V = X @ W_q, X @ W_k, X @ W_v
Q.shape, K.shape, V.shape

# %% [markdown] lang="en"
# ## Steps 2 and 3: scores, scaled
#
# The score of words $i$ and $j$ is the dot product $q_i \cdot k_j$. Its variance grows with $d_k$, so it is divided by $\sqrt{d_k}$:
#
# $$S = \frac{Q K^\top}{\sqrt{d_k}}$$

# %% [markdown] lang="pt-BR"
# ## Passos 2 e 3: pontuações, com escala
#
# A pontuação das palavras $i$ e $j$ é o produto escalar $q_i \cdot k_j$. Sua variância cresce com $d_k$, por isso ela é dividida por $\sqrt{d_k}$:
#
# $$S = \frac{Q K^\top}{\sqrt{d_k}}$$

# %%
S = Q @ K.T / K.shape[-1] ** 0.5
S

# %% [markdown] lang="en"
# ## Step 4: softmax
#
# Each row becomes shares that add up to 1:
#
# $$A_{ij} = \frac{e^{S_{ij}}}{\sum_{m} e^{S_{im}}}$$
#
# `attention_weights` takes tensors of shape (batch, heads, words, width), so there are two more dimensions.

# %% [markdown] lang="pt-BR"
# ## Passo 4: softmax
#
# Cada linha vira parcelas que somam 1:
#
# $$A_{ij} = \frac{e^{S_{ij}}}{\sum_{m} e^{S_{im}}}$$
#
# `attention_weights` recebe tensores de forma (lote, cabeças, palavras, largura), por isso há duas dimensões a mais.

# %%
A = torch.exp(S) / torch.exp(S).sum(dim=-1, keepdim=True)
torch.testing.assert_close(A, attention_weights(Q[None, None], K[None, None])[0, 0])
AttentionRecord(tokens=words, kinds={"encoder": [A[None].numpy()]})

# %% [markdown] lang="en"
# ## Step 5: the weighted sum
#
# The output of word $i$ is the mean of all values, weighted by row $i$ of $A$:
#
# $$Y = A V$$

# %% [markdown] lang="pt-BR"
# ## Passo 5: a soma ponderada
#
# A saída da palavra $i$ é a média de todos os valores, ponderada pela linha $i$ de $A$:
#
# $$Y = A V$$

# %%
Y = A @ V
torch.testing.assert_close(Y, attend(Q[None, None], K[None, None], V[None, None])[0, 0])
Y

# %% [markdown] lang="en"
# ## Not looking ahead
#
# A model that writes must not see words that it has not written yet. A causal mask keeps key $j$ from query $i$ where $j > i$: these scores count as $-\infty$, so their weights are 0.

# %% [markdown] lang="pt-BR"
# ## Sem olhar para a frente
#
# Um modelo que escreve não pode ver palavras que ainda não escreveu. A máscara causal esconde a chave $j$ da consulta $i$ quando $j > i$: essas pontuações valem $-\infty$ e seus pesos são 0.

# %%
print(causal().draw(4))
masked = attention_weights(Q[None, None], K[None, None], mask=causal())[0]
AttentionRecord(tokens=words, kinds={"decoder": [masked.numpy()]}, masks={"decoder": "causal"})

# %% [markdown] lang="en"
# ## Question
#
# Under the causal mask, what is the output of the first word, whatever the weights of the network are? And what happens to $Y$ if the rows of $X$ change places, without a mask? Answer before you look.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# Com a máscara causal, qual é a saída da primeira palavra, quaisquer que sejam os pesos da rede? E o que acontece com $Y$ se as linhas de $X$ trocam de lugar, sem máscara? Responda antes de olhar.

# %% [markdown] lang="en"
# **Solution.** The first word can only see itself: its weight is 1, and its output is its own value $v_1$. Without a mask, the rows of $Y$ change places in the same way and keep their numbers: attention does not know the order of the words, which is why networks add positions.

# %% [markdown] lang="pt-BR"
# **Solução.** A primeira palavra só pode ver a si mesma: seu peso é 1 e sua saída é o próprio valor $v_1$. Sem máscara, as linhas de $Y$ trocam de lugar do mesmo modo e conservam seus números: a atenção não conhece a ordem das palavras, e por isso as redes somam posições.

# %%
first = attend(Q[None, None], K[None, None], V[None, None], mask=causal())[0, 0, 0]
torch.testing.assert_close(first, V[0])

order = [2, 0, 3, 1]
moved = attend(Q[order][None, None], K[order][None, None], V[order][None, None])[0, 0]
torch.testing.assert_close(moved, Y[order])
