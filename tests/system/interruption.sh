# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# For the tests of interrupted runs: a small run, and what must hold of its directory afterwards. Instead of lib.sh:
#
#     . "$TEST_SOURCE/system/interruption.sh" || exit 1
#     prepare_run          run.yaml, a tokenizer and text in $scratch, which becomes the working directory
#     train OUTPUT ARGS…   `tercet train` on it; standard output to OUTPUT.out, standard error to OUTPUT.err
#
# What is looked at many times is reported once: problem … notes what is wrong, settle says "ok" or "not ok".

# Saving is mostly waiting for the disk: memory is as good for what is tested here.
fast=
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 400000 ] 2>/dev/null; then
    fast=$(mktemp -d /dev/shm/tercet-test-XXXXXX) && export TMPDIR=$fast
fi
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
# (Not in a copy of this shell that a signal ends before it has become the program.)
trap '[ "$BASHPID" = $$ ] && rm -rf "$scratch" ${fast:+"$fast"}' EXIT
RANDOM=${TEST_SEED:-1}
echo "# seed ${TEST_SEED:-1}"
# shellcheck disable=SC2034
slow=${ASAN_OPTIONS:+1} # under sanitizers
# The preloaded library comes before the sanitizer's, and a SIGSEGV that was sent is to do what it does.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0:handle_segv=0
problems=0

# problem WHAT: notes it, with the last lines that the run wrote.
problem() {
    problems=$((problems + 1))
    [ "$problems" -gt 5 ] && return
    echo "# problem: $1"
    shift
    if [ $# -gt 0 ]; then head -c 1500 "$@" 2>/dev/null | sed 's/^/#   /'; fi
}

# settle DESCRIPTION
settle() {
    if [ "$problems" -eq 0 ]; then ok "$1"; else not_ok "$1" "$problems problems"; fi
    problems=0
}

prepare_run() {
    cd "$(cd "$scratch" && pwd -P)" || exit 1
    head -n 12 "$TEST_SOURCE/../examples/data/english_train.jsonl" >text.jsonl
    head -n 1 text.jsonl | cut -c 1-400 | sed 's/$/"}/' >eval.jsonl
    check "a tokenizer" "$TERCET" tokenizer train text.jsonl --vocab-size 331 -o tok
    cat >run.yaml <<'END'
output: out
seed: 7
model:
  config: {model_type: llama, hidden_size: 60, num_attention_heads: 5, num_key_value_heads: 1, head_dim: 12,
    intermediate_size: 84, num_hidden_layers: 2, max_position_embeddings: 64}
tokenizer: tok
data: {train: [text.jsonl], eval: [eval.jsonl], seq_len: 24, cache: cache}
train: {steps: 48, global_batch: 7, micro_batch: 2, dtype: bf16}
optimizer: {lr: 1e-3}
schedule: {warmup_steps: 3}
parallel: {threads: 1}
checkpoint: {every: 3, keep: 2}
eval: {every: 6, at_start: false}
END
}

train() {
    local output=$1
    shift
    "$TERCET" train run.yaml "output=$output" --json "$@" >"$output.out" 2>"$output.err"
}

# newest OUTPUT: the step of the newest complete checkpoint, 0 when there is none.
newest() {
    local step=0 manifest
    for manifest in "$1"/checkpoint-*/training/manifest.json; do
        if [[ "$manifest" =~ /checkpoint-0*([0-9]+)/training ]] && [ "${BASH_REMATCH[1]}" -gt "$step" ]; then
            step=${BASH_REMATCH[1]}
        fi
    done
    echo "$step"
}

# steps_of OUTPUT: lines of steps in metrics.jsonl.
steps_of() {
    if [ -f "$1/metrics.jsonl" ]; then grep -c '"loss"' "$1/metrics.jsonl"; else echo 0; fi
}

# metrics_of OUTPUT: what two runs must have in common.
metrics_of() {
    sed -E 's/, "(eval_)?seconds":.*//' "$1/metrics.jsonl"
}

# same_checkpoint DIRECTORY DIRECTORY: the same bytes of everything but the run file.
same_checkpoint() {
    diff -rq -x run.yaml -x manifest.json "$1" "$2"
}

# check_complete OUTPUT REFERENCE: every checkpoint of the run that has a manifest holds the reference's bytes.
check_complete() {
    local manifest directory
    for manifest in "$1"/checkpoint-*/training/manifest.json; do
        [ -e "$manifest" ] || continue
        directory=${manifest%/training/manifest.json}
        case $directory in *.tmp-* | *.aside) continue ;; esac
        same_checkpoint "$2/${directory##*/}" "$directory" >"$scratch/.same" 2>&1 ||
            problem "$directory has a manifest, but not the reference's bytes" "$scratch/.same"
    done
}

# check_finished OUTPUT REFERENCE: the run has come to the end as the one that was never stopped.
check_finished() {
    check_complete "$1" "$2"
    metrics_of "$1" >"$scratch/.a"
    metrics_of "$2" >"$scratch/.b"
    diff "$scratch/.b" "$scratch/.a" >"$scratch/.same" || problem "$1: other metrics" "$scratch/.same"
    same_checkpoint "$2/last/" "$1/last/" >"$scratch/.same" 2>&1 || problem "$1: other last checkpoint" "$scratch/.same"
    find "$1" -name '*.tmp-*' -o -name '*.aside' >"$scratch/.same"
    [ -s "$scratch/.same" ] && problem "$1: something is left" "$scratch/.same"
}

# one_message FILE TEXT: the run has reported one error, with this text.
one_message() {
    [ "$(grep -cE '^(tercet|error): ' "$1")" -eq 1 ] && grep -q -e "$2" "$1"
}

# killer AT DO COMMAND…: runs it with the library that ends it, or lets it fail or wait, at a call that changes
# $killer_path (of the threads $killer_thread, if set). See support/killer.c.
killer_thread=
killer() {
    local at=$1 how=$2
    shift 2
    # In a shell of its own, whose "Killed" nobody needs to read.
    (
        exec 3>&2 2>/dev/null
        env LD_PRELOAD="$TEST_KILLER" KILLER_PATH="$killer_path" KILLER_AT="$at" KILLER_DO="$how" \
            ${killer_thread:+"KILLER_THREAD=$killer_thread"} KILLER_LOG="$scratch/calls" "$@" 2>&3
        exit $?
    )
}

# await LINES OUTPUT PID: until the run has written so many steps, or is gone.
await() {
    while [ "$(steps_of "$2")" -lt "$1" ] && kill -0 "$3" 2>/dev/null; do sleep 0.004; done
}

# gone SECONDS PID…: waits for the end of these processes; fails when one is there after that.
gone() {
    local until=$((SECONDS + $1)) pid
    shift
    for pid in "$@"; do
        while kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null; do
            [ "$SECONDS" -lt "$until" ] || return 1
            sleep 0.02
        done
    done
}
