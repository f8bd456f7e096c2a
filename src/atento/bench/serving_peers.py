"""Servers that people write around other libraries, for the benchmark of the service; each is a process of its own.

The arguments of `main` are KIND FOLDER PORT THREADS: FastAPI with `transformers` or sentence-transformers behind it.
Each request is computed by itself in a thread of the server, as such servers usually do.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

NEW_TOKENS = 32


def main() -> None:
    """Load the model and serve `POST /` with {"inputs": [texts]} until the process is ended."""
    import torch
    import uvicorn
    from fastapi import Body, FastAPI

    kind, folder, port, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    answer = _KINDS[kind](folder)
    app, lock = FastAPI(), Lock()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {}

    @app.post("/")
    def compute(inputs: Annotated[list[str], Body(embed=True)]) -> Any:
        with lock, torch.inference_mode():  # two requests at once would only share the cores
            return answer(inputs)

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


Answer = Callable[[list[str]], Any]


def _embed(folder: Path) -> Answer:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False).tolist()


def _classify(folder: Path) -> Answer:
    from transformers import pipeline

    pipe: Any = pipeline("text-classification", model=str(folder), device="cpu")
    return lambda texts: pipe(texts)


def _generate(folder: Path) -> Answer:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()

    def answer(texts: list[str]) -> Any:
        batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        ids = model.generate(**batch, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
        return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :])

    return answer


_KINDS: dict[str, Callable[[Path], Answer]] = {
    "embed": _embed,
    "classify": _classify,
    "generate": _generate,
}
