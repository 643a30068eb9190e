#!/bin/bash
# tercet train --profile: a table of ops, a trace with a track for each rank and thread, and the same bits as without.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
cd "$scratch" || exit 1

for i in {1..60}; do echo "{\"text\": \"the cat $i sat on the mat and the hat of $i\"}"; done >text.jsonl
"$TERCET" tokenizer train text.jsonl --vocab-size 280 -o tok >/dev/null 2>&1 || exit 1
cat >run.yaml <<'YAML'
output: plain
model:
  config: {model_type: llama, hidden_size: 60, num_attention_heads: 5, num_key_value_heads: 1, head_dim: 12,
    intermediate_size: 84, num_hidden_layers: 2, max_position_embeddings: 64}
tokenizer: tok
data: {train: [text.jsonl], seq_len: 24, cache: cache}
train: {steps: 8, global_batch: 4, micro_batch: 1}
parallel: {threads: 2}
YAML

expect_status 0 "$TERCET" train run.yaml
check "no trace unasked" test ! -e plain/trace.json

# table: what the table on standard error tells of all that is in a step.
table() {
    local name
    expect_grep '^profile of rank 0 +calls +ms a step +share' "$err"
    for name in linear linear_grad_input linear_grad_weight attention attention_grad loss_grad rmsnorm swiglu rope adamw \
        'rest of the step' reduce 'sum over ranks'; do
        expect_grep "^$name +[0-9.]+ +[0-9.]+ +[0-9.]+ %" "$err" "the table has $name"
    done
    expect_no_grep '^loss ' "$err" "the loss comes with its gradient"
}

# trace DIRECTORY RANKS: one event a line, as JSON has them, and a track for each thread of each rank.
trace() {
    local file=$1/trace.json rank thread
    check "$1: one list" test "$(head -n 1 "$file")$(tail -n 1 "$file")" = '[]'
    check "… of events alone" test -z "$(sed '1d;$d' "$file" | head -n -1 | grep -vE '^\{"ph": "(M|X)", "name": "[a-z_ ]+", "pid": [0-9]+, "tid": [0-9]+, ("ts": [0-9.]+, "dur": [0-9.]+|"args": \{"name": "[a-z]+ [0-9]+"\})\},$')"
    check "… the last without a comma" grep -qE '\}$' <(tail -n 2 "$file" | head -n 1)
    for ((rank = 0; rank < $2; rank++)); do
        for thread in 0 1; do
            check "… rank $rank, thread $thread" grep -qE "\"thread_name\", \"pid\": $rank, \"tid\": $thread," "$file"
        done
        check "… what rank $rank does" grep -qE "\"X\", \"name\": \"linear\", \"pid\": $rank, \"tid\": 0," "$file"
    done
    check "… and no other rank" test -z "$(grep "\"pid\": $2," "$file")"
}

expect_status 0 "$TERCET" train run.yaml output=one --profile --json
table
expect_grep '^steps 3 to 5 are in one/trace.json' "$err"
trace one 1
cmp -s plain/last/model.safetensors one/last/model.safetensors && cmp -s plain/last/training/moment2.safetensors one/last/training/moment2.safetensors
check "the same bits as without" test $? -eq 0
expect_json_line "$out"
expect_grep '"profile": \{"steps": 3, "seconds": [0-9.e-]+, "product_peak": null, "bandwidth": [0-9.e+]+, "ops": \[\{"name"' "$out"
# 2 layers, 7 products of each, 4 micro-batches, 3 steps.
expect_grep '"name": "linear", "calls": 168,' "$out"
sed 's/.*"profile"//' "$out" | grep -oE '"seconds": [0-9.e+-]+' | cut -d ' ' -f 2 >seconds
# shellcheck disable=SC2016 # awk's own fields
check "the rows' seconds are within those of the steps" awk 'NR == 1 {all = $1} NR > 1 {sum += $1} END {exit !(sum > 0 && sum <= all)}' seconds

expect_status 0 "$TERCET" train run.yaml output=two --profile=2 -n 2
table
expect_grep '^steps 3 to 4 are in two/trace.json' "$err"
trace two 2
check "the same bits on two ranks" cmp -s plain/last/model.safetensors two/last/model.safetensors

# As many steps as there are; a run that goes on; the other backends.
expect_status 0 "$TERCET" train run.yaml output=short train.steps=2 --profile=9 train.recompute=full
expect_grep '^steps 1 to 2 are in short/trace.json' "$err"
expect_status 0 "$TERCET" train run.yaml output=short train.steps=3 --profile=1 --resume --allow-change train.steps \
    backend.name=guarded train.recompute=none
expect_grep '^steps 3 to 3 are in short/trace.json' "$err"
expect_status 0 "$TERCET" train run.yaml output=short --overwrite train.steps=2
check "--overwrite removes a trace" test ! -e short/trace.json

# The plan has what it takes.
expect_status 0 "$TERCET" train run.yaml output=planned --dry-run --profile
expect_grep '^ +profile +[0-9.]+ MB$' "$out"
expect_status 0 "$TERCET" train run.yaml output=planned --dry-run
expect_no_grep '^ +profile ' "$out"

# Wrong.
for wrong in 0 -1 x 1.5 1001; do
    expect_status 2 "$TERCET" train run.yaml output=wrong "--profile=$wrong"
    expect_grep '^tercet train: --profile: expected a whole number from 1 to 1000' "$err"
done
expect_status 0 "$TERCET" train run.yaml output=hindered train.steps=2
mkdir hindered/trace.json
expect_status 1 "$TERCET" train run.yaml output=hindered --profile -n 2 --resume --allow-change train.steps
expect_grep '^tercet: rank 0: hindered/trace.json: cannot write it: Is a directory' "$err"
check "one message" test "$(grep -c '^tercet: ' "$err")" -eq 1
finish
