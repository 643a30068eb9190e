#!/bin/bash
# tercet tokenizer: training, encoding, decoding; with $TERCET_SHARED, the ids that Hugging Face's tokenizers gives.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1

cat >text.jsonl <<'END'
{"text": "the cat sat on the mat, the cat sat on the hat", "id": 1}
{"text": "naïve café 你好世界 \ud83d\ude00\u0000 end"}

{"text": "the <|endoftext|> inside"}
END
printf 'a text file, the whole of it\r\nis one document\n' >more.txt

expect_status 0 "$tercet" tokenizer train text.jsonl more.txt --vocab-size 280 -o tok
expect_grep '^vocabulary +280$' "$out"
expect_grep '^merges +23$' "$out"
expect_grep '^documents +4$' "$out"
check "tokenizer.json is there" test -s tok/tokenizer.json
check "tokenizer_config.json is there" test -s tok/tokenizer_config.json
expect_status 0 "$tercet" tokenizer train text.jsonl more.txt --vocab-size 280 -o again --json
expect_json_line "$out"
expect_grep '"vocab_size": 280, "merges": 23, "documents": 4,' "$out"
expect_equal tok/tokenizer.json again/tokenizer.json "training twice gives the same bytes"
expect_status 0 "$tercet" tokenizer train more.txt text.jsonl --vocab-size 280 -o other
expect_equal tok/tokenizer.json other/tokenizer.json "the order of files leaves no trace"
gzip -k text.jsonl
expect_status 0 "$tercet" tokenizer train 'text.jsonl.gz' more.txt --vocab-size 280 -o other
expect_equal tok/tokenizer.json other/tokenizer.json "compressed text is the same text"
sed 's/"text"/"body"/' text.jsonl >body.jsonl
expect_status 0 "$tercet" tokenizer train body.jsonl more.txt --text body --vocab-size 280 -o other
expect_equal tok/tokenizer.json other/tokenizer.json "the text may have another field"

# Encoding one text, and back.
printf 'the cat, naïve café 你好 😀\n' >plain
expect_status 0 "$tercet" tokenizer encode tok plain
cp "$out" ids
expect_grep '^[0-9]+( [0-9]+)*$' ids
expect_status 0 "$tercet" tokenizer encode tok/tokenizer.json - <plain
expect_equal ids "$out" "standard input, and tokenizer.json by its name"
expect_status 0 "$tercet" tokenizer decode tok ids
expect_equal plain "$out" "decoding gives the text back, byte for byte"
expect_status 0 "$tercet" tokenizer encode tok plain --json
expect_json_line "$out"
expect_grep "^\{\"ids\": \[$(sed 's/ /, /g' ids)\], \"tokens\": \[\"the\"" "$out"
expect_grep "\"count\": $(wc -w <ids)\}$" "$out"
expect_status 0 "$tercet" tokenizer decode tok --json <ids
expect_text '{"text": "the cat, naïve café 你好 😀\n", "count": '"$(wc -w <ids)"'}' "$out"
: >empty
expect_status 0 "$tercet" tokenizer encode tok empty
expect_text "" "$out"
expect_status 0 "$tercet" tokenizer encode tok empty --json
expect_text '{"ids": [], "tokens": [], "count": 0}' "$out"

# Special tokens in a text are themselves, unless told otherwise.
printf 'a<|endoftext|>' >special
expect_status 0 "$tercet" tokenizer encode tok special
expect_grep ' 0$' "$out" "<|endoftext|> is id 0"
cp "$out" special.ids
expect_status 0 "$tercet" tokenizer encode tok special --no-special-in-text
check "… as ordinary text it is several ids" test "$(wc -w <"$out")" -gt 2
expect_status 0 "$tercet" tokenizer decode tok special.ids
expect_text 'a<|endoftext|>' "$out"
expect_status 0 "$tercet" tokenizer decode tok special.ids --skip-special
expect_text 'a' "$out"

# Line by line.
printf '"the cat"\r\n  "x\\u0000y\\n" \n""\n"last, without a newline"' >lines
expect_status 0 "$tercet" tokenizer encode tok lines --jsonl
cp "$out" lines.ids
check "a line out for each line in" test "$(wc -l <lines.ids)" -eq 4
expect_text '[]' <(sed -n 3p lines.ids) "an empty text has no ids"
expect_status 0 "$tercet" tokenizer decode tok lines.ids --jsonl
printf '"the cat"\n"x\\u0000y\\n"\n""\n"last, without a newline"\n' >lines.back
expect_equal lines.back "$out" "and back"

