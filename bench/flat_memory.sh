#!/bin/bash
# Whether a long run's memory stays flat: trains for an hour, with saves and evaluations all the time, and looks every
# few seconds at what its processes hold: what is anonymous, and what they share, counted once.
#
#     bench/flat_memory.sh build/tercet [key=value …]
#
#     MINUTES=60 RANKS=2 EVERY=5    how long, on how many ranks, seconds from look to look
#     SCRATCH=DIR                   where the run writes (/tmp)
#
# A small model with random weights; keys on the command line change it. Prints the median of each tenth of the run.
# Ends with 1 where the last tenth's is more than 1 MB above the second's (the first holds the start), or the run fails.
set -eu
tercet=$(realpath "${1:?usage: bench/flat_memory.sh TERCET [key=value …]}")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
minutes=${MINUTES:-60} ranks=${RANKS:-2} every=${EVERY:-5}
scratch=$(mktemp -d "${SCRATCH:-/tmp}/tercet-flat-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cat "$root"/examples/data/*_train.jsonl >text.jsonl
head -n 20 text.jsonl >held-out.jsonl
"$tercet" tokenizer train text.jsonl --vocab-size 2000 -o tok >/dev/null 2>&1
cat >run.yaml <<'EOF'
output: out
model:
  config: {model_type: llama, vocab_size: 2000, hidden_size: 128, num_attention_heads: 4, num_key_value_heads: 2,
    intermediate_size: 384, num_hidden_layers: 4, max_position_embeddings: 512, tie_word_embeddings: true}
tokenizer: tok
data: {train: [text.jsonl], eval: [held-out.jsonl], seq_len: 128}
train: {steps: 100000000, global_batch: 4, micro_batch: 1}
checkpoint: {every: 50, keep: 2}
eval: {every: 30}
log: {every: 1000}
EOF

# What the processes of group $1 hold, in kB.
held() {
    local pid total=0 kb
    for pid in $(pgrep -g "$1"); do
        kb=$(awk '/^Pss_(Anon|Shmem):/ {s += $2} END {print s + 0}' "/proc/$pid/smaps_rollup" 2>/dev/null) || kb=0
        total=$((total + kb))
    done
    echo "$total"
}

set -m
"$tercet" train run.yaml -n "$ranks" "$@" >log 2>&1 &
run=$!
set +m
end=$((SECONDS + 60 * minutes))
while [ "$SECONDS" -lt "$end" ]; do
    sleep "$every"
    if ! kill -0 "$run" 2>/dev/null; then
        echo "the run has ended by itself:" >&2
        tail -n 3 log >&2
        exit 1
    fi
    held "$run" >>samples
done
kill -TERM "$run"
wait "$run" || [ $? -eq 143 ]
tail -n 2 log
steps=$(grep -c '"loss"' out/metrics.jsonl)
saves=$(((steps - 1) / 50)) evaluations=$((steps / 30))
looks=$(wc -l <samples)
for tenth in 1 2 3 4 5 6 7 8 9 10; do
    sed -n "$(((tenth - 1) * looks / 10 + 1)),$((tenth * looks / 10))p" samples | sort -n |
        awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
done >medians
echo "$steps steps, $saves saves, $evaluations evaluations in $minutes minutes on $ranks ranks; kB held, median of each tenth:"
tr '\n' ' ' <medians
echo
awk 'NR == 2 {first = $1} NR == 10 {exit $1 > first + 1024}' medians || {
    echo "memory grew" >&2
    exit 1
}
