#!/bin/bash
# What saving costs a run: the same steps with a checkpoint every few of them and with none but the last, in turn.
#
#     bench/saving.sh build/tercet [key=value …]
#
#     ROUNDS=3 STEPS=41 EVERY=20 RANKS=1    of each side
#     SCRATCH=DIR                           where checkpoints go: on the disk that is to be measured (/tmp)
#
# A model of SmolLM2-135M's shape with random weights; keys on the command line change it. Prints seconds of each run
# and, of the medians, what one save adds, in seconds and in steps.
set -eu
tercet=$(realpath "${1:?usage: bench/saving.sh TERCET [key=value …]}")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
rounds=${ROUNDS:-3} steps=${STEPS:-41} every=${EVERY:-20} ranks=${RANKS:-1}
scratch=$(mktemp -d "${SCRATCH:-/tmp}/tercet-saving-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cat "$root"/examples/data/*_train.jsonl >text.jsonl
"$tercet" tokenizer train text.jsonl --vocab-size 4000 -o tok >/dev/null 2>&1
cat >run.yaml <<EOF
output: out
model:
  config: {model_type: llama, vocab_size: 49152, hidden_size: 576, num_attention_heads: 9, num_key_value_heads: 3,
    intermediate_size: 1536, num_hidden_layers: 30, max_position_embeddings: 2048, tie_word_embeddings: true}
tokenizer: tok
data: {train: [text.jsonl], seq_len: 512, cache: cache}
train: {global_batch: $((4 * ranks)), micro_batch: 4}
EOF

median() { sort -n "$@" | awk '{v[NR] = $1} END {print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2}'; }

# side NAME EVERY: one run; its seconds to NAME.total, those of its steps to NAME.steps.
side() {
    rm -rf out
    "$tercet" train run.yaml train.steps="$steps" checkpoint.every="$2" checkpoint.keep=1 -n "$ranks" --json "${@:3}" \
        >report.json 2>log || {
        cat log >&2
        exit 1
    }
    sed -E 's/.*"seconds": ([0-9.e+-]+).*/\1/' report.json >>"$1.total"
    sed -nE '/"loss"/s/.*"seconds": ([0-9.e+-]+).*/\1/p' out/metrics.jsonl >>"$1.steps"
    echo "$1: $(tail -n 1 "$1.total") s; $(grep -E 'saved as' log | head -n 1)"
}
for ((round = 0; round < rounds; round++)); do
    side without 0 "$@"
    side with "$every" "$@"
done
saves=$(((steps - 1) / every))
awk -v with="$(median with.total)" -v without="$(median without.total)" -v step="$(median without.steps)" \
    -v saves="$saves" -v every="$every" 'BEGIN {
    added = (with - without) / saves
    printf "median step %.3f s; a save every %d steps adds %.3f s, %.2f steps\n", step, every, added, added / step
}'
