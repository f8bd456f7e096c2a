#!/usr/bin/env bash
# One command for the first person with a GPU: the `gpu` tests, then each benchmark beside `transformers`, in 25 minutes.
#
#   tools/gpu_session.sh [--short] [--device cuda|cpu] [--seconds N] [OUT]
#
# Writes to OUT (gpu-session, if not given): one file of JSON lines and one log a part, and README.md with the machine
# and all tables. --short takes 12 minutes. --device cpu tries the script itself, on tiny networks. Each part may take
# its share of the time and what earlier parts have left; a part that fails or runs late is named, and the next begins.
set -u
cd "$(dirname "$0")/.." || exit 1

minutes=25 device=cuda seconds="" out=gpu-session
while [ $# -gt 0 ]; do
  case "$1" in
    --short) minutes=12 ;;
    --device) device="${2:-}"; shift ;;
    --seconds) seconds="${2:-}"; shift ;;
    -*) echo "unknown option $1: see the head of tools/gpu_session.sh" >&2; exit 2 ;;
    *) out="$1" ;;
  esac
  shift
done
case "$device" in cpu | cuda) ;; *) echo "--device is cuda or cpu: got '$device'" >&2; exit 2 ;; esac
[ "$device" = cpu ] && minutes=90 # nothing is measured, and the machine may be busy
case "$seconds" in *[!0-9]* | 0) echo "--seconds is a whole number of at least 1: got '$seconds'" >&2; exit 2 ;; esac

# The environment: Python 3.11 or newer, make, about 12 GB of disk, and the build of torch that constraints.txt names,
# with CUDA. `make dev` takes it from the package index; TORCH_INDEX=URL chooses another build of the same version.
python=.venv/bin/python
if ! [ -x "$python" ] || ! "$python" -c "import atento, torch, transformers, pytest" 2> /dev/null; then
  echo "the environment is not ready: 'make dev' brings the packages of requirements.lock and torch, several GB"
  make dev ${TORCH_INDEX:+TORCH_INDEX="$TORCH_INDEX"} || { echo "'make dev' failed: what it needs is above" >&2; exit 1; }
fi
wanted=$(sed -n 's/^torch==//p' constraints.txt)
"$python" - "$wanted" "$device" << 'PYTHON' || exit 1
import sys

import torch

wanted, device = sys.argv[1:]
if device == "cuda" and not torch.version.cuda:
    sys.exit(f"torch {torch.__version__} has no CUDA: remove .venv, and run this again with TORCH_INDEX=URL of a CUDA build of torch {wanted}")
if device == "cuda" and not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} finds no GPU: nvidia-smi must list one, and its driver must know CUDA {torch.version.cuda}")
if torch.__version__.split("+")[0] != wanted:
    print(f"note: torch {torch.__version__} is not the tested {wanted} of constraints.txt")
PYTHON

mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
rm -f "$out"/*.jsonl "$out"/*.log "$out/parts.tsv"
begin=$(date +%s)
due=0 # seconds after the begin at which the present part must have ended

# part NAME SHARE COMMAND...: run a command for at most its share of 100 and what earlier parts have left.
part() {
  local name="$1" share="$2" status now limit
  shift 2
  due=$((due + share * (minutes * 60 - 30) / 100)) # half a minute for the page, and for parts that end late
  now=$(($(date +%s) - begin))
  limit=$((due > now ? due - now : 1))
  printf '%s: at most %d s\n' "$name" "$limit"
  timeout --signal=INT --kill-after=20 "$limit" "$@" > "$out/$name.jsonl" 2> "$out/$name.log"
  status=$?
  case "$status" in
    0) said="done" ;;
    124 | 137) said="ended after its $limit seconds; the rows so far are kept" ;;
    *) said="failed with status $status: $(grep '[[:alpha:]]' "$out/$name.log" | tail -n 1 | cut -c 1-300)" ;;
  esac
  printf '%s: %s\n' "$name" "$said"
  printf '%s\t%d\t%s\n' "$name" "$(($(date +%s) - begin - now))" "$said" >> "$out/parts.tsv"
}

# bench NAME SHARE SECONDS: a measurement; SECONDS for each contender, half of it in the short session.
bench() {
  local each="$3" quick=""
  [ "$minutes" = 12 ] && each=$((($3 + 1) / 2))
  [ "$device" = cpu ] && quick=--quick
  part "$1" "$2" "$python" -m atento_cli.start bench "$1" --device "$device" --seconds "${seconds:-$each}" $quick --json
}

if [ "$device" = cuda ]; then
  # the files that have them, those that compile no kernels first
  part tests 16 "$python" -m pytest -q -p no:cacheprovider -m gpu $(grep -rl "mark\.gpu" tests --include="*.py" | sort -r)
  size=transformer-base
else
  part tests 16 "$python" -m pytest -q -p no:cacheprovider --collect-only -m gpu tests/unit
  size=tiny
fi
bench training 10 4
bench generation 11 4
bench decoding 13 4
bench encoding 10 4
bench pretraining 16 3
bench graphs 6 3
part sharded 6 "$python" -m torch.distributed.run --standalone --nproc-per-node 1 -m tools.gpu_sharded \
  --device "$device" --seconds "${seconds:-4}" --size "$size"
bench finetuning 12 2

mv "$out/tests.jsonl" "$out/tests.txt"
"$python" tools/gpu_page.py "$out" --device "$device" --minutes "$minutes" || exit 1
echo "the figures: $out/README.md; please open an issue with that file"
