"""Servers that people write around other libraries, for the benchmark of the service; each is a process of its own.

The file is run by the interpreter that has the library, so it imports nothing of Atento. The server answers `POST /`
with {"inputs": [texts]}. One thread computes: with `transformers` and sentence-transformers one request after the
other, as such servers usually do; with CTranslate2 and llama.cpp all requests that wait are one batch, which is what
their users write around `translate_batch`, `generate_batch` and `llama_decode`.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any

Answer = Callable[[list[str]], list[Any]]  # a value for each text
_BATCH = 64  # requests
_LLAMA_TOKENS = 256  # most of a prompt and its output, for llama.cpp
_BATCHED = ("ctranslate2-translate", "ctranslate2-generate", "llama")


def main() -> None:
    """Load the model and serve until the process is ended."""
    import uvicorn
    from fastapi import Body, FastAPI

    options = _options()
    computing = Computing(_KINDS[options.kind](options), _BATCH if options.kind in _BATCHED else 1)
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {}

    @app.post("/")
    async def compute(inputs: Annotated[list[str], Body(embed=True)]) -> Any:
        return await asyncio.wrap_future(computing.submit(inputs))

    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="error")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server around another library.")
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("folder", type=Path, help="the model, as the library reads it, with tokenizer.json")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=0, help="how many, exactly")
    return parser.parse_args()


class Computing:
    """A thread that computes the requests in the order of their arrival, up to `most` of those that wait at a time."""

    def __init__(self, answer: Answer, most: int) -> None:
        self._answer, self._most = answer, most
        self._requests: SimpleQueue[tuple[list[str], Future[list[Any]]]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def submit(self, texts: list[str]) -> Future[list[object]]:
        """Put a request at the end of the queue."""
        future: Future[list[object]] = Future()
        self._requests.put((texts, future))
        return future

    def _run(self) -> None:
        while True:
            batch = [self._requests.get()]
            while len(batch) < self._most and not self._requests.empty():
                batch.append(self._requests.get())
            try:
                values = iter(self._answer([text for texts, _ in batch for text in texts]))
                answers = [[next(values) for _ in texts] for texts, _ in batch]
            except Exception as error:  # the clients get it
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), answer in zip(batch, answers):
                if not future.cancelled():
                    future.set_result(answer)


def _sentence_transformers(options: argparse.Namespace) -> Answer:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(options.threads)
    model = SentenceTransformer(str(options.folder), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False).tolist()


def _classify(options: argparse.Namespace) -> Answer:
    import torch
    from transformers import pipeline

    torch.set_num_threads(options.threads)
    pipe = pipeline("text-classification", model=str(options.folder), device="cpu")
    return lambda texts: pipe(texts)


def _translate(options: argparse.Namespace) -> Answer:
    import transformers

    return _generation(options, transformers.AutoModelForSeq2SeqLM, written_from=lambda prompt: 1)


def _generate(options: argparse.Namespace) -> Answer:
    import transformers

    return _generation(options, transformers.AutoModelForCausalLM, written_from=lambda prompt: prompt)


def _generation(options: argparse.Namespace, kind: Any, written_from: Callable[[int], int]) -> Answer:
    """`generate` of a class of `transformers`; `written_from` is where the output begins behind so many prompt ids."""
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder, padding_side="left")
    model = kind.from_pretrained(options.folder).eval()
    # the defaults: a decoding configuration of the folder (Marian's forces EOS at the last step) is ignored
    configuration: Any = transformers.GenerationConfig
    model.generation_config = configuration(
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
        pad_token_id=model.config.pad_token_id,
        eos_token_id=model.config.eos_token_id,
    )

    @torch.inference_mode()
    def answer(texts: list[str]) -> list[str]:
        batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        ids = model.generate(**batch, max_new_tokens=options.new_tokens, num_beams=options.beam, do_sample=False)
        written = ids[:, written_from(batch["input_ids"].shape[1]) :]
        outputs: list[str] = tokenizer.batch_decode(written, skip_special_tokens=True)
        return outputs

    return answer


def _ctranslate2_translate(options: argparse.Namespace) -> Answer:
    import ctranslate2

    tokenizer = _tokenizer(options.folder)
    translator = ctranslate2.Translator(str(options.folder), **_ctranslate2_options(options))

    def answer(texts: list[str]) -> list[str]:
        sources = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
        results = translator.translate_batch(sources, beam_size=options.beam, max_decoding_length=options.new_tokens)
        return _texts(tokenizer, [[tokenizer.token_to_id(token) for token in r.hypotheses[0]] for r in results])

    return answer


def _ctranslate2_generate(options: argparse.Namespace) -> Answer:
    import ctranslate2

    tokenizer = _tokenizer(options.folder)
    generator = ctranslate2.Generator(str(options.folder), **_ctranslate2_options(options))
    limits = {"max_length": options.new_tokens, "include_prompt_in_result": False}

    def answer(texts: list[str]) -> list[str]:
        prompts = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
        return _texts(tokenizer, [result.sequences_ids[0] for result in generator.generate_batch(prompts, **limits)])

    return answer


def _ctranslate2_options(options: argparse.Namespace) -> dict[str, object]:
    """One batch at a time with all threads."""
    common = {"device": "cpu", "inter_threads": 1, "intra_threads": options.threads}
    return common | {"compute_type": options.precision}


def _llama(options: argparse.Namespace) -> Answer:
    tokenizer = _tokenizer(options.folder)
    engine = _Llama(options.folder / "model.gguf", options.threads)

    def answer(texts: list[str]) -> list[str]:
        prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        return _texts(tokenizer, engine.greedy(prompts, options.new_tokens))

    return answer


class _Llama:
    """Greedy search of llama.cpp for several prompts at a time, through its C interface.

    Args:
        file: a GGUF file.
        threads: of the processor.
    """

    def __init__(self, file: Path, threads: int) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, None)
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        # packed weights, except for AMX, whose products end the process (llama-cpp-python 0.3.36)
        cpu = Path("/proc/cpuinfo")
        loading.use_extra_bufts = not (cpu.exists() and "amx" in cpu.read_text(encoding="utf-8"))
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), loading)
        settings = llama_cpp.llama_context_default_params()
        settings.n_seq_max = _BATCH
        settings.n_ctx = settings.n_batch = _BATCH * _LLAMA_TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """So many tokens behind each prompt."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)
        outputs: list[list[int]] = [[] for _ in prompts]
        rows = [list(prompt) for prompt in prompts]
        lengths = [0] * len(prompts)
        for _ in range(count):
            written = self._step(rows, lengths)
            lengths = [length + len(row) for length, row in zip(lengths, rows)]
            rows = [[token] for token in written]
            for output, token in zip(outputs, written):
                output.append(token)
        return outputs

    def _step(self, rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
        """Read the tokens of each row behind those that it has; the best next token of each."""
        import numpy as np

        batch, index, last = self._batch, 0, []
        for number, (row, length) in enumerate(zip(rows, lengths)):
            for offset, token in enumerate(row):
                batch.token[index], batch.pos[index] = token, length + offset
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, number
                batch.logits[index] = offset == len(row) - 1
                index += 1
            last.append(index - 1)
        batch.n_tokens = index
        if (status := self._library.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = [self._library.llama_get_logits_ith(self._context, index) for index in last]
        return [int(np.ctypeslib.as_array(row, (self._vocab_size,)).argmax()) for row in logits]


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _texts(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    texts: list[str] = tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=False)
    return texts


_KINDS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "sentence-transformers": _sentence_transformers,
    "classify": _classify,
    "translate": _translate,
    "generate": _generate,
    "ctranslate2-translate": _ctranslate2_translate,
    "ctranslate2-generate": _ctranslate2_generate,
    "llama": _llama,
}

if __name__ == "__main__":
    main()
