"""Checks of the worked examples of the notes (docs/notes.md#l1 to #l5, #l7)."""

import torch

from atento.attention import observe
from atento.attention.masks import bidirectional, causal
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Part
from atento.decoding import Greedy, generate
from atento.inspection import mask_text
from atento.networks import EncoderDecoder
from atento.notes.listing_attention import self_attention
from atento.text import Tokenizer
from atento.training.step import Updater
from atento_lab.notes.checks.attention import mask_rows
from atento_lab.notes.checks.shared_network import trained
from atento_lab.notes.checks.tiny import gold_batch, words
from atento_lab.notes.checks.tokens import PIECES, SENTENCE, WORD_VOCABULARY
from atento_lab.notes.finding import Finding, compare, grid


def three_one_hot_tokens() -> Finding:
    """L1: X = W_Q = W_V = I, W_K the cyclic shift: the softmax of one score of 1/√3 a row."""
    x = torch.eye(3, dtype=torch.float64)
    w_k = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    h, weights = self_attention(x, x @ w_k, x)
    low, high = 0.264458, 0.471083  # the softmax of 0, 0 and 1/√3
    matrix = [[low, low, high], [high, low, low], [low, high, low]]
    unscaled = torch.softmax(x @ (x @ w_k).T, dim=-1)
    return compare(
        {"A": weights, "h_1": h[0]},
        {"A": matrix, "h_1": matrix[0]},
        within=5e-7,
        notes={"A, row 1": [0.2, 0.2, 0.6], "h_1": [0.2, 0.2, 0.6]},
        remark=f"the notes round the softmax of the scores before the division by √3, {unscaled[0, 0]:.6f} and "
        f"{unscaled[0, 2]:.6f}; A·V = A because V = I (errors 1, 2, 13)",
        drawing=grid(weights, 6),
    )


def what_pulou_sees() -> Finding:
    """L2: in "o gato pulou alto" the third word sees [1 1 1 0] causally, [1 1 1 1] bidirectionally; also in a trained
    model.
    """
    model = trained().model
    assert model.tokenizer is not None
    config, tokenizer = model.network.config, model.tokenizer
    source = torch.tensor([[*tokenizer.encode("The cat jumped high"), config.eos_id]])
    target = torch.tensor([[config.start_id, *tokenizer.encode("O gato pulou alto")]])
    with observe(model.network) as observed:
        model.network(source, target)
    decoder = (observed["decoder", 0][0, :, 3, 1:] > 0).all(dim=0)  # the row of "pulou", without <s>
    encoder = (observed["encoder", 0][0, :, 2, :4] > 0).all(dim=0)
    names = ["o", "gato", "pulou", "alto"]
    drawing = "\n".join(mask_text(mask.dense(4), names, names) for mask in (causal(), bidirectional()))
    return compare(
        {**mask_rows(2, 4), "decoder, trained": decoder.int(), "encoder, trained": encoder.int()},
        {
            "causal": [1, 1, 1, 0],
            "bidirectional": [1, 1, 1, 1],
            "decoder, trained": [1, 1, 1, 0],
            "encoder, trained": [1, 1, 1, 1],
        },
        notes={"causal": [1, 1, 0, 0]},
        remark="a word sees itself too (error 5)",
        drawing=drawing,
    )


def words_and_subwords() -> Finding:
    """L3: two of the four words are known; six pieces cover all."""
    words, subwords = Tokenizer.from_vocabulary("word", WORD_VOCABULARY), Tokenizer.from_vocabulary("wordpiece", PIECES)
    return compare(
        {
            "words": words.tokens(words.encode(SENTENCE)),
            "subwords": subwords.tokens(subwords.encode(SENTENCE)),
            "back": subwords.decode(subwords.encode(SENTENCE)),
        },
        {
            "words": ["<unk>", "<unk>", "corre", "rapidamente"],
            "subwords": ["o", "gat", "##inho", "corre", "rapida", "##mente"],
            "back": SENTENCE,
        },
        notes={"words": ["o", "<unk>", "corre", "rapidamente"]},
        remark="two words are out of vocabulary, not one (error 11)",
    )


def corrected_by_the_teacher() -> Finding:
    """L5: a network that has learned "Eu gostar" gets "amo" as input; free-running, it continues from its own
    "gostar".
    """
    tokenizer, wrong, gold = words(), gold_batch("I love NLP", "Eu gostar PLN"), gold_batch("I love NLP", "Eu amo PLN")
    network = EncoderDecoder(
        NetworkConfig(vocab_size=tokenizer.vocab_size, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0)
    )
    updater = Updater(network, TrainingConfig(label_smoothing=0.0), "float32")
    for step in range(1, 61):
        updater.update([Part(wrong)], step, 0.01)
    network.eval()
    with torch.no_grad():
        predicted = network(**gold.inputs).logits[0].argmax(dim=-1)
    free = generate(network, gold.inputs["source_ids"], Greedy(), max_new_tokens=6)[0][0].ids
    return compare(
        {
            "says": tokenizer.tokens(predicted[:2].tolist()),
            "given next": tokenizer.tokens(gold.inputs["target_ids"][0, 1:3].tolist()),
            "left alone": tokenizer.tokens(free),
        },
        {"says": ["Eu", "gostar"], "given next": ["Eu", "amo"], "left alone": ["Eu", "gostar", "PLN"]},
    )


def translated() -> Finding:
    """L7: by a network that this command trains."""
    model = trained().model
    texts = {"I love NLP": "Eu amo PLN", "How are you?": "Como você está?"}
    return compare(
        dict(zip(texts, model.translate(list(texts)))),
        texts,
        notes={"I love NLP": "Yo amo PLN"},
        remark="the notes are right once; the second time the pronoun is Spanish; the address that they give for their "
        "course is that of another course (error 52)",
    )
