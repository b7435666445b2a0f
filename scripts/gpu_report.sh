#!/usr/bin/env bash
# Checks and times mlxbert on a GPU, and prints a report to paste into an issue.
#
#   bash scripts/gpu_report.sh                  everything, some ten minutes
#   bash scripts/gpu_report.sh check update     some parts of: check update embed bench tests
#
# Run it in a checkout, in an environment with mlxbert (`pip install -e ".[test]"`). With torch, transformers and
# sentence-transformers installed, they are measured for comparison. Nothing is sent anywhere. `DEVICE=cpu` runs it
# without a GPU; `TEXTS` is the number of texts to embed.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-gpu} texts=${TEXTS:-20000} updates=${UPDATES:-30}
export MLXBERT_DEVICE=$device PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} TOKENIZERS_PARALLELISM=true HF_HUB_OFFLINE=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache # an empty cache of kernels

# Runs a command, and prints its duration and, after a failure, its status and errors.
part() {
  local name=$1 begun=$SECONDS status
  shift
  printf '\n## %s\n\n' "$name"
  "$@" 2>"$work/errors"
  status=$?
  [ "$status" = 0 ] || { echo; echo "status $status:"; tail -n 20 "$work/errors"; }
  printf '\n%s s\n' $((SECONDS - begun))
}

check() {
  part "Check, no kernels kept" python -m mlxbert doctor --report --device "$device"
  part "Check again" python -m mlxbert doctor --report --device "$device"
  if [ "$(uname)" = Darwin ]; then
    MLX_SDPA_VJP_FALLBACK=0 part "Check with MLX's own gradient of attention" python -m mlxbert doctor --report
  fi
}

update() { part "Updates" python benchmarks/gpu_updates.py --device "$device" --updates "$updates"; }

# A bert-base with random weights, and texts of 3 to 300 words.
made() {
  python - "$work" "$texts" <<'PYTHON'
import json, pathlib, random, re, sys
import mlxbert
folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
config = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0,
}
mlxbert.save(mlxbert.new_model(config, "builtin", dtype="float32", device="cpu"), folder / "model")
words = re.findall(r"[A-Za-z]+", " ".join(path.read_text() for path in sorted(pathlib.Path("docs").glob("*.md"))))
rng = random.Random(3)
lengths = (max(3, min(int(rng.lognormvariate(3.0, 0.9)), 300)) for _ in range(count))
lines = (json.dumps({"text": " ".join(rng.choices(words, k=length))}) for length in lengths)
(folder / "texts.jsonl").write_text("\n".join(lines))
PYTHON
}

embed() {
  part "A model and texts" made
  local others=() # an empty array is "unbound" in bash 3.2 of macOS, hence ${…+…}
  python -c "import sentence_transformers" 2>/dev/null || others=(--without sentence-transformers)
  for dtype in float32 float16; do
    part "Embedding $texts texts in $dtype" python benchmarks/embed.py "$work/model" "$work/texts.jsonl" \
      --device "$device" --dtype "$dtype" --few 0 --without "mlxbert, wheel's BLAS" ${others[@]+"${others[@]}"}
  done
}

bench() {
  local peer=()
  python -c "import torch, transformers" 2>/dev/null && peer=(--against torch)
  part "A row to share" python -m mlxbert bench --device "$device" ${peer[@]+"${peer[@]}"}
}

tests() { part "Tests" python -m pytest -q -n 4 -p no:cacheprovider --tb=line tests/nn tests/tasks tests/train; }

printf '# mlxbert %s on %s\n' "$(git rev-parse --short HEAD 2>/dev/null)" "$(uname -sm)"
[ $# -gt 0 ] || set -- check update embed tests # the report of a check has the speeds of bench
for name in "$@"; do
  case $name in
  check | update | embed | bench | tests) "$name" ;;
  *) echo "unknown part: $name, expected check, update, embed, bench or tests" >&2 && exit 2 ;;
  esac
done
