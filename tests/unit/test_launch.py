"""`atento launch`: the files are run with stand-ins for the cluster's programs, and their words read by torchrun."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento_cli.main import application

# the fields of a JobSet of jobset.x-k8s.io/v1alpha2, of a Job and of a pod, as far as the file may use them
FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"failurePolicy", "network", "replicatedJobs", "successPolicy", "startupPolicy", "suspend"},
    "spec.failurePolicy": {"maxRestarts", "rules"},
    "spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    "spec.replicatedJobs": {"name", "replicas", "template", "dependsOn", "groupName"},
    "spec.replicatedJobs.template.spec": {
        *("completionMode", "parallelism", "completions", "backoffLimit", "template", "activeDeadlineSeconds")
    },
    "spec.replicatedJobs.template.spec.template.spec": {
        *("restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes", "nodeSelector", "tolerations")
    },
    "spec.replicatedJobs.template.spec.template.spec.containers": {
        *("name", "image", "workingDir", "command", "args", "env", "resources", "volumeMounts")
    },
}
SAYS_ITS_WORDS = "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def made(*words: str, refused: bool = False) -> str:
    """What `atento launch` prints, or its message."""
    done = CliRunner().invoke(application(), ["launch", *words])
    if refused:
        assert isinstance(done.exception, UsageError)
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


def words_of_torchrun(folder: Path, command: list[str], **environment: str) -> list[str]:
    """Run a command where `torchrun` says its words, `srun` runs its command, and `scontrol` names two machines."""
    programs = {
        "torchrun": SAYS_ITS_WORDS,
        "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho first\necho second\n",
    }
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path, **environment}, timeout=30)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def check_words(words: list[str], nodes: str, endpoint: str, host: bool) -> None:
    """The words as torchrun itself reads them."""
    read = get_args_parser().parse_args(words)
    assert (read.nnodes, read.nproc_per_node, read.max_restarts) == (nodes, "4", 3)
    assert (read.rdzv_backend, read.rdzv_endpoint, read.rdzv_conf) == ("c10d", endpoint, f"is_host={int(host)}")
    assert read.module and read.training_script == "atento_cli.start"
    assert read.training_script_args == [
        *("train", "micro-world-lm", "name=it's", "data.folder=two words", "--out", "runs/a b")
    ]


RECIPE = ("micro-world-lm", "name=it's", "data.folder=two words", "--nodes", "2", "--nproc", "4", "--out", "runs/a b")


@pytest.mark.parametrize("node", [0, 1])
def test_the_slurm_script_and_the_jobset_start_torchrun_on_each_machine(tmp_path: Path, node: int) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(made("slurm", *RECIPE), encoding="utf-8")
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "77", "SLURM_NODEID": str(node)}
    words = words_of_torchrun(tmp_path, ["bash", str(script)], **slurm)
    check_words(words, "2", "first:29500", host=node == 0)
    assert "--rdzv-id=77" in words
    text = script.read_text(encoding="utf-8")
    for setting in ("nodes=2", "gpus-per-node=4", "job-name=it-s"):
        assert f"#SBATCH --{setting}\n" in text
    cpu = made("slurm", *RECIPE, "--no-gpus").split()
    assert cpu[cpu.index("--device") + 2] == "cpu" and not any("gpus" in word for word in cpu)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
    text = made("kubernetes", *RECIPE, "--name", "lm", "--image", "registry/atento:1", "--claim", "shared")
    jobset = yaml.safe_load(text)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    check_fields(jobset, "")
    (group,) = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    assert (job["completionMode"], job["parallelism"], job["completions"]) == ("Indexed", 2, 2)
    (container,) = job["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    words = words_of_torchrun(tmp_path, container["command"], JOB_COMPLETION_INDEX=str(node))
    # the first pod, as JobSet names it: JOBSET-GROUP-JOB-POD.SUBDOMAIN
    check_words(words, "2", f"lm-{group['name']}-0-0.{jobset['spec']['network']['subdomain']}:29500", host=node == 0)
    mounted = {volume["name"] for volume in job["template"]["spec"]["volumes"]}
    assert mounted == {mount["name"] for mount in container["volumeMounts"]}


def check_fields(value: Any, path: str) -> None:
    """Refuse fields that the schema does not have."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            assert part.keys() <= FIELDS.get(path, part.keys()), path
            for name, child in part.items():
                check_fields(child, f"{path}.{name}" if path else name)


def test_what_is_refused() -> None:
    assert "there is no cluster 'slrum'; did you mean 'slurm'?" in made("slrum", *RECIPE, refused=True)
    assert "needs --image" in made("kubernetes", *RECIPE, refused=True)
    options = ("--image", "a", "--claim", "b", "--name", "Not_This")
    assert "small letters, digits and hyphens" in made("kubernetes", *RECIPE, *options, refused=True)
    assert "unknown key 'stops'" in made("slurm", "micro-world-lm", "training.stops=3", refused=True)
