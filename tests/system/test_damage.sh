#!/bin/bash
# Damaged files: run file, text, tokenizer, model, checkpoints, token cache, metrics and events, each damaged at random and
# then read by the verbs that read it. A verb works, or it ends with 1 or 2 and one message: it neither crashes, nor
# hangs, nor loses what was there before; a checkpoint that does not match its manifest is never gone on from.
#
#     TEST_DAMAGE_RUNS=60       how many files are damaged
#     TEST_DAMAGE_SEED=1        of the first one; the others follow by one, so that any of them can be repeated alone

# Nothing here needs to outlive the test: memory is quicker than a disk.
fast=
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 100000 ] 2>/dev/null; then
    fast=$(mktemp -d /dev/shm/tercet-test-XXXXXX) && export TMPDIR=$fast
fi
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
trap '[ "$BASHPID" = $$ ] && rm -rf "$scratch" ${fast:+"$fast"}' EXIT
: "${TEST_DAMAGE:?is to name the program that damages files}"
runs=${TEST_DAMAGE_RUNS:-60}
first=${TEST_DAMAGE_SEED:-1}
mkdir "$scratch/good" && cd "$scratch/good" || exit 1

# ---- what is damaged: real files, small ones ----

for i in $(seq 40); do echo "{\"text\": \"Line $i of a text that is as short as can be.\", \"n\": $i}"; done >train.jsonl
head -n 5 train.jsonl >eval.jsonl
expect_status 0 "$TERCET" tokenizer train train.jsonl --vocab-size 280 -o tokenizer
cat >run.yaml <<'YAML'
output: run
seed: 7
model:
  config: {model_type: llama, hidden_size: 12, num_attention_heads: 2, num_key_value_heads: 1, num_hidden_layers: 1,
    intermediate_size: 16, vocab_size: 280, max_position_embeddings: 64, rope_theta: 10000.0}
tokenizer: tokenizer
data: {train: [train.jsonl], eval: [eval.jsonl], seq_len: 16, cache: cache}
train: {steps: 4, global_batch: 6, micro_batch: 2, dtype: fp32}
parallel: {threads: 1}
checkpoint: {every: 2, keep: 0}
YAML
expect_status 0 "$TERCET" train run.yaml
cp -r run/checkpoint-000004 model && rm -r model/training
sed -e '/^  config/,/^    inter/c\  from: model' -e '/^tokenizer/d' -e 's/^output.*/output: tuned/' run.yaml >from.yaml
expect_status 0 "$TERCET" train from.yaml --dry-run
shopt -s nullglob
targets=(run.yaml from.yaml train.jsonl tokenizer/*.json model/config.json model/model.safetensors
    model/tokenizer_config.json run/metrics.jsonl run/tensorboard/* cache/*.json cache/tokens-*/*)
mapfile -t saved < <(find run/checkpoint-000004 -type f | LC_ALL=C sort)
targets+=("${saved[@]}")
check "there is enough to damage" test ${#targets[@]} -ge 20

# ---- damaging and reading ----

problems=0
# problem WHAT: tells it, and how to see it again.
problem() {
    problems=$((problems + 1))
    [ "$problems" -gt 10 ] && return
    echo "# TEST_DAMAGE_SEED=$seed TEST_DAMAGE_RUNS=1: $1"
    sed 's/^/#   /' "$scratch/.done"
    head -c 2500 "$err" | sed 's/^/#   /'
}

# reads [-s STATUSES] [-m] COMMAND…: the status is one of these (0, 1 or 2), and unless it is 0 there is exactly one
# message (with -m, at least one). In $status.
reads() {
    local wanted=" 0 1 2 " many='' messages
    while :; do
        case $1 in
        -s) wanted=" $2 "; shift 2 ;;
        -m) many=1; shift ;;
        *) break ;;
        esac
    done
    timeout -k 5 100 "$@" >"$out" 2>"$err" </dev/null
    status=$?
    messages=$(grep -c '^tercet: ' "$err")
    if grep -qE 'Sanitizer|runtime error:' "$err"; then
        problem "sanitizer: $*"
    elif [[ $wanted != *" $status "* ]]; then
        problem "status $status: $*"
    elif [ "$status" -ne 0 ] && [ "$messages" -ne 1 ] && { [ -z "$many" ] || [ "$messages" -eq 0 ]; }; then
        problem "$messages messages: $*"
    fi
}

untouched() {
    (cd run && find checkpoint-000002 -type f -exec cksum {} + | LC_ALL=C sort)
}
before=$(untouched)

# examine TARGET: everything that reads it.
examine() {
    local target=$1
    case $target in
    *.yaml)
        reads -m "$TERCET" train "$target" --dry-run
        reads -m "$TERCET" data "$target"
        ;;
    train.jsonl)
        reads "$TERCET" train run.yaml --dry-run data.bad_lines=skip
        reads "$TERCET" train run.yaml output=new
        reads "$TERCET" data train.jsonl --tokenizer tokenizer
        reads "$TERCET" eval model --data train.jsonl --seq-len 16
        reads "$TERCET" tokenizer train train.jsonl --vocab-size 270 -o other
        ;;
    tokenizer/*)
        reads "$TERCET" tokenizer encode tokenizer train.jsonl
        reads "$TERCET" inspect tokenizer
        reads "$TERCET" train run.yaml output=new
        ;;
    model/*)
        reads "$TERCET" inspect model
        reads "$TERCET" logits model --ids 1,2,3
        reads "$TERCET" generate model --prompt 'Line 7' --max-tokens 3
        reads "$TERCET" eval model --data eval.jsonl --seq-len 16
        reads "$TERCET" train from.yaml --dry-run
        ;;
    run/metrics.jsonl)
        # Nothing is read from it but the steps of its lines: the run goes on, and writes those that follow.
        reads -s 0 "$TERCET" train run.yaml --resume=run/checkpoint-000002
        grep -q '"step": 4, "loss"' run/metrics.jsonl || problem "step 4 is not in metrics.jsonl"
        ;;
    run/tensorboard/*) reads -s "0 2" "$TERCET" inspect "$target" ;;
    cache/*)
        # Made anew where it does not match.
        reads -s 0 "$TERCET" train run.yaml output=new
        cmp -s run/last/model.safetensors new/last/model.safetensors || problem "other tokens"
        ;;
    run/checkpoint-*)
        local wrong="0 2" name=${target#*/*/}
        # What the manifest lists and does not match is found, always.
        if [ "$name" != training/manifest.json ] && ! cmp -s "$target" "../good/$target"; then wrong=2; fi
        reads -s "0 1 2" "$TERCET" inspect run/checkpoint-000004
        reads -s "$wrong" "$TERCET" inspect run/checkpoint-000004 --verify
        reads -s "$wrong" "$TERCET" train run.yaml --resume
        reads -s "$wrong" "$TERCET" train run.yaml --resume=run/checkpoint-000004
        reads "$TERCET" eval run/checkpoint-000004 --data eval.jsonl --seq-len 16
        ;;
    esac
    [ "$before" = "$(untouched)" ] || problem "the checkpoint before has changed"
}

for ((seed = first; seed < first + runs; seed++)); do
    rm -rf "$scratch/trial" && cp -a "$scratch/good" "$scratch/trial" && cd "$scratch/trial" || exit 1
    target=${targets[seed % ${#targets[@]}]}
    "$TEST_DAMAGE" "$seed" "$target" >"$scratch/.done" || exit 1
    examine "$target"
done
cd "$scratch" || exit 1
check "$runs damaged files, from seed $first on, are read or refused" test "$problems" -eq 0

finish
