#!/bin/bash
# Ranks and launchers that die, and outputs that are not as they should be: the run ends at once with one message,
# leaves nothing behind, and can go on; or it is refused before any work, with the reason and the remedy.
# shellcheck source=tests/system/interruption.sh
. "$TEST_SOURCE/system/interruption.sh" || exit 1
prepare_run
expect_status 0 "$TERCET" train run.yaml output=ref checkpoint.every=1 checkpoint.keep=0

# ---- a rank or the launcher is killed ----

# start OUTPUT RANKS ARGS…: a long run in the background, under way when this returns: $pid, $children.
start() {
    local output=$1 ranks=$2
    shift 2
    "$TERCET" train run.yaml "output=$output" -n "$ranks" train.steps=100000 checkpoint.every=40 "$@" \
        >"$output.out" 2>"$output.err" &
    pid=$!
    await 45 "$output" "$pid"
    mapfile -t children < <(pgrep -P "$pid" | sort -n)
    # What the ranks share has no name that could stay: other programs may use /dev/shm meanwhile.
    for child in "$pid" "${children[@]}"; do cat "/proc/$child/maps"; done >.maps
    check "ranks share no named memory" test -z "$(grep -v "$scratch" .maps | grep /dev/shm/)"
}

# ended OUTPUT STATUS SINCE: the run is over in five seconds and nothing is left of it.
ended() {
    check "… within five seconds" gone 5 "$pid" "${children[@]}"
    kill -KILL "${children[@]}" 2>/dev/null
    wait "$pid" 2>/dev/null
    check "… with status $2" test $? -eq "$2"
}

