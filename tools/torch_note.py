"""Before torch is installed: says if pip would bring CUDA packages to a machine that has no GPU."""

import json
import shutil
import subprocess
import sys


def main(arguments: list[str]) -> None:
    """`arguments` are pip's own (index, constraint); asks pip what it would install, without installing it."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    found = subprocess.run([*command, "--no-deps", *arguments, "torch"], capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"torch cannot be found: {found.stderr.strip()}")
    metadata = json.loads(found.stdout)["install"][0]["metadata"]
    brings_cuda = any("nvidia" in need or "cuda" in need for need in metadata.get("requires_dist", []))
    if brings_cuda and sys.platform == "linux" and not shutil.which("nvidia-smi"):
        print(
            f"note: torch {metadata['version']} brings several GB of CUDA packages, and this machine has no GPU.\n"
            "      A build for processors alone is much smaller: stop this and add TORCH_INDEX=URL (README, Install)."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
