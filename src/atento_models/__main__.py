"""Check each file of the models that come with Atento against the hashes that it was released with.

python -m atento_models [NAME ...]
"""

import argparse
import sys

from atento.base.errors import CheckpointError
from atento.models.shipped import shipped_models
from atento.storage.manifest import verify


def main() -> int:
    """Print a line for each model; 1 where a file is missing, or is another than was released."""
    models = shipped_models()
    parser = argparse.ArgumentParser(prog="python -m atento_models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*models, []], help="default: all of them")
    wrong = False
    for name in parser.parse_args().names or models:
        try:
            files = verify(models[name]).files
            said = f"{len(files)} files, {sum(file.size for file in files) / 1e6:.1f} MB, as released"
        except CheckpointError as error:
            wrong, said = True, str(error)
        sys.stdout.write(f"{name}: {said}\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
