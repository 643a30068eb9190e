#!/bin/bash
# The same bits on any number of ranks: a small model of odd sizes is trained for 20 steps in every combination
# of the settings below, and metrics, evaluations, model files and optimizer states are compared byte by byte
# with those of the plainest run: one rank, ZeRO 0, one thread, no recompute, no overlap, backend cpu.
#
#     tests/system/equality.sh            # all 6,144 combinations, two hours or more on two cores
#     tests/system/equality.sh --subset   # the 48 of the table below, as `make test` runs it
#     tests/system/equality.sh --ranks 7  # all combinations with 7 ranks (micro-batches of 1 row: up to 11 ranks)
#
# $TERCET names the program; build/tercet without it. The combinations with messages need mpirun.
directory=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
export TEST_SOURCE=${TEST_SOURCE:-$(dirname "$directory")}
export TERCET=${TERCET:-$directory/../../build/tercet}
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1

usage() {
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit "$1"
}

mode=all ranks_wanted=(1 2 3 5)
case ${1:-} in
"") ;;
--subset) mode=subset ;;
--ranks)
    shift
    [ $# -gt 0 ] || usage 2
    ranks_wanted=("$@")
    ;;
--help) usage 0 ;;
*) usage 2 >&2 ;;
esac

# ---- what is trained, and on what ----

# Clauses of the sample text, a document each: some fit a row of 37 positions several times over, some go on in
# the next. `clauses NAME LINES`
clauses() {
    head -n 3 "$TEST_SOURCE/../examples/data/$1.jsonl" | sed -e 's/^{"text":"//' -e 's/"}$//' -e 's/\\n/\n/g' | tr ',' '\n' |
        sed -e 's/^ *//' -e '/^$/d' -e '/["\\]/d' | sed -n "$2" | sed -e 's/.*/{"text":"&"}/'
}

write_inputs() {
    clauses english_train 1,130p >train.jsonl
    clauses eval 1,12p >eval.jsonl
    expect_status 0 "$TERCET" tokenizer train train.jsonl --vocab-size 331 -o tokenizer
    local sizes='model_type: llama, hidden_size: 60, num_attention_heads: 5, num_key_value_heads: 1,
  num_hidden_layers: 3, intermediate_size: 100, vocab_size: 331, max_position_embeddings: 64'
    echo "model: {config: {$sizes, tie_word_embeddings: true}}" >tied.yaml
    echo "model: {config: {$sizes, tie_word_embeddings: false, attention_bias: true, mlp_bias: true}}" >biased.yaml
    for model in tied biased; do
        cat >>$model.yaml <<'YAML'
output: out
tokenizer: tokenizer
data: {train: [train.jsonl], eval: [eval.jsonl], seq_len: 37, cache: cache}
train: {steps: 20, global_batch: 11, micro_batch: 1}
optimizer: {lr: 3.0e-3}
schedule: {warmup_steps: 3}
checkpoint: {every: 9, keep: 0}
eval: {every: 7}
YAML
    done
}

# ---- one run ----

messages=yes
find_messages() {
    find_mpirun || messages="no mpirun, or a program without MPI"
    [ "$messages" = yes ] || echo "# SKIP messages between ranks: $messages; shared memory takes their place"
    # With messages, what the MPI library itself never frees would be reported.
    message_sanitizer="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
}

# What must be equal, in directory $1: the files of its checkpoints and the metrics but for times. The run file
# of each checkpoint names the settings, and the manifest has its checksum.
keep_results() {
    rm -rf "$1"
    mkdir "$1" || return 1
    mv out/checkpoint-* "$1" || return 1
    rm -f "$1"/checkpoint-*/training/run.yaml "$1"/checkpoint-*/training/manifest.json
    sed -E 's/, "(seconds|tokens_per_second|peak_share|eval_seconds)": [^,}]*//g' out/metrics.jsonl >"$1/metrics.jsonl"
}

# run_with MODEL DTYPE MICRO RANKS ZERO THREADS RECOMPUTE TRANSPORT BACKEND OVERLAP: into results/. Fails with the
# reason on standard output, also where the plan that was printed is not the one asked for.
run_with() {
    local command=("$TERCET" train "$1.yaml" --overwrite "train.dtype=$2" "train.micro_batch=$3" "parallel.zero=$5"
        "parallel.threads=$6" "train.recompute=$7" "backend.name=$9" "parallel.overlap=${10}")
    local transport=$8
    [ "$8" = mpi ] || [ "$4" -gt 1 ] || transport=self
    if [ "$8" = mpi ]; then
        ASAN_OPTIONS=$message_sanitizer "${mpirun[@]}" -n "$4" "${command[@]}" </dev/null >run.log 2>&1
    else
        "${command[@]}" -n "$4" </dev/null >run.log 2>&1
    fi || {
        echo "status $?"
        tail -n 20 run.log
        return 1
    }
    grep -qE "^ranks +$4 \($transport\), $6 threads? each, backend $9$" run.log || {
        echo "another plan than was asked for:"
        grep '^ranks' run.log
        return 1
    }
    keep_results results
}

