"""The files of deployment: the image, the systemd unit and the Kubernetes manifest, as far as a machine can check."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT, CONTAINER = DEPLOY / "atento.service", DEPLOY / "Containerfile"
_BASE = 160e6  # bytes of the base image: Debian's small one with Python
_LIMIT = 1.2e9
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="the files of deployment are not beside the tests")


def manifest() -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", CONTAINER.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def final_stage() -> list[tuple[str, str]]:
    last = max(n for n, (word, _) in enumerate(instructions()) if word == "FROM")
    return instructions()[last:]


def test_the_image_runs_without_root_copies_what_is_there_and_asks_whether_it_is_ready() -> None:
    stage = dict(final_stage())
    assert stage["USER"] == "10001:10001" and stage["STOPSIGNAL"] == "SIGTERM"
    assert "/health/ready" in stage["HEALTHCHECK"]
    assert stage["ENTRYPOINT"] == '["atento", "serve", "--host", "0.0.0.0", "--port", "8000"]'
    words = [word for word, _ in final_stage()]
    assert words.index("USER") > words.index("COPY")  # files of the image are root's: the service cannot change them
    assert "--chown" not in stage["COPY"]
    root = DEPLOY.parent
    for word, arguments in instructions():
        if word == "COPY" and "--from" not in arguments:
            for name in arguments.split()[:-1]:
                assert (root / name).exists(), name
    allowed = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in allowed if line.startswith("!")} >= {"src", "pyproject.toml", "constraints.txt"}
    # it fails where nothing listens
    code = re.search(r'"-c", "(.*)"\]', dict(final_stage())["HEALTHCHECK"])
    assert code is not None
    done = subprocess.run([sys.executable, "-c", code[1].replace(":8000", ":1")], capture_output=True, text=True)
    assert done.returncode != 0 and "Connection refused" in done.stderr


@pytest.mark.skipif("+cpu" not in torch.__version__, reason="this build of PyTorch is not the one of the image")
def test_the_image_stays_under_its_limit() -> None:
    """By the installed sizes of all that the service needs, without what the image removes."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = needed([*project["dependencies"], *project["optional-dependencies"]["serve"]])
    assert {"torch", "fastapi", "uvicorn", "tokenizers"} <= packages.keys()
    total = _BASE + sum(map(size, packages.values()))
    assert 0.6e9 < total < _LIMIT, f"{total / 1e9:.2f} GB"


def needed(requirements: Iterable[str], extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """The installed packages that these requirements bring, by name."""
    packages: dict[str, Distribution] = {}
    queue = [(line, extras) for line in requirements]
    while queue:
        line, wanted_by = queue.pop()
        requirement = Requirement(line)
        name, marker = requirement.name.lower().replace("_", "-"), requirement.marker
        if name in packages or (marker and not any(marker.evaluate({"extra": e}) for e in wanted_by or ("",))):
            continue
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            continue
        queue += [(line, frozenset(requirement.extras)) for line in packages[name].requires or ()]
    return packages


def size(package: Distribution) -> int:
    """Bytes of its files, without those that the image leaves out, and as much again for compiled modules."""
    total = 0
    for file in package.files or ():
        if re.match(r"torch/(test|include)/", str(file)):
            continue
        path = Path(str(package.locate_file(file)))
        if path.is_file() and path.suffix != ".pyc":
            total += path.stat().st_size * (2 if path.suffix == ".py" else 1)
    return total


def test_the_unit_is_valid_and_confined_and_gives_requests_time_to_end(tmp_path: Path) -> None:
    values = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    assert int(values["TimeoutStopSec"]) > 30 and values["KillMode"] == "mixed"
    assert values["DynamicUser"] == values["NoNewPrivileges"] == "yes" and values["ProtectSystem"] == "strict"
    assert "atento serve --host 127.0.0.1" in values["ExecStart"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "atento.service"
    unit.write_text(UNIT.read_text().replace("/opt/atento/bin/atento", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout[-500:]  # an exposure of 2.0 of 10 at most


def test_the_manifest_has_probes_limits_no_rights_and_objects_that_fit() -> None:
    pod = manifest()["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert [probe["path"] for probe in probes.values()] == ["/health/ready", "/health/ready", "/health/live"]
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert container["resources"]["limits"].keys() == {"cpu", "memory"} == container["resources"]["requests"].keys()
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]} and pod["securityContext"]["runAsNonRoot"]
    assert f"{pod['securityContext']['runAsUser']}:10001" == dict(final_stage())["USER"]
    assert pod["terminationGracePeriodSeconds"] > 5 + 30
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] != "tmp")
    deployment, service = (manifest()[kind]["spec"] for kind in ("Deployment", "Service"))
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items() >= service["selector"].items()
    assert service["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["args"][0] == "/models/model" and container["env"][0]["name"] == "ATENTO_API_KEY"


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_the_manifest_fits_the_schema_of_kubernetes(kind: str) -> None:
    """Unknown fields are errors."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    kubernetes_validate.validate(manifest()[kind], "1.30", strict=True)
