"""Blocks of texts answered by tasks on a Ray cluster: token ids of a corpus, and hashes of its near-duplicates."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from atento.base.errors import AtentoError
from atento.base.limits import read_plain
from atento.text.bulk import Answer, BulkEncoder, encoded_answer, in_order
from atento.text.tokenizer import Tokenizer
from atento_cli.corpus.find_duplicates import signed_answer
from atento_cli.scale.ray_workers import RayCluster


class RayTexts:
    """Tasks of a Ray cluster that answer texts (`TextWorkers`). Ray runs the task of a lost process or machine again.

    Args:
        cluster: the cluster, which is left at the end.
        answer: answers the texts of a block; it is sent to the machines once.
    """

    def __init__(self, cluster: RayCluster, answer: Callable[[bytes], Answer]) -> None:
        self._cluster, self._ray = cluster, cluster.package
        self._task = self._ray.remote(num_cpus=1, max_retries=3)(_answered)
        self._answer = self._ray.put(answer)

    def answers(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], Answer]]:
        """Yield each block with its answer, in order; every processor of the cluster has two blocks."""
        submit = partial(self._task.remote, self._answer)
        yield from in_order(blocks, submit, self._result, 2 * max(1, self._cluster.cpus))

    def _result(self, reference: object) -> Answer:
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # raised in the task
            raise (
                error.cause
                if isinstance(error.cause, AtentoError)
                else AtentoError(f"a task of the cluster failed: {error.cause}")
            ) from None
        except errors.RayError as error:
            raise AtentoError(f"a task of the cluster was lost: {str(error).splitlines()[0]}") from None
        return answer

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()


class Encode:
    """Encodes the texts of a block with a tokenizer, whose files it carries: the machines need not see its folder."""

    def __init__(self, folder: Path) -> None:
        self._files = tuple(
            (path.name, read_plain(path, 256 << 20)) for path in sorted(folder.iterdir()) if path.is_file()
        )

    def __call__(self, texts: bytes) -> Answer:
        """The numbers of ids, and the ids."""
        return encoded_answer(_encoder(self._files), texts)


def encoding_tasks(address: str, folder: Path) -> RayTexts:
    """Connect to a cluster whose tasks encode texts with the tokenizer of a folder."""
    return RayTexts(RayCluster(address), Encode(folder))


def signing_tasks(address: str, ngram: int) -> RayTexts:
    """Connect to a cluster whose tasks compute the hashes of texts for near-duplicates."""
    return RayTexts(RayCluster(address), partial(signed_answer, ngram))


@lru_cache(maxsize=1)
def _encoder(files: tuple[tuple[str, bytes], ...]) -> BulkEncoder:
    """The encoder of a process, which does task after task."""
    with TemporaryDirectory(prefix="atento-") as folder:
        for name, content in files:
            (Path(folder) / name).write_bytes(content)
        return BulkEncoder(Tokenizer.load(folder))


def _answered(answer: Callable[[bytes], Answer], texts: bytes) -> Answer:
    return answer(texts)