# The same arguments; compares with the plainest run of that model, type and micro-batch.
compare() {
    local name="$1 $2 micro_batch $3: $4 ranks, zero $5, $6 threads, recompute $7, $8, $9, overlap ${10}"
    local reference=reference-$1-$2-$3
    if [ ! -d "$reference" ]; then
        if run_with "$1" "$2" "$3" 1 0 1 none shm cpu false >why && mv results "$reference"; then
            ok "$1 $2 micro_batch $3: the plainest run"
        else
            not_ok "$1 $2 micro_batch $3: the plainest run" "$(cat why)"
            mkdir "$reference"
        fi
    fi
    if run_with "$@" >why && diff -rq "$reference" results >why 2>&1; then
        ok "$name"
    else
        not_ok "$name" "$(head -n 20 why)"
    fi
}

# ---- which runs ----

# Each line has another pair of ZeRO stage and threads; of any two columns, every pair of values occurs.
#   zero threads recompute transport backend overlap dtype micro_batch model
table='0 1 full mpi cpu     false bf16 1 tied
       0 2 full mpi cpu     true  fp32 2 biased
       0 3 none shm guarded true  fp32 1 tied
       1 1 full mpi guarded false fp32 2 biased
       1 2 full shm guarded false bf16 1 tied
       1 3 none shm cpu     true  bf16 1 biased
       2 1 none shm cpu     false bf16 2 biased
       2 2 full mpi guarded true  fp32 1 biased
       2 3 none mpi cpu     true  bf16 1 tied
       3 1 full shm cpu     true  fp32 1 tied
       3 2 none mpi guarded false fp32 2 tied
       3 3 full mpi guarded false bf16 2 biased'

# The other one of two.
other() {
    case $1 in
    none) echo full ;; full) echo none ;;
    shm) echo mpi ;; mpi) echo shm ;;
    cpu) echo guarded ;; guarded) echo cpu ;;
    false) echo true ;; true) echo false ;;
    fp32) echo bf16 ;; bf16) echo fp32 ;;
    1) echo 2 ;; 2) echo 1 ;;
    tied) echo biased ;; biased) echo tied ;;
    esac
}

# Every line with every number of ranks; 2 and 5 ranks take the other one of all that has two values, so that more
# combinations occur.
run_subset() {
    local zero threads recompute transport backend overlap dtype micro model
    for ranks in "${ranks_wanted[@]}"; do
        while read -r zero threads recompute transport backend overlap dtype micro model; do
            if [ "$ranks" = 2 ] || [ "$ranks" = 5 ]; then
                recompute=$(other "$recompute") transport=$(other "$transport") backend=$(other "$backend")
                overlap=$(other "$overlap") dtype=$(other "$dtype") micro=$(other "$micro") model=$(other "$model")
            fi
            [ "$messages" = yes ] || transport=shm
            compare "$model" "$dtype" "$micro" "$ranks" "$zero" "$threads" "$recompute" "$transport" "$backend" "$overlap"
        done <<<"$table"
    done
}

run_all() {
    local transports=shm settings
    [ "$messages" != yes ] || transports="shm mpi"
    for settings in {tied,biased}\ {fp32,bf16}\ {1,2}; do
        for ranks in "${ranks_wanted[@]}"; do
            # More ranks than micro-batches are refused.
            [ "${settings##* }" = 1 ] || [ "$ranks" -le 6 ] || continue
            for transport in $transports; do
                for more in {0,1,2,3}\ {1,2,3}\ {none,full}\ "$transport"\ {cpu,guarded}\ {false,true}; do
                    # shellcheck disable=SC2086 # the words of $settings and $more are arguments
                    compare ${settings% *} "${settings##* }" "$ranks" $more
                done
            done
        done
    done
}

# ---- that the runs are what they are meant to be ----

# The last batch of an epoch is so short that some ranks have nothing to do, and an epoch ends on the way.
check_data() {
    local rows steps
    expect_status 0 "$TERCET" train tied.yaml --dry-run --json
    rows=$(sed -nE 's/.*"train": \{[^}]*"rows_per_epoch": ([0-9]+).*/\1/p' "$out")
    steps=$(sed -nE 's/.*"train": \{[^}]*"steps_per_epoch": ([0-9]+).*/\1/p' "$out")
    check "an epoch of ${rows:-no} rows ends in a short batch" test "$((${rows:-0} % 11))" -ge 1 -a "$((${rows:-0} % 11))" -le 4
    check "an epoch of ${steps:-no} steps ends within the run" test "${steps:-20}" -lt 20
}

# The plainest runs hold what they should, and differ where they may.
check_references() {
    local name
    for name in reference-*; do
        check "${name#reference-}: 20 steps, 4 evaluations, 3 checkpoints" test \
            "$(grep -c '"loss"' "$name/metrics.jsonl")-$(grep -c eval_loss "$name/metrics.jsonl")-$(find "$name" -name 'moment2.safetensors' | wc -l)" = 20-4-3
    done
    for name in reference-*-fp32-*; do
        if [ -d "${name/fp32/bf16}" ]; then
            check "${name#reference-}: bf16 gives other losses" test -z \
                "$(comm -12 <(grep -oE '"loss": [^,]*' "$name/metrics.jsonl" | sort) <(grep -oE '"loss": [^,]*' "${name/fp32/bf16}/metrics.jsonl" | sort))"
        fi
    done
}

cd "$scratch" || exit 1
find_messages
write_inputs
check_data
if [ $mode = subset ]; then run_subset; else run_all; fi
check_references
finish
