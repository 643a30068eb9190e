#!/bin/bash
# A run that is stopped, killed or out of disk at any moment goes on to the same bytes as one that was never
# stopped, with another number of ranks and another ZeRO stage; the last complete checkpoint is never lost, and
# no step before it is repeated.
#
#     TEST_SEED=1       of the random moments
#     TEST_CHAINS=3     runs that are interrupted at random again and again until they are done
#     TEST_WALK_ALL=1   every call of a save in turn, not one in a few of the same kind

# shellcheck source=tests/system/interruption.sh
. "$TEST_SOURCE/system/interruption.sh" || exit 1
prepare_run
expect_status 0 "$TERCET" train run.yaml output=ref checkpoint.every=1 checkpoint.keep=0
check "48 steps" test "$(steps_of ref)" -eq 48

# setting: other ranks and another stage each time, in $ranks and $setting.
turn=0
setting() {
    turn=$((turn + 1))
    ranks=$((turn % 3 + 1))
    setting=("-n" "$ranks" "parallel.zero=$((turn % 4))")
}

# resume OUTPUT ARGS…: goes on to the end, from the newest checkpoint.
resume() {
    local output=$1 from
    shift
    from=$(newest "$output")
    setting
    if ! train "$output" --resume "${setting[@]}" "$@"; then
        problem "$output: the run does not go on" "$output.err"
    fi
    grep -q "\"first_step\": $from," "$output.out" || problem "$output: not from step $from" "$output.out"
}

# ---- stopped and killed at random, again and again until the run is done ----

interrupt() { # OUTPUT
    local output=$1 way=$((RANDOM % 7)) before from status pid children child wanted steps
    from=$(newest "$output")
    steps=$from
    setting
    "$TERCET" train run.yaml "output=$output" --json --resume "${setting[@]}" >"$output.out" 2>"$output.err" &
    pid=$!
    if [ $((RANDOM % 4)) -eq 0 ]; then
        sleep "0.0$((RANDOM % 90 + 10))"
    else
        await $((steps + 1 + RANDOM % 4)) "$output" "$pid"
    fi
    before=$(newest "$output")
    mapfile -t children < <(pgrep -P "$pid")
    child=${children[0]:+${children[RANDOM % ${#children[@]}]}}
    wanted="0 137"
    case $way in
    0) kill -TERM "$pid" 2>/dev/null && wanted="0 143" ;;
    1) kill -INT "$pid" 2>/dev/null && wanted="0 130" ;;
    2) mkdir -p "$output" && touch "$output/stop" && wanted=0 ;;
    3 | 4)
        if [ -n "$child" ]; then
            kill -KILL "$child" 2>/dev/null
            wanted="0 1"
        else
            kill -KILL "$pid" 2>/dev/null
        fi
        ;;
    5) kill -KILL "$pid" 2>/dev/null ;;
    6) kill -KILL "$pid" "${children[@]}" 2>/dev/null ;;
    esac
    wait "$pid" 2>/dev/null
    status=$?
    [[ " $wanted " == *" $status "* ]] || problem "$output: way $way: status $status, not $wanted" "$output.err"
    gone 5 "${children[@]}" || problem "$output: way $way: ranks are left"
    rm -f "$output/stop"
    # (A program that has not said a word yet is ended by the signal itself: nothing had begun.)
    if [ "$way" -lt 2 ] && [ "$status" -gt 128 ] && [ "$(steps_of "$output")" -lt 48 ] && [ -s "$output.err" ]; then
        grep -qE 'go on with .*--resume|start again$' "$output.err" ||
            problem "$output: it does not say how to go on" "$output.err"
        grep -q 'start again$' "$output.err" || [ "$(newest "$output")" -eq "$(steps_of "$output")" ] ||
            problem "$output: stopped without saving" "$output.err"
    fi
    [ "$(newest "$output")" -ge "$before" ] || problem "$output: way $way: checkpoint $before is lost" "$output.err"
    check_complete "$output" ref
    if [ -s "$output.out" ] && ! grep -q "\"first_step\": $from," "$output.out"; then
        problem "$output: not from step $from" "$output.out"
    fi
}

