"""Workers on the machines of a Ray cluster: an actor each, which holds a worker process."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from atento.base.errors import AtentoError, MissingPartError, install_hint
from atento_cli.scale.line_blocks import Block
from atento_cli.scale.workers import Answer, WorkerLost, WorkerProcess


class RayCluster:
    """A connection to a Ray cluster, which ends with this process.

    Args:
        address: `ray://HOST:PORT`, or `ray` for the cluster of this machine, which is started if there is none.

    Raises:
        MissingPartError: `ray` is not installed. AtentoError: there is no such cluster.
    """

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray  # late: an extra
        except ImportError:
            raise MissingPartError(f"--cluster ray needs ray: {install_hint('ray')}") from None
        self.package: Any = ray
        self._ray = self.package
        try:
            ray.init(
                address=None if address == "ray" else address,
                include_dashboard=False if address == "ray" else None,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise AtentoError(f"--cluster {address}: the cluster cannot be reached: {error}") from None

    @property
    def cpus(self) -> int:
        """The processors of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    @property
    def gpus(self) -> int:
        """The GPUs of the cluster."""
        return int(self._ray.cluster_resources().get("GPU", 0))

    def start(self, module: str, request: Mapping[str, Any], threads: int, gpu: bool) -> "RayWorker":
        """Start a worker where the cluster has `threads` processors and, if needed, a GPU."""
        return RayWorker(self._ray, module, request, threads, gpu)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


class RayWorker:
    """A worker process in an actor. A lost actor is not restarted by Ray: its block is, on a new one.

    Args:
        ray: the package.
        module, request, threads: as in `WorkerProcess`.
        gpu: whether it needs a GPU for itself.
    """

    def __init__(self, ray: Any, module: str, request: Mapping[str, object], threads: int, gpu: bool) -> None:
        self._ray = ray
        actor = ray.remote(num_cpus=threads, num_gpus=int(gpu), max_restarts=0)(WorkerProcess)
        self._actor = actor.remote(module, dict(request), threads)

    def ready(self) -> Answer:
        """Wait until the model is loaded."""
        return self._result(self._actor.ready.remote())

    def answer(self, block: Block, raw: bytes) -> Answer:
        """Ask for the outputs of a block."""
        return self._result(self._actor.answer.remote(block, raw))

    def close(self) -> None:
        """End the actor, and with it the process."""
        self._ray.kill(self._actor)

    def _result(self, reference: object) -> Answer:
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # raised in the actor
            cause = error.cause
            raise cause if isinstance(cause, WorkerLost | AtentoError) else WorkerLost(f"it failed: {cause}") from None
        except errors.RayError as error:
            raise WorkerLost(f"its actor ended: {str(error).splitlines()[0]}") from None
        return answer
