# %% [markdown] lang="en"
# # Decoding strategies
#
# A model gives probabilities of the next token; a strategy makes a text of them. The same model can be dull, creative or wrong, depending on the strategy.

# %% [markdown] lang="pt-BR"
# # Estratégias de decodificação
#
# Um modelo dá probabilidades do próximo token; uma estratégia faz delas um texto. O mesmo modelo pode ser monótono, criativo ou errado, conforme a estratégia.

# %%
import pandas as pd
import torch

import atento
from atento_world import write

lm = atento.load("micro-world-lm", device="cpu")
translator = atento.load("micro-world-en-pt", device="cpu")
prompt = "O gato branco"
lm.generate(prompt, greedy=True)

# %% [markdown] lang="en"
# ## The next token
#
# The network gives a logit $z_w$ for each token $w$; temperature $\tau$ sharpens or flattens the distribution:
#
# $$p_\tau(w) = \frac{e^{z_w / \tau}}{\sum_{w'} e^{z_{w'} / \tau}}$$

# %% [markdown] lang="pt-BR"
# ## O próximo token
#
# A rede dá um logit $z_w$ para cada token $w$; a temperatura $\tau$ aguça ou achata a distribuição:
#
# $$p_\tau(w) = \frac{e^{z_w / \tau}}{\sum_{w'} e^{z_{w'} / \tau}}$$

# %%
ids = torch.tensor([[lm.network.config.ids.bos, *lm.tokenizer.encode(prompt)]])
with torch.inference_mode():
    z = lm.network(ids).logits[0, -1]
best = z.topk(8).indices
table = {f"τ = {t}": torch.softmax(z / t, -1)[best].tolist() for t in (0.5, 1.0, 2.0)}
pd.DataFrame(table, index=lm.tokenizer.tokens(best.tolist())).round(3)

# %% [markdown] lang="en"
# ## Greedy search and sampling
#
# Greedy search takes the most probable token each time. Sampling draws; *top-k* keeps the $k$ best tokens, *top-p* (nucleus) the smallest set $\mathcal{N}$ with
#
# $$\sum_{w \in \mathcal{N}} p(w) \ge p$$

# %% [markdown] lang="pt-BR"
# ## Busca gulosa e amostragem
#
# A busca gulosa toma sempre o token mais provável. A amostragem sorteia; *top-k* conserva os $k$ melhores tokens, *top-p* (núcleo), o menor conjunto $\mathcal{N}$ com
#
# $$\sum_{w \in \mathcal{N}} p(w) \ge p$$

# %%
ways = {
    "greedy": {"greedy": True},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 5": {"top_k": 5},
    "top-p 0.9": {"top_p": 0.9},
}
rows = [
    {"way": way, "seed": seed, "text": lm.generate(prompt, **options, **({} if way == "greedy" else {"seed": seed}))}
    for way, options in ways.items()
    for seed in (1, 2, 3)
]
pd.DataFrame(rows).pivot(index="way", columns="seed", values="text")

# %% [markdown] lang="en"
# ## Beam search
#
# A beam keeps the $k$ best beginnings. At the end they are ranked by log-probability over length, with a penalty $\alpha$:
#
# $$\mathrm{score}(y) = \frac{\log p(y \mid x)}{|y|^{\alpha}}$$
#
# The figure is the tree of the search: which beginnings were kept, which were cut, and why.

# %% [markdown] lang="pt-BR"
# ## Busca em feixe
#
# O feixe conserva os $k$ melhores começos. No fim, eles são ordenados pelo logaritmo da probabilidade sobre o comprimento, com uma penalidade $\alpha$:
#
# $$\mathrm{score}(y) = \frac{\log p(y \mid x)}{|y|^{\alpha}}$$
#
# A figura é a árvore da busca: que começos foram conservados, quais foram cortados, e por quê.

# %%
text = "The boy is opening the old door."
outputs, trace = translator.traced(text, beam=4, length_penalty=1.0)
trace

# %%
found = translator.translations([text], beam=4, n_best=4)[0]
pd.DataFrame(
    [{"text": one.text, "log p": one.hypothesis.log_prob, "score": one.hypothesis.score} for one in found]
).round(3)

# %% [markdown] lang="en"
# ## Minimum Bayes risk
#
# Instead of the most probable output, take the candidate that is most like all the others, by a metric $u$:
#
# $$\hat{y} = \arg\max_{y \in \mathcal{C}} \frac{1}{|\mathcal{C}|} \sum_{y' \in \mathcal{C}} u(y, y')$$

# %% [markdown] lang="pt-BR"
# ## Risco de Bayes mínimo
#
# Em vez da saída mais provável, toma-se a candidata mais parecida com todas as outras, segundo uma métrica $u$:
#
# $$\hat{y} = \arg\max_{y \in \mathcal{C}} \frac{1}{|\mathcal{C}|} \sum_{y' \in \mathcal{C}} u(y, y')$$

# %%
translator.translate(text, mbr="chrf", candidates=8, seed=1)

# %% [markdown] lang="en"
# ## Question
#
# Does a beam always find a more probable output than greedy search? Compare the log-probabilities on ten sentences.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# O feixe sempre encontra uma saída mais provável do que a busca gulosa? Compare os logaritmos das probabilidades em dez frases.

# %% [markdown] lang="en"
# **Solution.** Nearly always at least as probable, but it is no law: a beam may cut the beginning that greedy search would have followed. Here the outputs are ranked with $\alpha = 0$, that is by probability alone.

# %% [markdown] lang="pt-BR"
# **Solução.** Quase sempre ao menos tão provável, mas não é lei: o feixe pode cortar o começo que a busca gulosa teria seguido. Aqui as saídas são ordenadas com $\alpha = 0$, isto é, só pela probabilidade.

# %%
texts = [pair.source for pair in write("combinations", 10)]
greedy = [row[0].hypothesis.log_prob for row in translator.translations(texts, greedy=True)]
beam = [row[0].hypothesis.log_prob for row in translator.translations(texts, beam=4, length_penalty=0.0)]
pd.DataFrame({"text": texts, "greedy": greedy, "beam": beam}).round(3)