chains=3
[ -n "$slow" ] && chains=1
for ((chain = 1; chain <= ${TEST_CHAINS:-$chains}; chain++)); do
    mkdir "chain$chain"
    for ((round = 0; round < 20; round++)); do
        interrupt "chain$chain"
        [ "$(newest "chain$chain")" -eq 48 ] && break
    done
    resume "chain$chain"
    check_finished "chain$chain" ref
    settle "chain $chain: $round interruptions at random, then the bytes of the run never stopped"
done

# ---- each write, fsync and rename of a save in turn ----

# start_walk: a fresh OUTPUT with a checkpoint of step 44, from which the next run saves step 46 beside step 47, removes
# that of 44, saves step 48, and removes that of 46.
walk_keys=(output="$PWD/walk" checkpoint.every=46 checkpoint.keep=1 eval.every=0)
start_walk() {
    rm -rf walk
    cp -r base walk
}

rm -rf walk
killer_path=$PWD/walk/checkpoint-000048
killer 1 kill "$TERCET" train run.yaml "${walk_keys[@]}" checkpoint.every=44 >walk.out 2>walk.err
check "the run before: killed as it begins to save" test $? -eq 137
killer_path=$PWD/walk
mv walk base
mkdir base/checkpoint-000010 # as a removal that was cut short had left it in earlier versions: without a manifest
check "it has one checkpoint" test "$(newest base)" -eq 44

# The calls of a rank's two threads, each in their own order: "NUMBER CALL PATH" of the process that makes most, which
# is rank 0, in calls-RANKS-THREAD.
for ranks in 1 2 3; do
    for killer_thread in main other; do
        start_walk
        rm -f calls
        expect_status 0 killer 0 kill "$TERCET" train run.yaml "${walk_keys[@]}" --resume -n $ranks
        awk '{seen[$1]++} END {for (p in seen) if (seen[p] > most) {most = seen[p]; who = p}; print who}' calls >.who
        sed -n "s/^$(cat .who) //p" calls >"calls-$ranks-$killer_thread"
    done
done
check "two saves have many calls" test "$(cat calls-1-* | wc -l)" -gt 200
for call in write pwrite fsync rename symlink mkdir unlinkat; do
    check "… $call among them" grep -qE "^[0-9]+ $call " calls-1-main calls-1-other
done
check "… the thread beside the step does the writing" \
    test "$(grep -c pwrite calls-1-other)" -gt 100 -a "$(grep -c pwrite calls-1-main)" -eq 0
check "… on each rank its own" test "$(grep -c pwrite calls-3-other)" -lt "$(grep -c pwrite calls-1-other)"

# points RANKS THREAD STRIDE KINDS: one of each kind (call and sort of file), and one in a few of the rest.
points() {
    sed -E 's/\.tmp-[0-9]+//g; s/ [^ ]*tfevents.*/ events/; s/(unlinkat) [^ ]*tmp-old\/.*/\1 old/
        s/ [^ ]*\.safetensors$/ tensors/; s/ [^ ]*checkpoint-0000[0-9]*\/.*\.(json|yaml)$/ file/
        s/checkpoint-0000[0-9]*/checkpoint/; s/^([0-9]+) /\1 \1 /' "calls-$1-$2" |
        awk -v ranks="$1" -v thread="$2" -v stride="$3" -v kinds="$4" \
            '{n = $1; $1 = $2 = ""} (kinds && !seen[$0]++) || n % stride == 0 {print ranks, thread, n}'
}
kinds=1
[ -n "$slow" ] && kinds=0
for ranks in 1 2 3; do
    for thread in main other; do
        stride=47
        [ "$thread" = main ] && stride=13
        [ -n "$slow" ] && stride=$((2 * stride))
        [ -n "${TEST_WALK_ALL:-}" ] && stride=1
        points $ranks $thread $stride $((kinds * (ranks == 1)))
    done
done >walked
mapfile -t points <walked
echo "# $(cat calls-?-* | wc -l) calls, ${#points[@]} of them walked"

# at POINT: sets ranks, killer_thread, at, what and setting.
at() {
    read -r ranks killer_thread at <<<"$1"
    turn=$((turn + 1))
    setting=("-n" "$ranks" "parallel.zero=$((turn % 4))")
    what="$ranks ranks, thread $killer_thread, $(sed -n "${at}p" "calls-$ranks-$killer_thread")"
}

