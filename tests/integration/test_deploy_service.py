"""The command of the image and of the Kubernetes manifest on a read-only file system, with their health check."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from test_convert import tiny_bert

pytestmark = pytest.mark.slow
DEPLOY = Path(__file__).parents[2] / "deploy"
# what --read-only --tmpfs /tmp does: every file system is read-only but /tmp, which is new; the model is at /mnt
CONFINED = """
mount --make-rprivate / && mount --bind "$1" /mnt || exit 99
for place in $(sort -u /proc/self/mounts | cut -d ' ' -f 2); do mount -o remount,bind,ro "$place" 2>/dev/null; done
mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp && cd /tmp || exit 99
for place in /mnt "$PACKAGES"; do touch "$place/written" 2>/dev/null && exit 98; done
shift
exec "$@"
"""


def health_check(port: int) -> subprocess.CompletedProcess[str]:
    code = re.search(r'"python", "-c", "(.*)"\]', (DEPLOY / "Containerfile").read_text())
    command = [sys.executable, "-c", code[1].replace(":8000", f":{port}")]
    return subprocess.run(command, capture_output=True, text=True, timeout=20)


def status(port: int, path: str, key: str = "") -> int:
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_the_service_runs_where_nothing_but_tmp_can_be_written(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("this machine allows no namespaces (unshare -rm)")
    pytest.importorskip("fastapi", reason="fastapi is not installed (extra serve)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    [line] = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line.startswith("ENTRYPOINT")]
    command = [word.replace("8000", str(port)) for word in re.findall(r'"([^"]+)"', line)]
    command = [sys.executable, "-m", "atento_cli.start", *command[1:], "tiny=/mnt", "--threads", "1"]
    command = ["unshare", "-rm", "sh", "-c", CONFINED, "sh", str(tiny_bert().save(tmp_path / "model")), *command]
    environment = os.environ | {"HOME": "/tmp", "PACKAGES": sys.prefix, "PYTHONDONTWRITEBYTECODE": "1"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "key" in refused.stderr  # beyond this machine it needs one
    assert health_check(port).returncode != 0
    log = (tmp_path / "log").open("w+")
    service = subprocess.Popen(command, env=environment | {"ATENTO_API_KEY": "secret"}, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while health_check(port).returncode and service.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        log.seek(0)
        assert service.poll() is None, log.read()
        assert health_check(port).returncode == 0
        assert status(port, "/health/live") == status(port, "/health/ready") == 200
        assert status(port, "/v1/models") == 401 and status(port, "/v1/models", "secret") == 200
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
    finally:
        service.kill()
        log.close()
