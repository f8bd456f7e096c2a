"""Bits a byte of an n-gram model of the bytes of a text: what a language model has to beat.

    python -m models.ngrams LABELS

Orders 1 to 8 are interpolated (Witten and Bell 1991); validation chooses the highest one that is used.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import log2
from pathlib import Path

HIGHEST = 8


def counts(train: bytes, read: bytes, highest: int = HIGHEST) -> dict[bytes, Counter[int]]:
    """What follows each context of `read` in `train`; a context has up to `highest` - 1 bytes."""
    found: dict[bytes, Counter[int]] = {
        read[at - length : at]: Counter() for length in range(highest) for at in range(length, len(read))
    }
    for length in range(highest):
        for at in range(length, len(train)):
            if (following := found.get(train[at - length : at])) is not None:
                following[train[at]] += 1
    return found


def bits(read: bytes, found: dict[bytes, Counter[int]], highest: int = HIGHEST) -> list[float]:
    """Bits a byte of `read` by the models of order 1 to `highest`."""
    sums = [0.0] * highest
    for at, byte in enumerate(read):
        for length, probability in enumerate(_probabilities(read, at, byte, found, highest)):
            sums[length] -= log2(probability)
    return [each / len(read) for each in sums]


def _probabilities(read: bytes, at: int, byte: int, found: dict[bytes, Counter[int]], highest: int) -> Iterator[float]:
    """The probability of a byte by each order, the lowest first."""
    probability = 1 / 256
    for length in range(highest):
        following = found[read[at - length : at]] if length <= at else Counter[int]()
        if following:
            kinds = len(following)
            probability = (following[byte] + kinds * probability) / (following.total() + kinds)
        yield probability


def main(arguments: Sequence[str]) -> None:
    """Print the bits of the validation and test stories."""
    folder = Path(arguments[0])
    train, valid, test = ((folder / f"stories-{part}.txt").read_bytes() for part in ("train", "valid", "test"))
    measured = [bits(each, counts(train, each)) for each in (valid, test)]
    order = min(range(HIGHEST), key=measured[0].__getitem__)
    sys.stdout.write(f"order {order + 1}: valid {measured[0][order]:.3f}, test {measured[1][order]:.3f} bits a byte\n")


if __name__ == "__main__":
    main(sys.argv[1:])