for point in "${points[@]}"; do
    start_walk
    at "$point"
    killer "$at" kill "$TERCET" train run.yaml "${walk_keys[@]}" --resume --json "${setting[@]}" >walk.out 2>walk.err
    status=$?
    case $ranks in 1) wanted=137 ;; *) wanted=1 ;; esac
    [ "$status" -eq "$wanted" ] || problem "killed at $what: status $status" walk.err
    if [ "$ranks" -gt 1 ]; then
        one_message walk.err 'rank [012] was killed by signal 9' ||
            problem "killed at $what: not one message" walk.err
    fi
    [ "$(newest walk)" -ge 44 ] || problem "killed at $what: the last checkpoint is lost" walk.err
    check_complete walk ref
    resume walk "${walk_keys[@]}"
    [ "$(readlink walk/last)" = checkpoint-000048 ] || problem "killed at $what: last is $(readlink walk/last)"
    [ "$(ls -d walk/checkpoint-*)" = walk/checkpoint-000048 ] || [ -d walk/checkpoint-000010 ] ||
        problem "killed at $what: other directories" <(ls walk)
    find walk -name '*.tmp-*' | grep -q . && problem "killed at $what: something is left" <(find walk -name '*.tmp-*')
    same_checkpoint ref/last/ walk/last/ >.same 2>&1 || problem "killed at $what: other bytes" .same
    diff <(sed -E '/eval_loss/d; s/, "seconds.*//' ref/metrics.jsonl) <(sed -E '/eval_loss/d; s/, "seconds.*//' walk/metrics.jsonl) \
        >.same || problem "killed at $what: other metrics" .same
done
settle "killed at each of these calls: nothing lost, and the bytes of the run never stopped"

# ---- the disk is full, or fails, from each of them on ----

for point in "${points[@]}"; do
    start_walk
    at "$point"
    case $what in
    *" write "* | *" pwrite "* | *" mkdir "* | *" symlink "*) error=28 text='No space left' ;;
    *) error=5 text='Input/output error' ;;
    esac
    killer "$at" $error "$TERCET" train run.yaml "${walk_keys[@]}" --resume --json "${setting[@]}" >walk.out 2>walk.err
    status=$?
    [ "$status" -eq 1 ] || [ "$status" -eq 2 ] || problem "error at $what: status $status" walk.err
    one_message walk.err "$text" || problem "error at $what: not one clear message" walk.err
    [ "$(newest walk)" -ge 44 ] || problem "error at $what: the last checkpoint is lost" walk.err
    case $what in # what cannot be removed stays until the next run
    *unlink*) ;;
    *) find walk -name '*.tmp-*' | grep -q . && problem "error at $what: something is left" <(find walk -name '*.tmp-*') ;;
    esac
    check_complete walk ref
    resume walk "${walk_keys[@]}"
    find walk -name '*.tmp-*' | grep -q . && problem "error at $what: something is left at the end" <(find walk -name '*.tmp-*')
    same_checkpoint ref/last/ walk/last/ >.same 2>&1 || problem "error at $what: other bytes" .same
done
settle "the disk full or failing from each of these calls on: one message, nothing lost, and the run goes on"

# ---- beside the next steps ----

