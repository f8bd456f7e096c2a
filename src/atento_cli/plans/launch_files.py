"""Launch files of a cluster, a Slurm script and a Kubernetes JobSet, which start `atento train` by torchrun."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atento.base.errors import UsageError

PORT = 29500  # of the first node, where the processes find each other
GRACE = 120  # seconds between the signal of the end and the end, to save a checkpoint
RESTARTS = 3
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")  # a name in Kubernetes, with room for what is added to it


@dataclass(frozen=True)
class Job:
    """A run on several machines."""

    name: str  # name of the job
    arguments: Sequence[str]  # arguments of `atento train`
    nodes: int  # machines
    processes: int  # processes on each machine, one for each GPU
    gpus: bool = True  # whether each process has a GPU
    hours: int = 24  # longest time of the job; Slurm only
    image: str = ""  # container image with Atento; Kubernetes only
    claim: str = ""  # persistent volume claim of the shared folder; Kubernetes only
    folder: str = "/work"  # where the shared folder is mounted, and the command runs; Kubernetes only


def torchrun(job: Job, node: str, run: str, head: str) -> list[str]:
    """Return the words of the shell command that starts the processes of one machine.

    Args:
        node: shell variable with the number of the machine.
        run: name of this run of the job, in shell syntax.
        head: address of the first machine, in shell syntax.
    """
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={RESTARTS}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={run}",
        f"--rdzv-endpoint={head}:{PORT}",
        # without it, a machine whose address is not that of its name waits for a host that never comes
        f"--rdzv-conf=is_host=$(({node} == 0))",
        "-m",
        "atento_cli.start",
        "train",
        *(shlex.quote(argument) for argument in job.arguments),
    ]


def slurm(job: Job) -> str:
    """Return a Slurm script: one task a machine, each of which runs torchrun.

    The job gets SIGTERM two minutes before its time ends, so that training saves a checkpoint; the same script
    continues the run.
    """
    command = " \\\n        ".join(torchrun(job, "SLURM_NODEID", '"$SLURM_JOB_ID"', '"$HEAD_NODE"'))
    quoted = command.replace("'", "'\\''")  # for a place between single quotes
    gpus = f"#SBATCH --gpus-per-node={job.processes}\n" if job.gpus else ""
    return f"""#!/bin/bash
# Trains on {job.nodes} machines with {job.processes} processes each. The same script continues the run.
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --time={job.hours}:00:00
#SBATCH --signal=TERM@{GRACE}
#SBATCH --output={job.name}-%j.log
set -euo pipefail

read -r HEAD_NODE < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export HEAD_NODE
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={GRACE - 10}  # seconds to save a checkpoint after SIGTERM

# each task expands the variables by itself
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
    exec {quoted}
'
"""


_JOBSET = """# Trains on {nodes} machines with {processes} processes each. The same file continues the run.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  failurePolicy:
    maxRestarts: {restarts}
  network:
    enableDNSHostnames: true
    subdomain: {name}
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          parallelism: {nodes}
          completions: {nodes}
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: {grace}
              containers:
                - name: train
                  image: {image}
                  workingDir: {folder}
                  command: ["bash", "-c", {command}]
                  env:
                    - name: TORCH_ELASTIC_SHUTDOWN_TIMEOUT
                      value: "{shutdown}"{limits}
                  volumeMounts:
                    - name: shared
                      mountPath: {folder}
                    - name: memory
                      mountPath: /dev/shm
              volumes:
                - name: shared
                  persistentVolumeClaim:
                    claimName: {claim}
                - name: memory
                  emptyDir:
                    medium: Memory
"""


def kubernetes(job: Job) -> str:
    """Return a JobSet (jobset.x-k8s.io): one pod a machine, each of which runs torchrun; as YAML.
    Raises UsageError: the job has no image or no volume claim, or its name is none in Kubernetes.
    """
    missing = [option for option, value in (("--image", job.image), ("--claim", job.claim)) if not value]
    if missing:
        raise UsageError(
            f"kubernetes needs {' and '.join(missing)}: --image is the container image with Atento, --claim the volume "
            "claim of the shared folder"
        )
    if not _NAME.fullmatch(job.name):
        raise UsageError(f"--name must be of small letters, digits and hyphens for Kubernetes: got {job.name!r}")
    command = " ".join(torchrun(job, "JOB_COMPLETION_INDEX", job.name, f"{job.name}-node-0-0.{job.name}"))
    limits = (
        f"""
                  resources:
                    limits:
                      nvidia.com/gpu: {job.processes}"""
        * job.gpus  # without GPUs, nothing
    )
    return _JOBSET.format(
        nodes=job.nodes,
        processes=job.processes,
        name=job.name,
        restarts=RESTARTS,
        grace=GRACE,
        shutdown=GRACE - 10,
        image=json.dumps(job.image),
        folder=json.dumps(job.folder),
        claim=json.dumps(job.claim),
        command=json.dumps(f"exec {command}", ensure_ascii=False),
        limits=limits,
    )


LAUNCHERS: dict[str, Callable[[Job], str]] = {"slurm": slurm, "kubernetes": kubernetes}
