#!/bin/bash
# Every call of the program that can fail does so, one at a time (support/faults.c): memory, files, names, forks,
# threads, MPI. The run then ends with one message that names what failed, or goes on as if nothing had been; it
# leaves nothing half-written, and a training run that is resumed comes to the same end as one never disturbed.
#
# By default some places of each command are tried, chosen by TEST_SEED. All of them, by hand:
#
#     TEST_FAULT_EVERY=1 ctest -R system.faults -V --timeout 100000
#
# (10: each tenth.) TEST_FAULT_REPORT=FILE: what goes wrong is written there, and where in the source that is.
# TEST_FAULT_ONLY=REGEX keeps to places whose line "COMMAND PROCESS FUNCTION PLACE COUNT" matches.
# shellcheck disable=SC2317 # checks are called by name
# shellcheck source=tests/system/interruption.sh
. "$TEST_SOURCE/system/interruption.sh" || exit 1
: "${TEST_FAULTS:?is to name libfaults.so}"
cd "$(cd "$scratch" && pwd -P)" || exit 1
tried=0

# ---- what is needed: texts, a tokenizer, a model, an output with checkpoints ----

mkdir base
head -n 3 "$TEST_SOURCE/../examples/data/english_train.jsonl" >base/text.jsonl
head -n 1 base/text.jsonl | cut -c 1-400 | sed 's/$/"}/' >base/eval.jsonl
echo "The cat sat on the mat." >base/line.txt
"$TERCET" tokenizer train base/text.jsonl --vocab-size 290 -o base/tok >/dev/null 2>&1
echo "[[84, 104, 101]]" | tr -d '[]' >base/ids.txt
cat >base/run.yaml <<'END'
output: one
seed: 7
model:
  config: {model_type: llama, hidden_size: 60, num_attention_heads: 5, num_key_value_heads: 1, head_dim: 12,
    intermediate_size: 84, num_hidden_layers: 2, max_position_embeddings: 64}
tokenizer: tok
data: {train: [text.jsonl], eval: [eval.jsonl], seq_len: 24, cache: cache}
train: {steps: 4, global_batch: 3, micro_batch: 1, dtype: bf16}
optimizer: {lr: 1e-3}
schedule: {warmup_steps: 3}
parallel: {threads: 2}
checkpoint: {every: 2, keep: 2}
eval: {every: 2, at_start: false}
END
cp -r base ref
check "a run that nothing disturbs" env -C ref "$TERCET" train run.yaml
# As a run leaves it that was stopped after step 2.
cp -r ref halfway
rm -rf halfway/one/checkpoint-000004 halfway/cache
ln -sfn checkpoint-000002 halfway/one/last
sed -i '/"step": [34],/d; /"step": 4/d' halfway/one/metrics.jsonl
cp -r base model
cp -r ref/one/checkpoint-000004 model/model
cp ref/one/tensorboard/events.out.tfevents.* model/events.out.tfevents.1

# ---- one fault ----

# faulty VARIABLE=VALUE… COMMAND…: the command in the directory work; $status, work.out, work.err.
faulty() {
    (
        exec 3>&2 2>/dev/null
        cd work || exit 99
        timeout -k 5 60 env "$@" >../work.out 2>../work.err </dev/null
    )
    status=$?
}

# place_name PLACE: where that is in the source.
place_name() {
    local offset
    for offset in $(tr ',' ' ' <<<"$1"); do
        [[ $offset =~ ^(tercet)?\+ ]] || continue
        addr2line -fie "$TERCET" "$(printf '0x%x' $((${offset#*+} - 1)))" 2>/dev/null
    done | sed 's|^/.*/src/|src/|; s/ (disc.*//' | tr '\n' ' '
}

# bad WHAT: notes that the fault $fault of command $name did not go well.
bad() {
    problem "$name: $fault: $1 (status $status) $(place_name "$place")" work.err
    if [ -n "${TEST_FAULT_REPORT:-}" ]; then
        {
            echo "== $name $fault: $1 (status $status)"
            echo "   $(place_name "$place")"
            head -c 1500 work.err | sed 's/^/   | /'
        } >>"$TEST_FAULT_REPORT"
    fi
}

# volatile FILE: without what differs from run to run.
volatile() {
    sed -E 's/"(seconds|available|[a-z_]*per_second|peak_share)": [^,}]*//g; s/[0-9.]+ [kMG]?B of [0-9.]+ [kMG]B available//' "$1"
}

# check_told: the message of a run that failed.
check_told() {
    grep -qE 'AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:' work.err && bad "a sanitizer's finding"
    case $status in
    0) return ;;
    1 | 2) ;;
    124 | 137) bad "it hangs, or was killed" ;;
    *) bad "another status" ;;
    esac
    [ "$(grep -cE '^(tercet|error): .' work.err)" -eq 1 ] || bad "not one message"
    grep -qE 'Success|errno|\(null\)|^(tercet|error): *$|cannot [^:]*: *$' work.err && bad "the message is no message"
}

