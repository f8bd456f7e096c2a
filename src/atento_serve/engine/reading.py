"""Jobs that read texts, such as to classify or to embed: the items of several jobs in one batch.

The verbs of a model sort texts by length and compute no padding, so a batch is only a list of items.
"""

from collections.abc import Iterable
from itertools import takewhile

from atento.model import Model
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.requests import Waiting
from atento_serve.engine.verbs import values_of
from atento_serve.jobs import Result, Usage


def batch_of(jobs: Iterable[Waiting], tokens: int, count: int) -> list[Waiting]:
    """The first job, and those with the same verb and options, in their order, until one does not fit.

    Args:
        jobs: those that wait, in the order of their arrival.
        tokens: the most tokens of a batch of several jobs.
        count: the most jobs of a batch.
    """
    jobs = list(jobs)
    alike = [job for job in jobs if job.key == jobs[0].key][:count]
    total = 0

    def fits(job: Waiting) -> bool:
        nonlocal total
        total += job.tokens
        return total <= tokens or job is alike[0]

    return list(takewhile(fits, alike))


def read_batch(model: Model, jobs: list[Waiting], outbox: Outbox) -> None:
    """Compute the results of some jobs as one batch and send them.

    If the batch fails, each job is computed alone: the one at fault fails alone, and its message counts its own texts.
    """
    verb, options = jobs[0].job.verb, jobs[0].job.options
    items = [item for job in jobs for item in job.items]
    try:
        values = iter(values_of(model, verb, items, options))
    except Exception as error:
        if len(jobs) == 1:
            outbox.fail(jobs[0].job.id, error)
        else:
            for job in jobs:
                read_batch(model, [job], outbox)
        return
    outbox.count_batch(len(items))
    for job in jobs:
        results = [next(values) for _ in job.items]
        try:
            for number, value in enumerate(results):
                outbox.event(job.job.id, Result(number, value))
            outbox.event(job.job.id, Usage(job.tokens, 0))
        except Exception as error:  # a value that cannot be written
            outbox.fail(job.job.id, error)