for signal in KILL SEGV; do
    output=rank_$signal
    start "$output" 3
    check "three ranks" test ${#children[@]} -eq 3
    kill -"$signal" "${children[1]}"
    ended "$output" 1
    check "… one message that names the rank" one_message "$output.err" 'rank 1 was killed by signal'
    check "… no half-written checkpoint" test -z "$(find "$output" -name '*.tmp-*')"
    from=$(newest "$output")
    expect_status 0 "$TERCET" train run.yaml "output=$output" train.steps=100000 --resume --dry-run --json
    expect_grep "\"first_step\": *$from\b" "$out" "the next run begins after step $from"
done

# A stopped rank is noticed by its silence. `long` is the same run, never disturbed.
start long 1 checkpoint.keep=0
await 85 long "$pid"
touch long/stop
wait "$pid"
check "a run to compare with" test $? -eq 0
for ranks in 2 3; do
    output=stopped_$ranks
    start "$output" "$ranks" checkpoint.keep=0 parallel.watchdog=1
    kill -STOP "${children[ranks - 1]}"
    ended "$output" 1
    check "… one message that names the rank" one_message "$output.err" \
        "rank $((ranks - 1)) (process ${children[ranks - 1]}) has given no sign of life for [0-9.]* seconds: it is stopped"
    check "… no half-written checkpoint" test -z "$(find "$output" -name '*.tmp-*')"
    "$TERCET" train run.yaml "output=$output" -n $((5 - ranks)) train.steps=100000 checkpoint.every=40 checkpoint.keep=0 \
        --resume >"$output.out" 2>"$output.err" &
    pid=$!
    await 85 "$output" "$pid"
    touch "$output/stop"
    wait "$pid"
    check "… it goes on" test $? -eq 0
    for way in long "$output"; do metrics_of "$way" | head -n 80 >".$way"; done
    expect_equal .long ".$output" "… with the same metrics"
    same_checkpoint long/checkpoint-000080 "$output/checkpoint-000080" >.same || problem "other bytes" .same
    settle "… to the same bytes"
done
for how in running stopped; do
    output=launcher_$how
    start "$output" 3
    [ "$how" = stopped ] && kill -STOP "$pid"
    kill -KILL "$pid"
    ended "$output" 137
    check "… one message that says so" one_message "$output.err" 'the launcher was killed'
    touch "$output/stop"
    expect_status 0 "$TERCET" train run.yaml "output=$output" train.steps=100000 --resume -n 2
done

# Ranks fail in a save, each at its own call of that number: the message of one, and only that.
killer_path=$PWD/full
expect_status 1 killer 30 28 "$TERCET" train run.yaml output="$PWD/full" -n 3
check "a full disk in a save of three ranks: one message" one_message "$err" 'rank [012]: .*No space left'
check "… nothing half-written" test -z "$(find full -name '*.tmp-*')"

# ---- the same under mpirun ----

if find_mpirun; then
    "${mpirun[@]}" -n 3 "$TERCET" train run.yaml output=mpi train.steps=100000 checkpoint.every=40 \
        >mpi.out 2>mpi.err &
    pid=$!
    await 45 mpi "$pid"
    mapfile -t children < <(pgrep -f "^$TERCET train run.yaml output=mpi" | sort -n)
    check "mpirun: three ranks" test ${#children[@]} -eq 3
    kill -KILL "${children[1]}"
    check "mpirun: a killed rank ends the run within five seconds" gone 5 "$pid" "${children[@]}"
    kill -KILL "${children[@]}" 2>/dev/null
    wait "$pid"
    check "… which has failed" test $? -ne 0
    # By the launcher, which ends the others at once; MPICH's tells the process and the signal instead.
    cat mpi.out >>mpi.err
    expect_grep 'rank 1|Killed \(signal 9\)' mpi.err "… and it is told"
    touch mpi/stop
    expect_status 0 "$TERCET" train run.yaml output=mpi train.steps=100000 --resume -n 2

    rm -rf full
    expect_status 1 killer 30 28 "${mpirun[@]}" -n 3 "$TERCET" train run.yaml output="$PWD/full"
    check "mpirun: a full disk in a save: one message" one_message "$err" 'rank [012]: .*No space left'
    check "… nothing half-written" test -z "$(find full -name '*.tmp-*')"

    # As if each machine had a disk of its own.
    mkdir here there
    common=("$TERCET" train "$PWD/run.yaml" output=apart tokenizer="$PWD/tok" data.train="$PWD/text.jsonl"
        data.eval="$PWD/eval.jsonl" data.cache="$PWD/cache")
    expect_status 1 "${mpirun[@]}" -n 1 -wdir "$PWD/here" "${common[@]}" : -n 1 -wdir "$PWD/there" "${common[@]}"
    check "mpirun: an output that rank 1 does not see" one_message "$err" \
        'rank 1: apart: this rank does not see there what rank 0 has written'
else
    echo "# no MPI here: the runs under mpirun are left out"
fi

# ---- outputs that hold something ----

# fresh: OUTPUT with the checkpoints of steps 42 and 45 and metrics up to 45, as a run stopped there left it.
fresh() {
    rm -rf one
    mkdir one
    cp -r ref/checkpoint-000042 ref/checkpoint-000045 one
    ln -s checkpoint-000045 one/last
    grep -E '"step": ([1-9]|[1-3][0-9]|4[0-5]),' ref/metrics.jsonl >one/metrics.jsonl
    cp ref/run.yaml one
    touch one/.lock
}

# refused DESCRIPTION PATTERN ARGS…: with status 2 and one message, and the directory is as before.
refused() {
    local description=$1 pattern=$2
    shift 2
    find one -printf '%p %y %s %T@ %l\n' 2>/dev/null | sort >.before
    "$TERCET" train run.yaml output=one "$@" >.out 2>.err
    check "$description: refused" test $? -eq 2
    check "… with one message" one_message .err .
    expect_grep "$pattern" .err "… that says so"
    find one -printf '%p %y %s %T@ %l\n' 2>/dev/null | sort >.after
    expect_equal .before .after "… and nothing is changed"
}

fresh
refused "an output that holds a run" '^tercet: .*one: this directory holds a run'
expect_grep '--resume.*--overwrite' .err
fresh
train one --resume -n 2 || problem "it does not go on" one.err
grep -q '"first_step": 45' one.out || problem "not from 45" one.out
check_finished one ref
settle "--resume goes on from the newest"
train one --resume || problem "status" one.err
grep -q 'nothing to do' one.err || problem "it does not say so" one.err
check_finished one ref
settle "--resume of a finished run does nothing, and ends well"

flip() { # FILE: one bit in the middle
    local size byte
    size=$(stat -c %s "$1")
    byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$1")
    printf '%b' "\\0$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek=$((size / 2)) conv=notrunc status=none
}

damaged() { # DESCRIPTION: checkpoint 45 has just been damaged
    refused "$1" 'the newest checkpoint is damaged' --resume
    expect_grep '--resume=one/checkpoint-000042' .err "… and names the newest sound one"
    refused "$1, asked for" 'one/checkpoint-000045' --resume=one/checkpoint-000045
}
fresh
flip one/checkpoint-000045/model.safetensors
damaged "a flipped bit in the weights"
train one --resume=one/checkpoint-000042 || problem "it does not go on" one.err
grep -q '"first_step": 42' one.out || problem "not from 42" one.out
check_finished one ref
settle "--resume=THE SOUND ONE goes on to the same bytes, and nothing of the damaged one is left"

for file in training/moment1.safetensors training/state.json training/run.yaml config.json; do
    [ -n "$slow" ] && break
    fresh
    flip "one/checkpoint-000045/$file"
    damaged "a flipped bit in $file"
done
fresh
truncate -s -1 one/checkpoint-000045/training/moment2.safetensors
damaged "a file cut short"
fresh
rm one/checkpoint-000045/training/master.safetensors
damaged "a file missing"
fresh
truncate -s 100 one/checkpoint-000045/training/manifest.json
damaged "a manifest cut short"
fresh
: >one/checkpoint-000045/training/manifest.json
damaged "an empty manifest"
fresh
flip one/checkpoint-000045/model.safetensors
flip one/checkpoint-000042/model.safetensors
refused "all checkpoints damaged" 'no other checkpoint is sound.*--overwrite' --resume
refused "no such checkpoint" 'one/checkpoint-7' --resume=one/checkpoint-7
refused "a number for a checkpoint" '7: --resume: there is no such directory' --resume=7

fresh
rm one/checkpoint-000045/training/manifest.json
train one --resume || problem "it does not go on" one.err
grep -q '"first_step": 42' one.out || problem "not from 42" one.out
check_finished one ref
settle "a checkpoint without a manifest is none"

# Killed after going back to 42 and before the next save: it is 42 that counts, not the later ones set aside.
fresh
killer_path=$PWD/one/checkpoint-000048
killer 1 kill "$TERCET" train run.yaml output="$PWD/one" --resume=one/checkpoint-000042 checkpoint.every=24 >.out 2>.err
check "a run that went back to step 42 is killed" test $? -eq 137
check "… 42 is the newest" test "$(newest one)" -eq 42
check "… and the last" test "$(readlink one/last)" = checkpoint-000042
train one --resume || problem "it does not go on" one.err
grep -q '"first_step": 42' one.out || problem "not from 42" one.out
check_finished one ref
settle "… and it goes on from there"

fresh
train one --resume=one/last/ || problem "it does not go on" one.err
check_finished one ref
settle "--resume=OUTPUT/last"

rm -rf one
train one --resume || problem "it does not start" one.err
check_finished one ref
settle "--resume where nothing is starts"
rm -rf one
mkdir one
cp ref/metrics.jsonl ref/run.yaml one
train one --resume || problem "it does not start" one.err
check_finished one ref
settle "--resume where a run ended before its first checkpoint starts, with metrics of its own"

fresh
touch one/mine
train one --overwrite train.steps=5 || problem "it does not start" one.err
[ "$(newest one):$(ls one/mine)" = 5:one/mine ] || problem "not what --overwrite leaves" <(ls one)
[ "$(steps_of one)" -eq 5 ] || problem "metrics of the old run are left"
settle "--overwrite removes the run that was there, and nothing else"
fresh
train one --resume --overwrite || problem "it does not go on" one.err
grep -q '"first_step": 45' one.out || problem "not from 45" one.out
check_finished one ref
settle "--resume --overwrite goes on where there is a checkpoint"
fresh
"$TERCET" train run.yaml output=one --resume=one/checkpoint-000042 --overwrite >.out 2>.err
check "--resume=CHECKPOINT --overwrite is refused" test $? -eq 2

# A run goes on from another one's checkpoint in a directory of its own.
rm -rf other
train other --resume=ref/checkpoint-000030 -n 3 || problem "it does not go on" other.err
same_checkpoint ref/last/ other/last/ >.same || problem "other bytes" .same
check "ref is as it was" test "$(newest ref)" -eq 48
settle "--resume=CHECKPOINT of another directory"
fresh
refused "… but not into a directory with checkpoints of its own" 'holds checkpoints of its own' --resume=ref/checkpoint-000030

# ---- what may change, and what may not ----

fresh
refused "a changed learning rate" 'optimizer.lr was 0.001 .*and is 0.002 now' --resume optimizer.lr=2e-3
expect_grep '--allow-change' .err
refused "two changed keys" 'seed.*; *optimizer.lr|optimizer.lr.*; *seed' --resume optimizer.lr=2e-3 seed=8
refused "two changed keys, one allowed" 'seed' --resume optimizer.lr=2e-3 seed=8 --allow-change optimizer.lr
train one --resume optimizer.lr=2e-3 --allow-change optimizer.lr || problem "status" one.err
grep -q '"step": 46,.*"lr": 0.00' one/metrics.jsonl || problem "no step 46"
cmp -s ref/last/model.safetensors one/last/model.safetensors && problem "the change did nothing"
settle "--allow-change KEY lets it change"

fresh
cp text.jsonl text.keep
sed -i '1s/a/b/' text.jsonl
refused "another text" 'not the one this checkpoint was trained on' --resume
mv text.keep text.jsonl

# ---- two runs on one output ----

rm -rf one
start one 2
for way in --resume --overwrite; do
    "$TERCET" train run.yaml output=one train.steps=100000 $way >.out 2>.err
    check "a second run on the output with $way: refused" test $? -eq 2
    check "… with one message" one_message .err 'another run is writing here'
done
kill -TERM "$pid"
wait "$pid"
check "the first run is none the worse" test $? -eq 143

# ---- outputs that cannot be written ----

rm -rf one
touch one
refused "a file as output" 'this is a file, not a directory'
rm one
touch file
"$TERCET" train run.yaml output=file/inside >.out 2>.err
check "an output below a file: refused" test $? -eq 2
check "… with one message" one_message .err 'file/inside'
mkdir -p closed
chmod 555 closed
chmod 755 "$scratch" ${fast:+"$fast"}
as_nobody=()
[ "$(id -u)" -eq 0 ] && as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${as_nobody[@]}" test -x "$TERCET" -a ! -w closed 2>/dev/null; then
    for output in closed closed/inside; do
        "${as_nobody[@]}" "$TERCET" train run.yaml output=$output >.out 2>.err
        check "an output without permission ($output): refused" test $? -eq 2
        check "… with one message" one_message .err 'Permission denied'
    done
else
    echo "# an output without permission is left out: nobody else can reach the program, or permissions do not count"
fi
mkdir -p small
if mount -t tmpfs -o size=8m tmpfs small 2>/dev/null; then
    "$TERCET" train run.yaml output=small/one >.out 2>.err
    check "no room for a checkpoint: refused" test $? -eq 2
    check "… with one message" one_message .err 'a checkpoint takes .* but only .* are free'
    check "… before any work" test ! -e small/one
    umount small
else
    echo "# a full output is left out: nothing can be mounted here"
fi

# ---- metrics and retention ----

fresh
printf '{"step": 46, "loss": 1}\n{"step": 47, "lo' >>one/metrics.jsonl
train one --resume || problem "status" one.err
check_finished one ref
settle "metrics.jsonl is cut back to the checkpoint, a broken last line with it"

fresh
mv one/checkpoint-000042 one/checkpoint-9
mv one/checkpoint-000045 one/checkpoint-10
cp -r ref/checkpoint-000045 one
ln -sfn checkpoint-000045 one/last
train one --resume checkpoint.keep=2 || problem "status" one.err
[ "$(cd one && echo checkpoint-*)" = "checkpoint-000045 checkpoint-000048" ] || problem "other checkpoints" <(ls one)
settle "the oldest by number go first, whatever their width"
fresh
train one --resume checkpoint.keep=0 || problem "status" one.err
[ "$(cd one && echo checkpoint-*)" = "checkpoint-000042 checkpoint-000045 checkpoint-000048" ] || problem "others" <(ls one)
settle "keep: 0 keeps all"

finish
