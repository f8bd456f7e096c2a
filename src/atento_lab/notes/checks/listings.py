"""Checks of the corrected listings of the notes, with their original names and calls (docs/notes.md#k1 to #k5)."""

import itertools

import torch

from atento.attention import attend
from atento.attention.masks import padding
from atento.notes.listing_attention import attention, self_attention
from atento.notes.listing_bleu import corpus_bleu, sentence_bleu
from atento.notes.listing_positions import PositionalEncoding, RelativePositionalEncoding
from atento.notes.listing_rouge import RougeScorer
from atento.notes.listing_search import beam_search, greedy_decoding
from atento_lab.notes.checks.attention import EXACT, apart, by_loops, random
from atento_lab.notes.checks.mbr import mbr_listing
from atento_lab.notes.checks.metrics import CANDIDATES, REFERENCES, ROUGE_PAIR
from atento_lab.notes.checks.sampling import sampling_listing
from atento_lab.notes.checks.tiny import some_ids
from atento_lab.notes.checks.toys import EOS, ToyLanguageModel, ToySeq2Seq
from atento_lab.notes.finding import AtLeast, Finding, compare, together


def self_attention_listing() -> Finding:
    """K1: `output, weights = self_attention(query, key, value)`, with a mask."""
    query, key, value = random(2, 4, 9), random(2, 6, 9), random(2, 6, 5)
    output, weights = self_attention(query, key, value)
    everything = torch.ones(4, 6).bool()
    errors = [apart(output[i], by_loops(query[i], key[i], value[i], everything, 1 / 3)) for i in range(2)]  # 1/√9
    masked = self_attention(query, key, value, mask=padding(torch.tensor([6, 3])))[1]
    return compare(
        {
            "shapes": [list(output.shape), list(weights.shape)],
            "away from two loops": max(errors),
            "weight on padding": float(masked[1, :, 3:].max()),
        },
        {"shapes": [[2, 4, 5], [2, 4, 6]], "away from two loops": EXACT, "weight on padding": 0.0},
        notes={"weight on padding": float(weights[1, :, 3:].max())},
        remark="the listing takes no mask (error 17)",
    )


def attention_listing() -> Finding:
    """K2: `context, attention_weights = attention(Q, K, V)`."""
    queries, keys, values = random(4, 9), random(6, 9), random(6, 5)
    context, weights = attention(queries, keys, values)
    value = {
        "away from the kernel": apart(context, attend(queries[None, None], keys[None, None], values[None, None])[0, 0]),
        "away from two loops": apart(context, by_loops(queries, keys, values, torch.ones(4, 6).bool(), 1 / 3)),
        "row sums away from 1": apart(weights.sum(dim=1), torch.ones(())),
    }
    return compare(
        value,
        dict.fromkeys(value, EXACT),
        remark="one formula of the notes multiplies by V, calls the product weights, and multiplies by V again "
        "(error 29)",
    )


def position_listings() -> Finding:
    """K3: called with `(d_model, max_len)`, as in the notes."""
    encoding, odd = PositionalEncoding(8, max_len=50), PositionalEncoding(7, 50)
    batch = encoding(torch.zeros(3, 5, 8))
    relative, lengths = RelativePositionalEncoding(8, max_len=50).double(), (4, 6, 12)
    q, k, v = random(2, 3, 5, 8), random(2, 3, 5, 8), random(2, 3, 5, 8)
    vectors = relative.rel_embeddings[torch.arange(5)[:, None] - torch.arange(5) + 4]  # of every pair, (5,5,8)
    try:
        torch.einsum("bhid,jd->bhij", q, vectors)
        runs = True
    except RuntimeError:  # two letters for three dimensions
        runs = False
    return compare(
        {
            "odd width": list(odd(torch.zeros(2, 5, 7)).shape),
            "sentences alike": bool((batch == batch[0]).all()),
            "positions in a sentence": len(torch.unique(batch[0], dim=0)),
            "relative: shape": list(relative(q, k, v, 5).shape),
            "relative: row of distance 0 at 4, 6, 12": [row_of_distance(relative, 0, length) for length in lengths],
            "relative: row of distance -3": [row_of_distance(relative, -3, length) for length in lengths],
        },
        {
            "odd width": [2, 5, 7],
            "sentences alike": True,
            "positions in a sentence": 5,
            "relative: shape": [2, 3, 5, 8],
            "relative: row of distance 0 at 4, 6, 12": [49, 49, 49],
            "relative: row of distance -3": [46, 46, 46],
        },
        notes={
            "odd width": "fails",
            "sentences alike": False,
            "positions in a sentence": 1,
            "relative: shape": "runs" if runs else "fails",
            "relative: row of distance 0 at 4, 6, 12": [length - 1 for length in lengths],
        },
        remark="the sinusoids fail and use wrong positions, the einsum fails, and the row of a distance depends on the "
        "length (errors 56, 57, 58)",
    )


@torch.no_grad()
def row_of_distance(listing: RelativePositionalEncoding, distance: int, length: int) -> int:
    """Return the row of the values' table that a distance uses in a text of this length, determined from outputs alone.

    Each query may attend only to the key at that distance, so its output is that value plus the row; -1: no matching
    row.
    """
    only = torch.arange(length) - torch.arange(length)[:, None] == distance
    q, k, v = random(length, 8), random(length, 8), random(length, 8)
    query = max(0, -distance)
    added = listing(q, k, v, length, mask=only)[query] - v[query + distance]
    assert listing.relative.value_table is not None
    differences = (listing.relative.value_table - added).abs().amax(dim=1)
    return int(differences.argmin()) if float(differences.min()) < 1e-10 else -1


def decoding_listings() -> Finding:
    """K4: with the notes' names and arguments."""
    return together(search=search_listings(), sampling=sampling_listing(), mbr=mbr_listing())


