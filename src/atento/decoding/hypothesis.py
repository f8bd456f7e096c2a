"""One output of a search, with its scores."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hypothesis:
    """One output: `ids` without EOS, and the log-probabilities (nats) of its tokens (docs/notes.md#h8).

    Attributes:
        ids: without EOS.
        score: log_prob / length ** length_penalty, EOS counted; what minimum Bayes risk ranks by, where that decided.
        log_prob: the sum of `token_scores`.
        token_scores: log p of each token by the model, that of EOS last if it ended the output.
        finished: ended by EOS, or by a stop string, which has no score of its own; False: cut off by the limit.
        proposed, accepted: tokens that a draft proposed, and those that became part of the output; 0 without a draft.
    """

    ids: list[int]
    score: float
    log_prob: float
    token_scores: list[float] = field(repr=False)
    finished: bool = True
    proposed: int = field(default=0, repr=False, compare=False)
    accepted: int = field(default=0, repr=False, compare=False)

    def __repr__(self) -> str:
        end = "finished" if self.finished else "unfinished"
        return f"Hypothesis({len(self.ids)} ids, score={self.score:.4f}, log_prob={self.log_prob:.4f}, {end})"
