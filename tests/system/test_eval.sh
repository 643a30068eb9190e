#!/bin/bash
# tercet eval: the loss against one made from the logits, the same bits on any number of ranks, wrong input.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1
mkdir tmp
export TMPDIR=$scratch/tmp

golden=$TEST_SOURCE/goldens/gqa # 64 positions, vocabulary 331
mkdir model
cp "$golden/config.json" "$golden/model.safetensors" model
for i in 1 2 3 4 5 6 7 8 9 10 11; do
    printf '{"text": "document %d: the cat sat on the mat, the cat sat on the hat %d times, naïve 你好", "n": %d}\n' $i $((i * i)) $i
done >text.jsonl
printf 'a text file\nis one document' >more.txt
"$tercet" tokenizer train text.jsonl more.txt --vocab-size 300 -o tok >/dev/null || exit 1
cp tok/* model

# result: the last output without what depends on time.
result() {
    sed -E 's/, "seconds": [^,}]*//' "$out"
}
field() {
    sed -E "s/.*\"$1\": ([^,}]*).*/\1/" "$out"
}

# One document in one row: its loss is the sum of -log softmax at its next tokens.
head -n 1 text.jsonl >one.jsonl
sed -E 's/.*"text": "([^"]*)".*/\1/' one.jsonl | tr -d '\n' >one.txt
expect_status 0 "$tercet" tokenizer encode model one.txt --special
ids="$(tr ' ' , <"$out"),0"
expect_status 0 "$tercet" logits model --ids "$ids"
sed 's/^{"logits": \[\[//; s/\]\]}$//; s/\], \[/\n/g' "$out" | tr -d , |
    awk -v ids="$ids" '
        BEGIN { n = split(ids, id, ",") }
        NR < n { s = 0; for (i = 1; i <= NF; i++) s += exp($i); sum += log(s) - $(id[NR + 1] + 1) }
        END { printf "%.9f %d\n", sum, n - 1 }' >expected
expect_status 0 "$tercet" eval model --data one.jsonl --seq-len 64 --json
expect_json_line "$out"
# shellcheck disable=SC2016 # awk's own fields
check "one document: loss_sum and tokens as the logits give them" \
    awk -v got="$(field loss_sum)" -v tokens="$(field tokens)" \
    '{ d = got - $1; exit !(tokens == $2 && d < 2e-6 * $1 && -d < 2e-6 * $1) }' expected
check "loss is loss_sum over tokens, perplexity its exponential" \
    awk -v l="$(field loss)" -v s="$(field loss_sum)" -v t="$(field tokens)" -v p="$(field perplexity)" \
    'BEGIN { a = l - s / t; b = log(p) - l; exit !(a * a < 1e-24 && b * b < 1e-24) }'
one=$(field loss_sum)
expect_status 0 "$tercet" eval model --data one.txt --seq-len 64 --json
check "the same text as a .txt file" test "$(field loss_sum)" = "$one"

# The same bits on any number of ranks, threads, and for the guarded backend; cut in rows of any length.
expect_status 0 "$tercet" eval model --data text.jsonl more.txt --seq-len 13 --json
result >all
expect_grep '"documents": 12, ' all
expect_grep '"seq_len": 13' all
for more in '-n 1' '-n 2' '-n 3' '-n 5' '--threads 1' '--threads 3' '--backend guarded -n 2'; do
    # shellcheck disable=SC2086
    expect_status 0 "$tercet" eval model --data text.jsonl --data more.txt --seq-len 13 --json $more
    expect_equal all <(result) "the same bits with $more"
done
if find_mpirun; then
    # The MPI library leaks in plug-ins that it unloads, so no suppression can name them.
    expect_status 0 env ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" "${mpirun[@]}" -n 2 \
        "$tercet" eval model --data text.jsonl more.txt --seq-len 13 --json
    expect_equal all <(result) "the same bits with messages"
fi
expect_status 0 "$tercet" eval model --data text.jsonl more.txt --seq-len 13 --json --dtype bf16
bf16=$(field loss)
check "bf16 acts, and is near" awk -v a="$bf16" -v b="$(sed -E 's/.*"loss": ([^,]*).*/\1/' all)" \
    'BEGIN { d = (a - b) / b; exit !(d != 0 && d < 0.01 && -d < 0.01) }'
expect_status 0 "$tercet" eval model --data text.jsonl
expect_grep '^loss +[0-9]+\.[0-9]{6}$' "$out"
expect_grep '^perplexity +[0-9.]+$' "$out"
expect_grep '^rows +[0-9,]+ of 64 positions$' "$out" "the model's positions, being fewer than 1024"

# What training says of the same model and text, to the last bit.
cat >run.yaml <<'YAML'
output: run
model: {from: model}
data: {train: [more.txt], eval: [text.jsonl, more.txt], seq_len: 13}
train: {steps: 1, global_batch: 1, micro_batch: 1, dtype: fp32}
YAML
expect_status 0 "$tercet" train run.yaml
trained=$(sed -nE 's/.*"step": 0, "eval_loss": ([^,]*),.*/\1/p' run/metrics.jsonl)
check "training's evaluation gives the same bits" test "$trained" = "$(sed -E 's/.*"loss": ([^,]*), "perp.*/\1/' all)"
check "there was one" test -n "$trained"

