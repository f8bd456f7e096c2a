# %% [markdown] lang="en"
# # Metrics and significance
#
# System A has 1 BLEU more than system B. Is it better, or was it luck? This lesson computes the metrics of translation by hand and then asks how sure they are.

# %% [markdown] lang="pt-BR"
# # Métricas e significância
#
# O sistema A tem 1 BLEU a mais que o sistema B. Ele é melhor, ou foi sorte? Esta aula calcula as métricas da tradução à mão e depois pergunta quão seguras elas são.

# %%
import math
from collections import Counter

import numpy as np
import pandas as pd

import atento
from atento.metrics import bleu, chrf, paired_test
from atento_world import write

model = atento.load("micro-world-en-pt", device="cpu")
pairs = write("structures", 60)
data = pd.DataFrame({"source": [p.source for p in pairs], "target": [p.target for p in pairs]})
references = list(data["target"])

# %% [markdown] lang="en"
# ## Two systems
#
# The same translator with a beam of 4 and with sampling.

# %% [markdown] lang="pt-BR"
# ## Dois sistemas
#
# O mesmo tradutor com um feixe de 4 e com amostragem.

# %%
beam = model.translate(list(data["source"]), beam=4)
sampled = model.translate(list(data["source"]), temperature=0.8, seed=1)
data.assign(beam=beam, sampled=sampled).head()

# %% [markdown] lang="en"
# ## BLEU
#
# BLEU counts how many $n$-grams of the output stand in the reference ($p_n$, for $n$ up to 4), and lowers the score of outputs of length $c$ that are shorter than the references, of length $r$:
#
# $$\mathrm{BLEU} = 100 \cdot \min\left(1, e^{1 - r/c}\right) \cdot \exp\left(\frac{1}{4} \sum_{n=1}^{4} \log p_n\right)$$
#
# All sentences are counted together: the score of a corpus is not the mean of its sentences.

# %% [markdown] lang="pt-BR"
# ## BLEU
#
# O BLEU conta quantos $n$-gramas da saída estão na referência ($p_n$, para $n$ até 4) e diminui a pontuação das saídas de comprimento $c$ que são mais curtas do que as referências, de comprimento $r$:
#
# $$\mathrm{BLEU} = 100 \cdot \min\left(1, e^{1 - r/c}\right) \cdot \exp\left(\frac{1}{4} \sum_{n=1}^{4} \log p_n\right)$$
#
# Todas as frases são contadas juntas: a pontuação de um corpus não é a média de suas frases.


# %%
def tokens(text):
    return text.replace(".", " .").replace("?", " ?").replace("!", " !").replace(",", " ,").split()


def grams(text, n):
    words = tokens(text)
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu_by_hand(outputs, references):
    logs = []
    for n in range(1, 5):
        found = sum((grams(o, n) & grams(r, n)).total() for o, r in zip(outputs, references))
        logs.append(math.log(found / sum(grams(o, n).total() for o in outputs)))
    c, r = (sum(len(tokens(text)) for text in side) for side in (outputs, references))
    return 100 * min(1.0, math.exp(1 - r / c)) * math.exp(sum(logs) / 4)


print(bleu_by_hand(sampled, references), bleu(sampled, references).value)
bleu(sampled, references)

# %% [markdown] lang="en"
# ## How sure is it?
#
# With other test sentences, the score would be another. The bootstrap draws the sentences again and again with replacement, and takes the middle 95 % of the scores:
#
# $$[\,q_{0.025},\ q_{0.975}\,] \ \text{of}\ \{\mathrm{BLEU}(b_1), \dots, \mathrm{BLEU}(b_{1000})\}$$

# %% [markdown] lang="pt-BR"
# ## Quão seguro é?
#
# Com outras frases de teste, a pontuação seria outra. O bootstrap sorteia as frases muitas vezes, com reposição, e toma os 95 % centrais das pontuações:
#
# $$[\,q_{0{,}025},\ q_{0{,}975}\,] \ \text{de}\ \{\mathrm{BLEU}(b_1), \dots, \mathrm{BLEU}(b_{1000})\}$$

# %%
rows = []
for name, outputs in (("beam", beam), ("sampled", sampled)):
    for metric in (bleu, chrf):
        score = metric(outputs, references)
        low, high = score.interval()
        rows.append({"system": name, "metric": score.name, "value": score.value, "low": low, "high": high})
pd.DataFrame(rows).round(1)

# %% [markdown] lang="en"
# ## Is the difference real?
#
# Intervals may overlap although one system is better on nearly every sentence. A paired test draws the *same* sentences for both and looks at the difference $\delta$:
#
# $$p = \frac{1 + |\{b : |\delta_b - \bar{\delta}| \ge |\delta|\}|}{1 + 1000}$$

# %% [markdown] lang="pt-BR"
# ## A diferença é real?
#
# Os intervalos podem se sobrepor embora um sistema seja melhor em quase todas as frases. O teste pareado sorteia as *mesmas* frases para os dois e olha para a diferença $\delta$:
#
# $$p = \frac{1 + |\{b : |\delta_b - \bar{\delta}| \ge |\delta|\}|}{1 + 1000}$$

# %%
print(paired_test("bleu", beam, sampled, references))
better = np.sign(np.array(chrf(beam, references).per_sentence()) - np.array(chrf(sampled, references).per_sentence()))
pd.Series(better).map({1: "beam", 0: "equal", -1: "sampled"}).value_counts().to_frame("sentences")

# %% [markdown] lang="en"
# ## Question
#
# How many sentences does a test set need? Run the paired test on the first 10, 20, 40 and 60 sentences.

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# De quantas frases precisa um conjunto de teste? Faça o teste pareado com as primeiras 10, 20, 40 e 60 frases.

# %% [markdown] lang="en"
# **Solution.** With few sentences even a large difference may be luck; the p-value falls as the set grows. Decide the size before you look: who stops at the first small $p$ finds differences that do not exist.

# %% [markdown] lang="pt-BR"
# **Solução.** Com poucas frases, até uma grande diferença pode ser sorte; o valor-p cai quando o conjunto cresce. Decida o tamanho antes de olhar: quem para no primeiro $p$ pequeno encontra diferenças que não existem.

# %%
tests = {n: paired_test("chrf", beam[:n], sampled[:n], references[:n]) for n in (10, 20, 40, 60)}
pd.DataFrame({n: {"difference": test.difference, "p": test.p_value} for n, test in tests.items()}).T.round(3)
