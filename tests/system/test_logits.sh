#!/bin/bash
# tercet logits: shape, digits, backends, and every wrong input.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1
model=$TEST_SOURCE/goldens/gqa # vocabulary 331, 64 positions

# rows FILE: the logits, a row a line, with blanks between them.
rows() {
    sed 's/^{"logits": \[\[//; s/\]\]}$//; s/\], \[/\n/g' "$1" | tr -d ,
}

expect_status 0 "$tercet" logits "$model" --ids 5,17,330,0
cp "$out" four
expect_json_line four
expect_empty "$err"
rows four >four.rows
check "four rows of 331 numbers" awk 'NF != 331 { exit 1 } END { exit NR != 4 }' four.rows
expect_status 0 "$tercet" logits "$model" --ids ' 5 , 17,330 ,0 ' --json
expect_equal four "$out" "blanks between ids, and --json"

# Later tokens change nothing about earlier ones: the rows of a shorter sequence are the same bytes.
expect_status 0 "$tercet" logits "$model" --ids 5,17
rows "$out" >two.rows
head -n 2 four.rows >first.rows
expect_equal first.rows two.rows "the logits of a beginning"
expect_status 0 "$tercet" logits "$model" --ids 5,17,330,0 --threads 3
expect_equal four "$out" "three threads"
expect_status 0 "$tercet" logits "$model" --ids 5,17,330,0 --backend guarded
expect_equal four "$out" "the guarded backend"

# distance FILE FILE: the relative distance of two results lies within the bounds low … high.
# shellcheck disable=SC2317 # called through check
distance() {
    paste -d ' ' <(rows "$1") <(rows "$2") | awk -v low="$3" -v high="$4" '
        { n = NF / 2; for (i = 1; i <= n; i++) { d += ($i - $(i + n)) ^ 2; s += $i ^ 2 } }
        END { e = sqrt(d / s); print e; exit !(e >= low && e <= high) }'
}
expect_status 0 "$tercet" logits "$model" --ids 5,17,330,0 --backend reference
check "the reference backend, within fp32's rounding" distance four "$out" 0 1e-5
expect_status 0 "$tercet" logits "$model" --ids 5,17,330,0 --dtype bf16
check "bf16 acts, within its rounding" distance four "$out" 1e-4 5e-2
all=$(seq -s, 1 64)
expect_status 0 "$tercet" logits "$model" --ids "$all"
check "as many rows as the model has positions" test "$(rows "$out" | wc -l)" -eq 64

# Wrong input: status 2, one sentence, nothing on standard output.
refused() {
    local pattern=$1
    shift
    expect_status 2 "$tercet" logits "$@"
    expect_empty "$out" "nothing printed"
    expect_grep "$pattern" "$err"
}
refused 'longer than the model.s 64 positions \(max_position_embeddings\)' "$model" --ids "$all,65"
refused '331 at place 2 is beyond the model.s vocabulary of 331' "$model" --ids 1,2,331
refused '4294967296 is beyond every vocabulary' "$model" --ids 4294967296
refused 'there are no ids' "$model" --ids ''
refused 'there are no ids' "$model" --ids ' '
refused 'expected a token id at "x"' "$model" --ids 1,x
refused 'expected a token id at "-2"' "$model" --ids 1,-2
refused 'expected a token id at ",3"' "$model" --ids 1,,3
refused 'expected a token id at ""' "$model" --ids 1,
refused 'expected a comma at "2' "$model" --ids '1 2'
refused 'expected a comma at "\.5' "$model" --ids 1.5
refused 'which tokens' "$model"
refused 'which model' --ids 1
refused 'one model at a time' "$model" "$model" --ids 1
refused 'expected fp32 or bf16, not "fp16"' "$model" --ids 1 --dtype fp16
refused 'expected fp32 or bf16, not "float"' "$model" --ids 1 --dtype float
refused 'expected auto, cpu' "$model" --ids 1 --backend cuda
refused 'no such model directory' nowhere --ids 1
refused 'not a model directory' "$model/config.json" --ids 1
mkdir empty
refused 'config.json' empty --ids 1
cp "$model/config.json" empty
refused 'model.safetensors' empty --ids 1

# Weights that overflow on the way: found while working, so 1.
mkdir broken
cp "$model/config.json" "$model/model.safetensors" broken
size=$(stat -c %s broken/model.safetensors)
poison broken/model.safetensors
expect_status 1 "$tercet" logits broken --ids 1,2
expect_empty "$out"
expect_grep 'logit of token [0-9]+ at position 0 is -?(nan|inf)' "$err"
head -c $((size - 4)) "$model/model.safetensors" >broken/model.safetensors
refused 'model.safetensors' broken --ids 1

if [ -e /dev/full ]; then
    "$tercet" logits "$model" --ids 1,2 >/dev/full 2>"$err"
    check "a full disk is status 1" test $? -eq 1
    expect_grep 'standard output' "$err"
    check "and one message" test "$(grep -c tercet: "$err")" -eq 1
fi
finish