# check_train: nothing is lost, and the run goes on to the same end.
check_train() {
    local before=$1 now
    now=$(newest work/one)
    [ "$now" -ge "$before" ] || bad "checkpoint $before is lost, $now is left"
    case $function in
    unlink | unlinkat | rename | rmdir | opendir | readdir | fdopendir | openat | lstat) ;;
    *)
        # (A rank that the MPI launcher has killed cannot remove what it was writing: the next save does.)
        [ "$name" != mpirun ] && find work -name '*.tmp-*' | grep -q . && bad "left: $(find work -name '*.tmp-*' | tr '\n' ' ')"
        ;;
    esac
    if [ "$status" -ne 0 ]; then
        env -C work "$TERCET" train run.yaml --resume --json >again.out 2>again.err || {
            bad "it does not go on: $(head -c 600 again.err)"
            return
        }
        grep -q "\"first_step\": $now," again.out || bad "it goes on elsewhere: $(cat again.out)"
    fi
    problems_before=$problems
    check_finished work/one ref/one
    [ "$problems" -eq "$problems_before" ] || bad "another end: $(head -c 600 "$scratch/.same")"
}

# check_same: a verb whose call failed although it ended well has said what it would have said, or warned. (inspect
# shows what it cannot read of a model as a problem of the model.)
check_same() {
    if [ "$status" -ne 0 ] || grep -q '^warning: ' work.err || grep -q '"supported": false' work.out; then return; fi
    volatile work.out >.a
    volatile whole.out >.b
    cmp -s .a .b || bad "another result, and nobody told: $(diff .b .a | head -c 600)"
}

# try CHECK LINE COMMAND…: lets the listed call fail; CHECK is what follows.
try() {
    local checking=$1 process
    fault=$2
    shift 2
    # shellcheck disable=SC2034 # place is for bad
    read -r process function place _ <<<"$fault"
    rm -rf work met
    cp -r "$from" work
    faulty "${launcher[@]}" LD_PRELOAD="$TEST_FAULTS" FAULT_PROGRAM="$TERCET" FAULT_AT="$fault" \
        FAULT_DONE="$scratch/met" "$@"
    tried=$((tried + 1))
    if [ ! -e met ]; then
        missed=$((missed + 1))
        [ "$status" -eq 0 ] || bad "the fault was not met, and yet it failed"
        return
    fi
    check_told
    $checking
}

# faults NAME FROM SOME CHECK COMMAND…: lists what the command calls in a copy of directory FROM, and lets each of it
# fail, or SOME of it. $launcher: what comes before the variables; $functions: a regular expression of those tried.
launcher=()
functions=.
faults() {
    name=$1
    from=$2
    local some=$3 checking=$4 count missed=0 lines line every at
    shift 4
    rm -rf work list
    cp -r "$from" work
    faulty "${launcher[@]}" LD_PRELOAD="$TEST_FAULTS" FAULT_PROGRAM="$TERCET" FAULT_LIST="$scratch/list" "$@"
    if [ "$status" -ne 0 ] || [ ! -s list ]; then
        not_ok "$name: the places are listed" "status $status" "$(head -c 1500 work.err)"
        return
    fi
    cp work.out whole.out
    # The first and the last listed call of each place.
    sort -k1,3 -k4n list | awk -v f="$functions" '$2 !~ f { next } { key = $1 " " $2 " " $3 }
        key != before { if (last != "" && last != first) print last; first = $0; print; before = key } { last = $0 }
        END { if (last != first) print last }' >.places
    grep -E "${TEST_FAULT_ONLY:-.}" < <(sed "s/^/$name /" .places) | cut -d ' ' -f 2- >places
    count=$(wc -l <places)
    [ "$count" -gt 0 ] || return
    every=$((count > some ? count / some : 1))
    every=${TEST_FAULT_EVERY:-$every}
    at=$((RANDOM % every))
    mapfile -t lines < <(awk -v every="$every" -v at="$at" 'NR % every == at' places)
    tried=0
    for line in "${lines[@]}"; do try "$checking" "$line" "$@"; done
    [ $((missed * 10)) -le "$tried" ] || problem "$name: $missed of $tried faults were not met"
    settle "$name: $tried of $count faults: one message or none, nothing left, nothing lost ($missed not met)"
}

from_nothing() { check_train 0; }
from_two() { check_train 2; }

faults train base 20 from_nothing "$TERCET" train run.yaml --json
faults ranks base 20 from_nothing "$TERCET" train run.yaml --json -n 2
faults resume halfway 20 from_two "$TERCET" train run.yaml --json --resume -n 2
faults plan base 8 check_same "$TERCET" plan run.yaml --json
faults data base 8 check_same "$TERCET" data run.yaml --json
faults tokenizer-train base 8 check_same "$TERCET" tokenizer train text.jsonl --vocab-size 290 -o new
faults encode base 8 check_same "$TERCET" tokenizer encode tok line.txt --json
faults decode base 8 check_same "$TERCET" tokenizer decode tok ids.txt --json
faults eval model 8 check_same "$TERCET" eval model --data eval.jsonl --seq-len 24 --json -n 2
faults generate model 8 check_same "$TERCET" generate model --prompt The --max-tokens 4 --json
faults logits model 8 check_same "$TERCET" logits model --ids 1,2,3
faults inspect model 8 check_same "$TERCET" inspect model --json
faults events model 4 check_same "$TERCET" inspect events.out.tfevents.1 --json
faults doctor base 4 true "$TERCET" doctor --quick --json
faults version base 2 true "$TERCET" version --json

if find_mpirun; then
    # MPI libraries unload parts that leak, whose names a sanitizer no longer knows.
    launcher=("${mpirun[@]}" -n 2 env "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0")
    [ -n "${TEST_FAULT_EVERY:-}" ] || functions='^MPI_'
    faults mpirun base 6 from_nothing "$TERCET" train run.yaml --json
else
    echo "# no MPI here: the runs under mpirun are left out"
fi
finish