# Rows of a document each, cut at their end, as training has them.
expect_status 0 "$tercet" eval model --data text.jsonl more.txt --seq-len 13 --no-pack --json
result >unpacked
expect_grep '"rows": 12, ' unpacked
expect_grep '"truncated_documents": 1[0-2], "truncated_tokens": [1-9]' unpacked
expect_status 0 "$tercet" eval model --data text.jsonl more.txt --seq-len 13 --no-pack --json -n 3
expect_equal unpacked <(result) "the same bits with -n 3"
expect_status 0 "$tercet" train run.yaml data.pack=false output=run-unpacked
trained=$(sed -nE 's/.*"step": 0, "eval_loss": ([^,]*),.*/\1/p' run-unpacked/metrics.jsonl)
check "training's evaluation of such rows gives the same bits" \
    test "$trained" = "$(sed -E 's/.*"loss": ([^,]*), "perp.*/\1/' unpacked)"
expect_status 0 "$tercet" eval model --data text.jsonl --seq-len 13 --no-pack
expect_grep '^truncated +[0-9]+ documents, by [0-9,]+ tokens$' "$out"

# Lines that are no documents end it, or are left out and told.
{
    head -n 2 text.jsonl
    echo '{"text": 7}'
    tail -n +3 text.jsonl
    echo '{"text"'
} >bad.jsonl
expect_status 2 "$tercet" eval model --data bad.jsonl --seq-len 13
expect_grep 'bad\.jsonl:3' "$err"
check "one message" test "$(grep -c '^tercet: ' "$err")" -eq 1
expect_status 2 "$tercet" eval model --data bad.jsonl --seq-len 13 --bad-lines error -n 2
expect_status 0 "$tercet" eval model --data text.jsonl --seq-len 13 --json
result | sed 's/"dropped_documents": 0/"dropped_documents": 2/' >good
expect_status 0 "$tercet" eval model --data bad.jsonl --seq-len 13 --json --bad-lines skip -n 2
expect_equal good <(result) "two lines are left out"
expect_grep '^warning: 1 documents dropped: .*; the first is bad\.jsonl:3$' "$err"
check "each reason once" test "$(grep -c ' documents dropped: ' "$err")" -eq 2
expect_status 0 "$tercet" eval model --data bad.jsonl --seq-len 13 --bad-lines=skip
expect_grep '^dropped +2 documents$' "$out"
expect_status 2 "$tercet" eval model --data bad.jsonl --bad-lines ignore
expect_grep '^tercet eval: --bad-lines: give error or skip, not "ignore"' "$err"

gzip -k text.jsonl
sed 's/"text"/"body"/' text.jsonl >body.jsonl
expect_status 0 "$tercet" eval model --data text.jsonl.gz more.txt --seq-len 13 --json
expect_equal all <(result) "compressed text"
expect_status 0 "$tercet" eval model --data body.jsonl more.txt --text body --seq-len 13 --json
expect_equal all <(result) "another field"
check "no temporary file is left" test -z "$(ls -A tmp)"

refused() {
    local pattern=$1
    shift
    expect_status 2 "$tercet" eval "$@"
    expect_empty "$out" "nothing printed"
    expect_grep "$pattern" "$err"
    check "no temporary file is left" test -z "$(ls -A tmp)"
}
refused 'which model'
refused 'which text' model
refused 'no such model directory' nowhere --data text.jsonl
refused 'nofile.jsonl' model --data nofile.jsonl
refused 'nofile.jsonl' model --data nofile.jsonl -n 2
refused '65 positions are more than the model.s 64' model --data text.jsonl --seq-len 65
refused 'seq-len: expected' model --data text.jsonl --seq-len 0
refused '-n: expected' model --data text.jsonl -n 0
refused 'expected fp32 or bf16' model --data text.jsonl --dtype fp8
printf '{"text": "fine"}\n{"text": 3}\n' >bad.jsonl
refused 'bad.jsonl:2' model --data bad.jsonl
: >empty.jsonl
refused 'empty.jsonl' model --data empty.jsonl
mkdir bare
cp "$golden/config.json" "$golden/model.safetensors" bare
refused 'tokenizer' bare --data text.jsonl
mkdir small
cp "$golden/../bias_linear/config.json" "$golden/../bias_linear/model.safetensors" tok/* small
refused 'vocabulary|embedding' small --data text.jsonl

# Weights that overflow on the way: found while working, so 1.
mkdir broken
cp model/* broken
poison broken/model.safetensors
expect_status 1 "$tercet" eval broken --data text.jsonl -n 2
expect_grep 'the loss is -?(nan|inf)' "$err"
finish