# gated RANKS CALL: a run from step 44 whose rank(s) wait at their first such call of the save of step 46, until `gate`
# is there. Sets pid.
gated() {
    local at
    at=$(grep -m 1 -E "^[0-9]+ $2 " "calls-$1-other" | cut -d ' ' -f 1)
    killer_thread=other
    start_walk
    rm -f gate calls
    killer "${at:-1}" "$PWD/gate" "$TERCET" train run.yaml "${walk_keys[@]}" checkpoint.keep=2 --resume --json -n "$1" \
        >walk.out 2>walk.err &
    pid=$!
}
# passed WHAT: opens the gate; the run ends well, and its checkpoints are those of the run that never waited.
passed() {
    touch gate
    wait $pid || problem "$1: it fails" walk.err
    for step in 000046 000048; do
        same_checkpoint ref/checkpoint-$step walk/checkpoint-$step >.same 2>&1 || problem "$1: other bytes" .same
    done
}
for ranks in 1 3; do
    # Nothing is on the disk yet, and the steps go on.
    gated $ranks fsync
    await 48 walk $pid
    [ "$(steps_of walk)" -eq 48 ] || problem "fsync: the steps wait for the disk" walk.err
    [ "$(newest walk)" -eq 44 ] || problem "fsync: the checkpoint is there before its files"
    passed fsync
    settle "$ranks ranks: steps go on while a checkpoint is brought to the disk"

    # Nothing is read yet, so step 47 is computed but not taken.
    gated $ranks pwrite
    await 46 walk $pid
    while [ ! -s calls ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
    sleep 0.5
    [ "$(steps_of walk)" -eq 46 ] || problem "pwrite: a step is taken before the one before it is read" walk.err
    passed pwrite
    settle "$ranks ranks: an update waits until what it changes is written"
done
killer_thread=

# ---- asked to stop when no step is under way ----

yes "$(cat text.jsonl)" | head -n 4000 >long.jsonl
"$TERCET" train run.yaml output=early data.train=long.jsonl -n 2 >early.out 2>early.err &
pid=$!
while ! ls cache/*tmp* >/dev/null 2>&1 && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -TERM $pid
wait $pid
check "SIGTERM while tokenizing: 128 + 15" test $? -eq 143
expect_grep 'stopped while tokenizing.*start again' early.err
check "… and no output" test ! -e early
check "… and nothing half-written in the cache" test -z "$(find cache -name '*tmp*')"

evaluation=1000
[ -n "$slow" ] && evaluation=100
# An evaluation that takes seconds; cut short twice, the second time before any step.
yes "$(cat text.jsonl)" | head -n "$evaluation" >long_eval.jsonl
"$TERCET" train run.yaml output=evaluating data.eval=long_eval.jsonl data.cache=cache2 -n 2 >early.out 2>early.err &
pid=$!
while [ "$(steps_of evaluating)" -lt 6 ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -INT $pid
wait $pid
check "SIGINT while evaluating: 128 + 2" test $? -eq 130
expect_grep 'go on with the same command and --resume' early.err
check "… saved where it was" test "$(newest evaluating)" -eq 6
expect_no_grep eval_loss evaluating/metrics.jsonl "… without the evaluation"
rm early.err
"$TERCET" train run.yaml output=evaluating data.eval=long_eval.jsonl data.cache=cache2 --json --resume >early.out 2>early.err &
pid=$!
while ! [ -s early.err ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -TERM $pid
wait $pid
check "SIGTERM in the evaluation that was owed: 128 + 15" test $? -eq 143
expect_no_grep eval_loss evaluating/metrics.jsonl "… it is still owed"
check "… and no step was taken" test "$(newest evaluating)" -eq 6

"$TERCET" train run.yaml output=begun eval.at_start=true data.eval=long_eval.jsonl data.cache=cache2 --json >early.out 2>early.err &
pid=$!
while ! [ -d begun ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -TERM $pid
wait $pid
check "SIGTERM in the evaluation before the first step: 128 + 15" test $? -eq 143
expect_grep 'stopped before the first step; start again with the same command and --resume' early.err
expect_grep '"last_step": 0,.*"first_loss": null, "last_loss": null' early.out "… no loss to tell"
expect_status 0 "$TERCET" train run.yaml output=begun eval.at_start=true data.eval=eval.jsonl train.steps=3 --resume
check "… and so it does" test "$(steps_of begun)" -eq 3

touch evaluating/stop
expect_status 0 "$TERCET" train run.yaml output=evaluating data.eval=long_eval.jsonl data.cache=cache2 --json --resume
expect_grep '"first_step": 6, "last_step": 6' "$scratch/.out" "gone on from there, and stopped by a file"
check "… which is removed" test ! -e evaluating/stop
grep -v '"eval_loss"' evaluating/metrics.jsonl | sed 's/, "seconds.*//' >.a
head -n 200 ref/metrics.jsonl | grep -v '"eval_loss"' | sed 's/, "seconds.*//' | head -n 6 >.b
expect_equal .b .a "… with the same steps"
expect_grep '"step": 6, "eval_loss"' evaluating/metrics.jsonl "… and the evaluation that was cut short"

finish
