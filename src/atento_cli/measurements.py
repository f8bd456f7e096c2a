"""The measurements of `atento bench`: what each measures, and how long it takes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """What a measurement measures, and the minutes it takes on 2 cores with 30 seconds for each library.

    `study`: a study of what networks learn, in the package; the others compare libraries, and need a clone.
    """

    about: str
    minutes: int
    study: bool = False


ON_DEVICES = ("training", "pretraining", "finetuning", "decoding", "generation", "encoding", "graphs")  # of `--device`
MEASUREMENTS = {
    "training": Measurement("training throughput compared with transformers, in target tokens per second", 5),
    "pretraining": Measurement(
        "masked and causal modelling and span corruption compared with transformers, tokens per second, padding", 12
    ),
    "processes": Measurement(
        "training in two processes compared with two threads, plain DDP and accelerate, in target tokens per second", 9
    ),
    "data": Measurement(
        "text to a token store, and the store to batches: each part, in megabytes and tokens a second", 5
    ),
    "parsers": Measurement("parsers of users' text: seconds for 1 MiB, ordinary and the hardest of its kind", 1),
    "families": Measurement(
        "forward pass and training step of each family compared with transformers, time and memory", 25
    ),
    "finetuning": Measurement(
        "fine-tuning of BERT-base and MiniLM compared with transformers, and of a part of the weights with all", 12
    ),
    "words": Measurement("word vectors compared with gensim: words per second, and how similar similar words are", 5),
    "recurrence": Measurement(
        "recurrent networks compared with a Transformer: gradients, steps, time, memory, quality", 10, study=True
    ),
    "sharing": Measurement(
        "training, decoding and reading alone and beside other programs, by how idle threads wait", 30
    ),
    "decoding": Measurement("translation speed compared with transformers and CTranslate2 on the same weights", 10),
    "small": Measurement(
        "translation by small networks compared with CTranslate2 and ONNX Runtime, and calls of one short text", 30
    ),
    "parts": Measurement("time of each part of a decoding step", 2),
    "generation": Measurement("generation by a decoder compared with transformers", 5),
    "draft": Measurement("greedy search with a draft compared with greedy search alone, on three kinds of text", 6),
    "graphs": Measurement("decoding on a GPU: CUDA graphs compared with plain steps and transformers", 5),
    "encoding": Measurement("sentence embeddings compared with sentence-transformers and ONNX Runtime", 20),
    "labelling": Measurement("classifying, tagging and answering with BERT-base compared with transformers", 8),
    "serving": Measurement("the service under 1, 8 and 64 clients compared with the servers of other libraries", 25),
    "sizing": Measurement(
        "memory of the service, and its tokens per second of processor time, for models of usual sizes", 15
    ),
    "mbr": Measurement("minimum Bayes risk compared with sacrebleu and mbrs, and its faster methods", 15),
    "attention": Measurement(
        "an attention layer by mask, length and kernel compared with other libraries, time and memory", 120
    ),
    "observation": Measurement("cost of observing attention in a training step", 2),
    "positions": Measurement("position schemes compared on the same network: length, order, cost", 8, study=True),
    "exposure": Measurement(
        "loss after the right and the decoder's own prefix, before and after scheduled sampling", 5, study=True
    ),
    "transfer": Measurement(
        "tasks of the micro-world with 100 examples, from scratch and from a pretrained BERT (--model, --quick)",
        20,
        study=True,
    ),
    "race": Measurement(
        "families of equal size trained on the same text for the same time: who learns what, how fast (--race)",
        10,
        study=True,
    ),
    "ladder": Measurement(
        "long documents read by truncation, windows, sparse and recurrent networks: cost and quality (--race, --quick)",
        6,
        study=True,
    ),
    "agreement": Measurement("agreement of outputs in reduced precision with those in float32 (needs --model)", 5),
}
