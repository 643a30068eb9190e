#!/bin/bash
# The learning rates of whole runs follow the schedule of the run file, also in a run that was stopped and resumed.

# shellcheck source=tests/system/interruption.sh
. "$TEST_SOURCE/system/interruption.sh" || exit 1
prepare_run

# rates OUTPUT: of all steps, to nine digits.
rates() {
    sed -nE 's/.*"lr": ([^,]*),.*/\1/p' "$1/metrics.jsonl" | awk '{printf "%.9g\n", $1}'
}

# follows NAME EXPRESSION SETTINGS…: 20 steps at once, and the same in two parts on two ranks; the rate of update k, by awk.
follows() {
    local name=$1 expression=$2 keys
    shift 2
    keys=(train.steps=20 eval.every=0 checkpoint.every=7 checkpoint.keep=0 "$@")
    rm -rf whole parts
    expect_status 0 "$TERCET" train run.yaml output=whole "${keys[@]}"
    awk "BEGIN {for (k = 0; k < 20; k++) printf \"%.9g\\n\", $expression}" >"$scratch/.wanted"
    rates whole >"$scratch/.got"
    expect_equal "$scratch/.wanted" "$scratch/.got" "$name: the rates of 20 steps"
    cp -r whole parts
    rm -r parts/checkpoint-000020 parts/checkpoint-000014
    expect_status 0 "$TERCET" train run.yaml output=parts "${keys[@]}" --resume -n 2
    metrics_of whole >"$scratch/.wanted"
    metrics_of parts >"$scratch/.got"
    expect_equal "$scratch/.wanted" "$scratch/.got" "$name: the same when resumed after step 7 on two ranks"
    check "… and the same checkpoint" same_checkpoint whole/checkpoint-000020 parts/checkpoint-000020
}

warmup="k < 3 ? 1e-3 * (k + 1) / 3"
follows wsd "$warmup : k < 12 ? 1e-3 : 1e-3 + (1e-4 - 1e-3) * (k - 12) / 8" \
    schedule.name=wsd schedule.decay_steps=8 schedule.min_lr=1e-4
follows "wsd, sqrt" "$warmup : k < 12 ? 1e-3 : 1e-3 - 1e-3 * sqrt((k - 12) / 8)" \
    schedule.name=wsd schedule.decay_steps=8 schedule.decay=sqrt
follows multistep "$warmup : k < 16 ? 1e-3 : k < 18 ? 1e-3 * 0.316 : 1e-4" \
    schedule.name=multistep "schedule.at=[0.8, 0.9]" "schedule.factor=[0.316, 0.1]"

expect_status 2 "$TERCET" train run.yaml output=epochs train.steps=null train.epochs=1 schedule.name=wsd schedule.decay_steps=100000
expect_grep 'schedule.decay_steps: 100000 steps of decay and 3 of warm-up are more than the run' "$err"
finish