# Wrong input: status 2, with the place.
expect_status 2 "$tercet" tokenizer encode nowhere plain
expect_grep '^tercet: nowhere' "$err"
expect_status 2 "$tercet" tokenizer encode tok nofile
expect_grep '^tercet: nofile: ' "$err"
expect_status 2 "$tercet" tokenizer encode tok "$scratch"
expect_status 2 "$tercet" tokenizer encode tok --json --jsonl
printf 'ab\xff' >bad
expect_status 2 "$tercet" tokenizer encode tok bad
expect_grep '^tercet: bad: .*(byte|offset) ?2|^tercet: bad.*2' "$err"
expect_empty "$out"
for line in '"a" "b"' '' '{"a": 1}' '"a'; do
    printf '"good"\n%s\n' "$line" >wrong
    expect_status 2 "$tercet" tokenizer encode tok --jsonl <wrong
    expect_grep '^tercet: standard input:2' "$err" "line 2 is named: $line"
done
for ids in '1 x' '-1' '1.5' '99999999999'; do
    echo "$ids" >wrong
    expect_status 2 "$tercet" tokenizer decode tok wrong
    expect_grep '^tercet: wrong: expected a token id' "$err" "no id: $ids"
done
for ids in '[1, -1]' '[1, 2.0]' '[4294967296]' '5' '["a"]'; do
    echo "$ids" >wrong
    expect_status 2 "$tercet" tokenizer decode tok wrong --jsonl
    expect_grep '^tercet: wrong:1' "$err" "no ids: $ids"
done
expect_status 0 "$tercet" tokenizer decode tok --jsonl <<<'[70, 4000, 5000]'
expect_grep '^warning: 2 ids have no token .*4000$' "$err" "ids without a token are told"
expect_status 2 "$tercet" tokenizer train text.jsonl --vocab-size 280
expect_status 2 "$tercet" tokenizer train text.jsonl -o t
expect_status 2 "$tercet" tokenizer train text.jsonl --vocab-size 256 -o t
expect_status 2 "$tercet" tokenizer train text.jsonl --vocab-size 28x -o t
expect_status 2 "$tercet" tokenizer train nofile.jsonl --vocab-size 280 -o t
expect_status 2 "$tercet" tokenizer train text.jsonl --text body --vocab-size 280 -o t
expect_grep '^tercet: text.jsonl:1: ' "$err"
printf '{"text": "good"}\nbad\n{"text": null}\n' >mixed.jsonl
expect_status 2 "$tercet" tokenizer train mixed.jsonl --vocab-size 280 -o t
expect_grep '^tercet: mixed.jsonl:2' "$err"
check "nothing was written" test ! -e t
expect_status 0 "$tercet" tokenizer train mixed.jsonl --vocab-size 280 -o t --bad-lines skip
expect_grep '^warning: 1 documents dropped: not JSON; the first is mixed.jsonl:2' "$err"
expect_grep '^warning: .*mixed.jsonl:3' "$err"
expect_grep '^warning: the text has no more pairs' "$err"

# The goldens: their file is JSON with one value a line, so that awk can cut it. Each text is there as a JSON
# string, which is what --jsonl takes.
cut_golden() { # MODEL
    awk -v model="$1" '
    function close_list() { print "[" list "]" >(model "." name) }
    $0 ~ "^\"[a-z0-9_]+\": \\[$" && !inside { found = $0 == "\"" model "\": ["; inside = found; next }
    !inside { next }
    /^\](,?)$/ { if (name == "") inside = 0 }
    /^"text": / { sub(/^"text": /, ""); sub(/,$/, ""); print >(model ".text"); next }
    /^"decoded": / { sub(/^"decoded": /, ""); print >(model ".decoded"); next }
    /^"(plain|special)": \[\],$/ { split($0, part, "\""); print "[]" >(model "." part[2]); next }
    /^"(plain|special)": \[$/ { split($0, part, "\""); name = part[2]; list = ""; next }
    /^[0-9]+,?$/ { sub(/,$/, ""); list = list (list == "" ? "" : ", ") $0; next }
    /^\],?$/ && name != "" { close_list(); name = ""; next }
    ' "$TERCET_SHARED/tokenizers/golden.json"
}
if [ -n "${TERCET_SHARED:-}" ]; then
    for model in deepseek_v3 llama3_1 qwen3 gpt2; do
        cut_golden "$model"
        directory=$TERCET_SHARED/tokenizers/$model
        for part in text plain special decoded; do
            check "$model: 46 cases ($part)" test "$(wc -l <"$model.$part")" -eq 46
        done
        expect_status 0 "$tercet" tokenizer encode "$directory" "$model.text" --jsonl
        expect_equal "$model.plain" "$out" "$model: plain ids"
        # What tokenizer_config.json adds (DeepSeek's BOS) is not part of it.
        expect_status 0 "$tercet" tokenizer encode "$directory" --special --jsonl <"$model.text"
        expect_equal "$model.special" "$out" "$model: ids with special tokens around"
        expect_status 0 "$tercet" tokenizer decode "$directory" "$model.plain" --jsonl
        expect_equal "$model.decoded" "$out" "$model: decoded"
    done
else
    echo "# TERCET_SHARED is not set: the goldens of other tokenizers are left out"
fi

finish
