# %% [markdown] lang="en"
# # Serve and call it
#
# A model on your disk helps nobody else. This lesson starts `atento serve`, which answers over HTTP in the language of well-known clients, and calls it. On a free notebook machine, install the extra `serve` too: `%pip install "$(ls atento-*.whl)[serve]" pandas`.

# %% [markdown] lang="pt-BR"
# # Servir e chamar
#
# Um modelo no seu disco não ajuda mais ninguém. Esta aula inicia o `atento serve`, que responde por HTTP na língua de clientes bem conhecidos, e o chama. Em uma máquina gratuita de notebooks, instale também o extra `serve`: `%pip install "$(ls atento-*.whl)[serve]" pandas`.

# %%
import atexit
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pandas as pd

import atento

# %% [markdown] lang="en"
# ## Start the service
#
# In a terminal it is one line: `atento serve micro-world-en-pt micro-world-lm`. Here it is a process of the notebook; port 0 takes a free one, which the service says when it is ready.

# %% [markdown] lang="pt-BR"
# ## Iniciar o serviço
#
# No terminal é uma linha: `atento serve micro-world-en-pt micro-world-lm`. Aqui ele é um processo do notebook; a porta 0 toma uma que esteja livre, e o serviço diz qual é quando está pronto.

# %%
log = Path("serve.log")
names = ["micro-world-en-pt", "micro-world-lm"]
command = [sys.executable, "-m", "atento", "serve", *names, "--port", "0", "--threads", "1"]
service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("w"))
atexit.register(service.kill)  # if the notebook is closed before its last cell
url = None
while url is None and service.poll() is None:
    time.sleep(0.2)
    lines = log.read_text().splitlines()
    url = next((line.split()[1] for line in lines if line.startswith("ready: ")), None)
assert url, log.read_text()

# %% [markdown] lang="en"
# ## Call it
#
# A request is JSON over HTTP, so any language can send one. `/translate` is the route of LibreTranslate, `/v1/completions` that of OpenAI.

# %% [markdown] lang="pt-BR"
# ## Chamar
#
# Uma requisição é JSON por HTTP, e qualquer linguagem pode enviá-la. `/translate` é a rota do LibreTranslate, `/v1/completions`, a da OpenAI.


# %%
def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url + path, data, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


text = "The white cat sleeps."
call("/translate", {"q": text, "source": "en", "target": "pt"})

# %%
prompt = {"model": "micro-world-lm", "prompt": "O gato branco", "max_tokens": 10, "temperature": 0}
call("/v1/completions", prompt)["choices"]

# %% [markdown] lang="en"
# The same as from Python? The service uses the same model in a process of its own:

# %% [markdown] lang="pt-BR"
# Igual ao Python? O serviço usa o mesmo modelo em um processo próprio:

# %%
model = atento.load("micro-world-en-pt", device="cpu")
assert model.translate(text) == call("/translate", {"q": text, "source": "en", "target": "pt"})["translatedText"]
model.attend(text)

# %% [markdown] lang="en"
# ## Many at once
#
# The service computes requests that wait together in one batch. If $\lambda$ requests arrive in a second and each stays $W$ seconds, then on average there are, by Little's law,
#
# $$L = \lambda W$$
#
# inside. Sixteen threads that ask without a pause keep $L$ near 16. Run the cell: its numbers are those of your machine.

# %% [markdown] lang="pt-BR"
# ## Muitas de uma vez
#
# O serviço calcula em um só lote as requisições que esperam juntas. Se chegam $\lambda$ requisições por segundo e cada uma fica $W$ segundos, há em média, pela lei de Little,
#
# $$L = \lambda W$$
#
# lá dentro. Dezesseis linhas de execução que pedem sem pausa mantêm $L$ perto de 16. Rode a célula: os números são os da sua máquina.


# %% tags=["measured"]
def timed(_):
    begin = time.perf_counter()
    call("/translate", {"q": text, "source": "en", "target": "pt"})
    return time.perf_counter() - begin


def load(clients, requests=48):
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        waits = list(pool.map(timed, range(requests)))
    rate = requests / (time.perf_counter() - begin)
    mean = sum(waits) / len(waits)
    return {"clients": clients, "λ (1/s)": rate, "W (s)": mean, "λ W": rate * mean}


pd.DataFrame([load(clients) for clients in (1, 4, 16)]).round(3)

# %% [markdown] lang="en"
# ## A whole table
#
# A request may hold several texts, here a column of a data frame.

# %% [markdown] lang="pt-BR"
# ## Uma tabela inteira
#
# Uma requisição pode conter vários textos, aqui uma coluna de uma tabela.

# %%
table = pd.DataFrame({"en": ["The cat sleeps.", "Maria opens the door.", "Where is the boy?"]})
table.assign(pt=call("/translate", {"q": list(table["en"]), "source": "en", "target": "pt"})["translatedText"])

# %% [markdown] lang="en"
# ## Question
#
# What does the service answer to a wrong request, such as a language that the model does not know? Should a program try again?

# %% [markdown] lang="pt-BR"
# ## Pergunta
#
# O que o serviço responde a uma requisição errada, como uma língua que o modelo não conhece? O programa deve tentar de novo?

# %% [markdown] lang="en"
# **Solution.** Status 400 and a sentence that names the fault: the same request will fail again. Statuses 429 and 503 say that the service is busy, and after how long to try again. At the end, the service is stopped; it finishes what it has begun.

# %% [markdown] lang="pt-BR"
# **Solução.** Status 400 e uma frase que nomeia o erro: a mesma requisição falhará de novo. Os status 429 e 503 dizem que o serviço está ocupado e depois de quanto tempo tentar outra vez. No fim, o serviço é encerrado; ele termina o que começou.

# %%
try:
    call("/translate", {"q": text, "source": "en", "target": "fr"})
except HTTPError as error:
    print(error.code, error.read().decode())
service.terminate()
service.wait(60)