def search_listings() -> Finding:
    """K4: `greedy_decoding(model, input_seq, max_length)` and `beam_search(model, src, beam_width, max_len)`."""
    language_model, prompts = ToyLanguageModel(), some_ids(8, 3, 7)
    together = greedy_decoding(language_model, prompts, 6)
    one_by_one = [greedy_decoding(language_model, prompt, 6) for prompt in prompts]
    by_hand = [_greedy_by_hand(language_model, prompt, 6) for prompt in prompts]
    model, sources = ToySeq2Seq(), some_ids(8, 4, 7)
    beam_outputs = beam_search(model, sources, beam_width=7**3, max_len=3)
    optimum = [_best_by_hand(model, source, 3) for source in sources]
    alone = [beam_search(model, source, 7**3, 3) for source in sources]
    return compare(
        {
            "greedy unlike a loop": sum(a != b for a, b in zip(together, by_hand)),
            "batch unlike one by one": sum(a != b for a, b in zip(together, one_by_one)),
            "beam misses the optimum": sum(a != b for a, b in zip(beam_outputs, optimum)),
            "beam, batch unlike one by one": sum(a != b for a, b in zip(beam_outputs, alone)),
            "of 1000 toys change if logits are added": _changed_by_raw_logits(),
        },
        {
            "greedy unlike a loop": 0,
            "batch unlike one by one": 0,
            "beam misses the optimum": 0,
            "beam, batch unlike one by one": 0,
            "of 1000 toys change if logits are added": AtLeast(200),
        },
        remark="the notes' beam adds the decoder's values: right for log-probabilities, but with logits another path "
        "wins; their greedy search takes the best token over all positions (errors 38, 39)",
    )


@torch.no_grad()
def _greedy_by_hand(model: ToyLanguageModel, prompt: torch.Tensor, max_tokens: int) -> list[int]:
    """Return the argmax tokens until EOS."""
    ids = prompt.tolist()
    for _ in range(max_tokens):
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token == EOS:
            break
        ids.append(token)
    return ids[len(prompt) :]


@torch.no_grad()
def _best_by_hand(model: ToySeq2Seq, source: torch.Tensor, max_tokens: int) -> list[int]:
    """Return the output of the best mean log-probability that ends within `max_tokens` tokens, by exhaustive search."""
    outputs, hidden, cell = model.encoder(source[None])
    best: tuple[float, list[int]] = (float("-inf"), [])
    for length in range(max_tokens):
        for output in itertools.product(range(1, 7), repeat=length):  # EOS is 0
            total, h, c, token = 0.0, hidden, cell, model.sos_token
            for next_token in (*output, EOS):
                logits, h, c = model.decoder(torch.tensor([[token]]), h, c, outputs)
                total += float(torch.log_softmax(logits[0], dim=-1)[next_token])
                token = next_token
            best = max(best, (total / (length + 1), list(output)))
    return best[1]


def _changed_by_raw_logits(toys: int = 1000, vocab_size: int = 3) -> int:
    """Return in how many random models of two steps the best path by summed logits is not the most probable one."""
    first, second = torch.randn(toys, vocab_size, 1), torch.randn(toys, vocab_size, vocab_size)
    right = first.log_softmax(dim=1) + second.log_softmax(dim=2)
    return int(((first + second).flatten(1).argmax(dim=1) != right.flatten(1).argmax(dim=1)).sum())


def metric_listings() -> Finding:
    """K5: with the notes' names and arguments."""
    return together(bleu=bleu_listing(), rouge=rouge_listing())


def rouge_listing() -> Finding:
    """K5: `RougeScorer(["rouge1", "rouge2"]).score(reference, candidate)`, on the notes' two pairs."""
    scorer = RougeScorer(["rouge1", "rouge2"])
    first = scorer.score("this is a test", "this is a test")
    second = scorer.score(*ROUGE_PAIR)
    several = RougeScorer(["rougeL"]).score_multi(["a c", "a b c d"], "a b c")["rougeL"]
    return compare(
        {
            "first pair": {name: list(score) for name, score in first.items()},
            "second pair, rouge1": list(second["rouge1"]),
            "second pair, rouge2": list(second["rouge2"]),
            "by name": [second["rouge1"].precision, second["rouge1"].recall, second["rouge1"].fmeasure],
            "two references, the better one": list(several),
        },
        {
            "first pair": {"rouge1": [1.0, 1.0, 1.0], "rouge2": [1.0, 1.0, 1.0]},
            "second pair, rouge1": [1 / 2, 2 / 3, 4 / 7],
            "second pair, rouge2": [1 / 3, 1 / 2, 2 / 5],
            "by name": [1 / 2, 2 / 3, 4 / 7],
            "two references, the better one": [1.0, 3 / 4, 6 / 7],
        },
        within=1e-12,
        notes={"second pair, rouge1": [0.6, 0.6, 0.6], "second pair, rouge2": [0.5, 0.5, 0.5]},
        remark="the notes' expected output has one number for all three, which is impossible for texts of four and "
        "three words (error 3)",
    )


def bleu_listing() -> Finding:
    """K5: `sentence_bleu(references, candidate)` and `corpus_bleu(references, candidates)` on tokenised text."""
    return compare(
        {
            "sentence 1": sentence_bleu(REFERENCES[0], CANDIDATES[0]),
            "sentence 2": sentence_bleu(REFERENCES[1], CANDIDATES[1]),
            "corpus": corpus_bleu(REFERENCES, CANDIDATES),
        },
        {"sentence 1": 1.0, "sentence 2": 1.2213386697554703e-77, "corpus": 0.8408964152537145},
        within=1e-12,
        notes={"corpus": 1.0},
        remark="the notes imply it for perfect copies (error 4)",
    )
