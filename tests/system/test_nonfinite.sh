#!/bin/bash
# A loss that is not finite ends a run with status 1 before the update; the message names the step, the rank that
# had the bad micro-batch and the first op; the last checkpoint stays, and a run with sound weights goes on from it.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
cd "$scratch" || exit 1

golden=$TEST_SOURCE/goldens/gqa # 331 tokens of 60 numbers, fp32
for i in 0 1 2 3 4 5 6 7 8 9 10; do
    echo "{\"text\": \"document $i walks by the river in the morning $((i * i))\"}"
done >good.jsonl
"$TERCET" tokenizer train good.jsonl --vocab-size 280 -o tok >/dev/null 2>&1 || exit 1
cp good.jsonl text.jsonl
echo '{"text": "ZZZZZZ"}' >>text.jsonl # its token stands in no other document
zed=$(printf Z | "$TERCET" tokenizer encode tok -) || exit 1

# offset FILE TENSOR: where its bytes begin in a safetensors file.
offset() {
    local header begin
    header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    begin=$(head -c $((8 + header)) "$1" | tail -c "$header" |
        sed -E "s/.*\"$2\":\{[^}]*\"data_offsets\":\[([0-9]+),.*/\1/")
    echo $((8 + header + begin))
}

# poison DIR TENSOR ROW BYTES: a model like the golden one, the 60 numbers of one row (in printf's escapes) changed.
poison() {
    mkdir "$1"
    cp "$golden/config.json" "$golden/model.safetensors" tok/* "$1"
    for _ in {1..60}; do
        # shellcheck disable=SC2059 # the bytes are escapes
        printf "$4"
    done | dd of="$1/model.safetensors" bs=4 seek=$(($(offset "$1/model.safetensors" "$2") / 4 + 60 * $3)) \
        conv=notrunc status=none
}
# Weights that are not finite are refused when they are read, so the poison is of finite numbers. Zeros for the one
# token, and norms with next to no epsilon: its loss is that of a uniform guess, but each norm multiplies its
# gradient by 7e18. And a row of 3e38 in the head: logits beyond fp32.
poison row model.embed_tokens.weight "$zed" '\000\000\000\000'
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 2e-38/' row/config.json
poison head lm_head.weight 1 '\346\261\141\177'
poison sound model.norm.weight 0 '\000\000\200\077' # ones
check "a row was changed" test "$(cmp -l row/model.safetensors "$golden/model.safetensors" | wc -l)" -gt 200

# No shuffling, a document a row, six a step: the odd document is micro-batch 5 of step 2.
cat >run.yaml <<'EOF'
output: out
model: {from: row}
data: {train: [text.jsonl], seq_len: 48, pack: false, shuffle: false}
train: {steps: 4, global_batch: 6, micro_batch: 1, dtype: fp32}
optimizer: {lr: 1e-3}
checkpoint: {every: 1}
EOF

# one_message PATTERN: standard error has it once, and no other error.
one_message() {
    check "one message: $1" test "$(grep -cE "$1" "$err")" -eq 1
    check "one error" test "$(grep -c '^tercet: ' "$err")" -eq 1
}

# left OUTPUT STEPS: that many steps are in the metrics and the last checkpoint is theirs.
left() {
    check "$1: $2 steps in metrics.jsonl" test "$(grep -c '"loss"' "$1/metrics.jsonl")" -eq "$2"
    if [ "$2" -eq 0 ]; then
        check "$1: no checkpoint" test ! -e "$1/last"
    else
        check "$1: the last checkpoint" test "$(readlink "$1/last")" = "checkpoint-00000$2"
    fi
    check "$1: nothing half-written" test -z "$(find "$1" -name '*.tmp*')"
}

for ranks in 1 2 3; do
    expect_status 1 "$TERCET" train run.yaml output=out$ranks -n $ranks parallel.zero=$ranks
    one_message "step 2, rank $((5 % ranks)): loss is [0-9.]+ and gradient norm is (nan|inf).* came from block [01], op '.*' of the backward pass"
    expect_grep "nothing was updated" "$err"
    left out$ranks 1
done
expect_equal out1/last/model.safetensors out3/last/model.safetensors "the checkpoints of 1 and 3 ranks are equal"

# It is the same again after a resume; what is left is a sound checkpoint: it passes its manifest.
expect_status 1 "$TERCET" train run.yaml output=out2 -n 3 --resume
one_message "step 2, rank 2: loss is .* of the backward pass"
left out2 1

# Other data, and the run goes on from there.
expect_status 0 "$TERCET" train run.yaml output=good "data.train=[good.jsonl]" train.steps=2
left good 2

# Logits that are infinite from the first step on: nothing is saved. In bf16, recomputed, on another backend, too.
for setting in train.dtype=fp32 train.dtype=bf16 train.recompute=full backend.name=reference backend.name=guarded; do
    rm -rf head-out
    expect_status 1 "$TERCET" train run.yaml output=head-out model.from=head -n 2 "$setting"
    one_message "step 1, rank 0: loss is .* came from head, op 'loss_grad' of the backward pass"
    left head-out 0
done

# A learning rate beyond reason: the first update makes the second loss what it is.
expect_status 1 "$TERCET" train run.yaml output=wild model.from=sound optimizer.lr=1e38 -n 2
one_message "step 2, rank 0: .* the first value that is not finite came from .*, op '.*' of the"
expect_grep "lower the learning rate" "$err"
left wild 1

# With messages: the rank that had the micro-batch reports, once.
if find_mpirun; then
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
        expect_status 1 "${mpirun[@]}" -n 2 "$TERCET" train run.yaml output=messages
    check "one message" test "$(grep -cE "step 2, rank 1: loss is .* of the backward pass" "$err")" -eq 1
    left messages 1
fi
finish
