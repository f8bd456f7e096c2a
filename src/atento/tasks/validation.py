"""Validation of a translation model while it trains: loss on held-out pairs, the recipe's metrics on its outputs."""

import numpy as np
import torch

from atento.config.recipe import Recipe
from atento.data.batches import Ragged, Seq2SeqBatches
from atento.metrics import METRICS
from atento.networks import Seq2Seq
from atento.networks.steps.choose import step_function
from atento.tasks.prepare import Examples, in_order, sources_of
from atento.tasks.translation import translate
from atento.text.tokenizer import Tokenizer
from atento.training.objectives import seq2seq_loss
from atento.training.step import Sums


@torch.inference_mode()
def held_out_loss(network: Seq2Seq, tokenizer: Tokenizer, pairs: Examples) -> Sums:
    """Sums of -log p over the real targets of `pairs`, gold prefixes given, no dropout, no smoothing."""
    config = network.config
    source, target = sources_of(config, tokenizer, pairs["source"]), tokenizer.target.encode_batch(pairs["target"])
    batches = Seq2SeqBatches(
        Ragged(source),
        Ragged(target),
        budget=2048,
        seed=0,
        pad_id=config.pad_id,
        start_id=config.start_id,
        eos_id=config.eos_id,
    )
    device = next(network.parameters()).device
    sums = Sums()
    for rows in in_order(source, target, 2048):
        batch = batches.batch(np.array(rows)).to(device)
        loss, nll = seq2seq_loss(network, batch, 0.0, None)
        sums.add(Sums(float(loss), float(nll), batch.targets))
    return sums


def validate(network: Seq2Seq, tokenizer: Tokenizer, pairs: Examples, recipe: Recipe) -> dict[str, float]:
    """The scores of a valid event: loss and nll (nats a target), then each metric by name."""
    was_training = network.training
    network.eval()
    try:
        sums = held_out_loss(network, tokenizer, pairs)
        nll = sums.nll / max(1, sums.targets)
        scores = {"loss": nll, "nll": nll}
        if recipe.metrics:
            # made anew at each validation: the weights have changed
            fast = step_function(network)
            found = translate(network, tokenizer, pairs["source"], recipe.decoding, step_function=fast)
            outputs = [best[0].text for best in found]
            scores |= {name: METRICS[name](outputs, pairs["target"]).value for name in recipe.metrics}
        return scores
    finally:
        network.train(was_training)
