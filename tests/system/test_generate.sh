#!/bin/bash
# tercet generate: greedy text is what the logits say, sampling, the ways to give a prompt, where it ends, wrong input.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1

# A model with random weights (64 positions, vocabulary 331) and a tokenizer that is trained here.
golden=$TEST_SOURCE/goldens/gqa
mkdir model
cp "$golden/config.json" "$golden/model.safetensors" model
printf '{"text": "the cat sat on the mat, the cat sat on the hat; a hat, a mat, a cat"}\n{"text": "naïve 你好"}\n' >text
mv text text.jsonl
expect_status 0 "$tercet" tokenizer train text.jsonl --vocab-size 280 -o tok
cp tok/tokenizer.json tok/tokenizer_config.json model

# ids KEY: the array of that name in the last output, with commas.
ids() {
    sed -E "s/.*\"$1\": \[([^]]*)\].*/\1/; s/ //g" "$out"
}

expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 20 --json
expect_json_line "$out"
expect_grep '"finish": "(length|eos)"' "$out"
cp "$out" greedy
prompt=$(ids prompt_ids)
greedy=$(ids output_ids)
printf 'the cat' >prompt
expect_status 0 "$tercet" tokenizer encode model prompt --special
expect_text "$prompt" <(tr ' ' , <"$out") "the prompt's ids are the tokenizer's"
check "twenty ids, or an end before" test "$(tr , '\n' <<<"$greedy" | wc -l)" -le 20

# Each greedy id is the largest logit of what stands before it.
expect_status 0 "$tercet" logits model --ids "$prompt,$greedy"
sed 's/^{"logits": \[\[//; s/\]\]}$//; s/\], \[/\n/g' "$out" | tr -d , |
    awk '{ best = 1; for (i = 2; i <= NF; i++) if ($i > $best) best = i; print best - 1 }' >best
count=$(tr , '\n' <<<"$prompt" | wc -l)
expect_text "$greedy" <(head -n -1 best | tail -n +"$count" | paste -sd,) "greedy ids are the largest logits"

for more in '--threads 1' '--threads 3' '--backend guarded' '--top-k 1 --temperature 3 --seed 9' \
    '--top-p 1e-9 --temperature 2'; do
    # shellcheck disable=SC2086
    expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 20 --json $more
    expect_text "$greedy" <(ids output_ids) "the same ids with $more"
done

# The text is the ids' text; the prompt comes from an option, a file or standard input.
expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 20
cp "$out" text
tr , ' ' <<<"$greedy" >greedy.ids
expect_status 0 "$tercet" tokenizer decode model greedy.ids --skip-special
expect_text "$(cat text)" "$out" "the text is what the ids say"
expect_status 0 "$tercet" generate model --prompt-file prompt --max-tokens 20
expect_equal text "$out" "--prompt-file"
expect_status 0 "$tercet" generate model - --max-tokens 20 <prompt
expect_equal text "$out" "standard input"

# Sampling: the seed decides.
sample() {
    local file=$1
    shift
    expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 30 --temperature 1.5 --json "$@"
    ids output_ids >"$file"
}
sample one --seed 1
sample again --seed 1
sample two --seed 2
sample k5 --seed 1 --top-k 5
sample p5 --top-p 0.5
sample p5_42 --seed 42 --top-p 0.5
expect_equal one again "one seed, one text"
expect_equal p5 p5_42 "the seed is 42 unless given"
check "another seed, another text" bash -c '! cmp -s one two'
check "top-k acts" bash -c '! cmp -s one k5'
check "top-k is not greedy" bash -c '! grep -qx "'"$greedy"'" k5'
expect_status 0 "$tercet" generate model --prompt a --max-tokens 2 --top-k 3
expect_grep 'do nothing at temperature 0' "$err"

# An empty prompt begins from BOS: the tokenizer's, or config.json's; without any it is refused.
rm model/tokenizer_config.json
for empty in '--prompt=' ''; do
    # shellcheck disable=SC2086
    expect_status 0 "$tercet" generate model $empty --max-tokens 3 --json
    expect_text 1 <(ids prompt_ids) "it begins from config.json's BOS"
