#!/bin/bash
# A run holds what its plan says, in steps, evaluations, saves and loads, on one rank and on several: the most memory
# that its processes hold at one time (anonymous, and shared memory counted once) lies within 5 % and 30 MB of the
# plan's total. The 30 MB are for what is no part of a plan: the program itself, its libraries' own state, the
# mapped text's index.

# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
: "${TEST_PEAK:?is to name the program that watches memory}"
[ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ] && skip "sanitizers hold memory of their own"
grep -q Pss_Shmem /proc/self/smaps_rollup 2>/dev/null || skip "this kernel does not count shared memory apart"

cd "$scratch" || exit 1
head -n 60 "$TEST_SOURCE/../examples/data/english_train.jsonl" >text.jsonl
head -n 3 text.jsonl >eval.jsonl
check "a tokenizer" "$TERCET" tokenizer train text.jsonl --vocab-size 2000 -o tok
cat >run.yaml <<'END'
output: out
seed: 7
model:
  config: {model_type: llama, hidden_size: 512, num_attention_heads: 8, num_key_value_heads: 2, head_dim: 64,
    intermediate_size: 1408, num_hidden_layers: 6, max_position_embeddings: 256}
tokenizer: tok
data: {train: [text.jsonl], eval: [eval.jsonl], seq_len: 256, cache: cache}
train: {steps: 3, global_batch: 6, micro_batch: 2}
parallel: {threads: 1}
checkpoint: {every: 2, keep: 1}
eval: {every: 2}
END

# within WHAT ARGS…: the run's peak against its plan.
within() {
    local what=$1 plan peak
    shift
    rm -f peak
    # For a plan the ranks are only counted, so that it can be asked apart.
    plan=$("$TERCET" plan run.yaml --json "$@" | sed -nE 's/.*"machine": ([0-9]+).*/\1/p')
    expect_status 0 "$TEST_PEAK" peak "$TERCET" train run.yaml --resume --allow-change train.steps "$@"
    peak=$(cat peak)
    # Bytes: peak - plan, in either direction.
    local off=$((peak > plan ? peak - plan : plan - peak)) allowed=$((plan / 20 + 30000000))
    echo "# $what: planned $((plan / 1000000)) MB, held $((peak / 1000000)) MB"
    if [ -n "$plan" ] && [ "$plan" -gt 100000000 ] && [ "$off" -le "$allowed" ]; then
        ok "$what: within 5 % and 30 MB of the plan"
    else
        not_ok "$what: within 5 % and 30 MB of the plan" "planned $plan bytes, held $peak"
    fi
}

for ranks in 1 2 3; do
    rm -rf out
    within "$ranks ranks, new" -n "$ranks" train.dtype=bf16
    # Goes on from the checkpoint: loads it, and saves over it.
    within "$ranks ranks, resumed" -n "$ranks" train.dtype=bf16 train.steps=5
done
rm -rf out
within "2 ranks, fp32, ZeRO 0" -n 2 parallel.zero=0
rm -rf out
within "2 ranks, full recompute" -n 2 train.dtype=bf16 train.recompute=full

# A row of 32,768 positions, whose score matrix would take 4 GB a head.
tr -d '\n' <text.jsonl | tr -d '\\{}"' | head -c 150000 >long.txt
rm -rf out
within "32,768 positions" -n 1 train.dtype=bf16 train.steps=1 train.global_batch=1 train.micro_batch=1 eval.every=0 \
    data.train=long.txt data.seq_len=32768 model.config.num_hidden_layers=1 model.config.hidden_size=128 \
    model.config.num_attention_heads=2 model.config.num_key_value_heads=1 model.config.max_position_embeddings=32768
check "… all of them computed" grep -q '"tokens": 32768' out/metrics.jsonl
finish