done
sed -i 's/"bos_token_id": 1/"bos_token_id": null/' model/config.json
expect_status 2 "$tercet" generate model --prompt ''
expect_grep 'it is empty, and this model has no BOS' "$err"

# It ends at any of config.json's EOS, whose id is given and whose text is not, and at the tokenizer's.
first=${greedy%%,*}
sed -i "s/\"eos_token_id\": 2/\"eos_token_id\": [7, $first]/" model/config.json
expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 20 --json
expect_grep "\"output_ids\": \[$first\], \"text\": \"\", \"finish\": \"eos\"" "$out"
sed -i "s/\"eos_token_id\": \[7, $first\]/\"eos_token_id\": null/" model/config.json
expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens 2 --json
expect_grep "\"output_ids\": \[$first, [0-9]+\], .*\"finish\": \"length\"" "$out"

# The context: the last token needs no place in it.
expect_status 0 "$tercet" generate model --prompt 'the cat' --json
check "by default, what the context has room for" test "$(ids output_ids | tr , '\n' | wc -l)" -eq $((64 - count + 1))
expect_status 0 "$tercet" generate model --prompt 'the cat' --max-tokens $((64 - count + 1))
expect_status 2 "$tercet" generate model --prompt 'the cat' --max-tokens $((64 - count + 2))
expect_grep 'a context of 65 tokens is longer than the model.s 64 positions' "$err"
printf 'q%.0s' {1..65} >long
expect_status 2 "$tercet" generate model --prompt-file long
expect_grep 'a context of 65 tokens is longer' "$err"

refused() {
    local pattern=$1
    shift
    expect_status 2 "$tercet" generate "$@"
    expect_empty "$out" "nothing printed"
    expect_grep "$pattern" "$err"
}
refused 'chat templates are not supported in this version' model --prompt a --chat
refused 'which model' --prompt a
refused 'no such model directory' nowhere --prompt a
refused 'nofile' model --prompt-file nofile
refused 'three ways to give one prompt' model --prompt a --prompt-file prompt
refused 'three ways to give one prompt' model - --prompt a
refused 'one model at a time' model 'the cat'
refused 'max-tokens: expected' model --prompt a --max-tokens 0
refused 'max-tokens: expected' model --prompt a --max-tokens 2x
refused 'temperature: expected' model --prompt a --temperature -1
refused 'temperature: expected' model --prompt a --temperature nan
refused 'top-p: 0 would leave no token' model --prompt a --top-p 0
refused 'top-p: expected' model --prompt a --top-p 1.1
refused 'top-k: expected' model --prompt a --top-k -1
refused 'seed: expected' model --prompt a --seed x
refused 'expected fp32 or bf16' model --prompt a --dtype int8
printf 'a\377b' >latin
refused 'UTF-8' model --prompt-file latin
expect_grep 'latin' "$err" "the file is named"
mkdir bare
cp "$golden/config.json" "$golden/model.safetensors" bare
refused 'tokenizer' bare --prompt a

# A tokenizer with more tokens than the model has embeddings.
mkdir small
cp -r "$golden/../bias_linear/config.json" "$golden/../bias_linear/model.safetensors" tok/* small
refused 'beyond the model.s vocabulary of 131' small --prompt 'the cat 你好'

# Weights that are not numbers: found while working.
# Weights that overflow on the way: found while working, so 1.
mkdir broken
cp model/* broken
poison broken/model.safetensors
expect_status 1 "$tercet" generate broken --prompt a
expect_grep 'logit of token [0-9]+ at position [0-9]+ is -?(nan|inf)' "$err"

if [ -e /dev/full ]; then
    "$tercet" generate model --prompt a >/dev/full 2>"$err"
    check "a full disk is status 1" test $? -eq 1
    check "and one message" test "$(grep -c 'tercet: standard output' "$err")" -eq 1
fi

# A signal ends it after the token at hand: 128 + its number.
sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 4000000/' model/config.json
"$tercet" generate model --prompt 'the cat' --max-tokens 3000000 --threads 1 >long.out 2>"$err" &
for _ in $(seq 100); do
    [ -s long.out ] && break
    sleep 0.1
done
kill -TERM $!
wait $!
check "SIGTERM ends it with 143" test $? -eq 143
check "with the text so far" test -s long.out
finish
