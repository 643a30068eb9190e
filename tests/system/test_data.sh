#!/bin/bash
# tercet data: what is counted, what is dropped and truncated, with places.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1
mkdir tmp
export TMPDIR=$scratch/tmp

# 257 tokens: every byte is one, and nothing is merged, so tokens can be counted by hand.
echo '{"text": "abc"}' >abc.jsonl
expect_status 0 "$tercet" tokenizer train abc.jsonl --vocab-size 257 -o tok

# 5 documents of 3, 1, 0, 9 and 4 bytes, each with its EOS.
cat >good.jsonl <<'END'
{"text": "abc"}

{"text": "x"}
{"text": ""}
{"text": "123456789"}
END
printf 'file' >note.txt
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok
expect_grep '^files +2$' "$out"
expect_grep '^documents +5$' "$out"
expect_grep '^text +17 B$' "$out"
expect_grep '^tokens +22 \(without BOS, with EOS;' "$out"
expect_grep '^shortest +1 tokens$' "$out"
expect_grep '^mean +4\.4 tokens$' "$out"
expect_grep '^longest +10 tokens: .*good\.jsonl:5$' "$out"
expect_grep '^blank lines +1$' "$out"
expect_grep '^dropped +0$' "$out"
expect_grep '^ +1 – 1 +1 +20\.0%$' "$out"
expect_grep '^ +3 – 4 +1 +20\.0%$' "$out"
expect_grep '^ +5 – 8 +1 +20\.0%$' "$out"
expect_grep '^ +9 – 16 +1 +20\.0%$' "$out"
expect_no_grep '^rows' "$out"
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok --json
expect_json_line "$out"
expect_grep '^\{"files": 2, "documents": 5, "text_bytes": 17, "tokens": 22, "bos": false, "eos": true, ' "$out"
expect_grep '"shortest": 1, "longest": 10, ' "$out"
expect_grep '"histogram": \[\{"from": 1, "to": 1, "documents": 1\}, \{"from": 2, "to": 2, "documents": 1\}, ' "$out"
expect_grep '"dropped": \{"documents": 0, "reasons": \[\]\}' "$out"
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok --json --no-eos
expect_grep '"documents": 4, "text_bytes": 17, "tokens": 17, "bos": false, "eos": false' "$out"
expect_grep '"reasons": \[\{"reason": "no_tokens", "documents": 1, "first": ".*good.jsonl:4"\}\]' "$out"
zstd -q good.jsonl 2>/dev/null || xz -k good.jsonl 2>/dev/null || gzip -k good.jsonl
expect_status 0 "$tercet" data good.jsonl.*z* --tokenizer tok --json
expect_grep '"files": 1, "documents": 4, "text_bytes": 13, "tokens": 17,' "$out" "compressed text"

# Rows: 22 tokens are 6 rows of 4; 17 of them have a target. Not packed, four documents are longer than 3.
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok --seq-len 4
expect_grep '^rows +6 of 4 positions$' "$out"
expect_grep '^targets +17$' "$out"
expect_grep '^truncated +0 \(packed' "$out"
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok --seq-len 4 --no-pack
expect_grep '^rows +5 of 4 positions$' "$out"
expect_grep '^truncated +2 documents lose 7 tokens; the first is .*good\.jsonl:5$' "$out"
expect_status 0 "$tercet" data good.jsonl note.txt --tokenizer tok --seq-len 4 --no-pack --json
expect_grep '"truncated": \{"documents": 2, "tokens": 7, "first": ".*good.jsonl:5"\}, "seq_len": 4, "pack": false, "rows": 5, "targets": 10' "$out"

# Lines that cannot be used are counted by reason, each with its first place.
printf '{"text": "a"}\nno json\n[1]\n{"body": 1}\n{"text": null}\n{"text": 5}\nnor this\n{"text": "\xff"}\n' >bad.jsonl
expect_status 0 "$tercet" data bad.jsonl --tokenizer tok
expect_grep '^documents +1$' "$out"
expect_grep '^dropped +7$' "$out"
expect_grep '^ +2  not JSON; the first is .*bad\.jsonl:2$' "$out"
expect_grep '^ +1  no JSON object; the first is .*bad\.jsonl:3$' "$out"
expect_grep '^ +1  without the text field; the first is .*bad\.jsonl:4$' "$out"
expect_grep '^ +2  with a text field that is no string; the first is .*bad\.jsonl:5$' "$out"
expect_grep '^ +1  not UTF-8; the first is .*bad\.jsonl:8$' "$out"
expect_status 0 "$tercet" data bad.jsonl --tokenizer tok --json
expect_grep '"dropped": \{"documents": 7, "reasons": \[\{"reason": "bad_json", "documents": 2, "first": ".*bad.jsonl:2"\}' "$out"

# A run file: its training and evaluation sets, as the run would see them.
cat >run.yaml <<END
output: run
model: {config: config.json}
tokenizer: tok
data: {train: [good.jsonl, bad.jsonl], eval: [note.txt], seq_len: 4}
train: {steps: 2, global_batch: 4, micro_batch: 1}
END
expect_status 0 "$tercet" data run.yaml
expect_grep '^data\.train$' "$out"
expect_grep '^data\.eval$' "$out"
expect_grep '^tokens +19 \(' "$out"
expect_grep '^tokens +5 \(' "$out"
expect_grep 'Training will refuse them, unless data.bad_lines is skip' "$out"
expect_grep '^steps an epoch +2 of 4 rows$' "$out"
expect_status 0 "$tercet" data run.yaml --json data.bad_lines=skip data.pack=false
expect_json_line "$out"
expect_grep '^\{"files": 2, .*"pack": false, .*"eval": \{"files": 1, "documents": 1, "text_bytes": 4, "tokens": 5,' "$out"
expect_status 0 "$tercet" data run.yaml data.bad_lines=skip data.add_bos=true
expect_grep 'with BOS, with EOS' "$out"
check "no run was begun" test ! -e run

# Wrong input.
expect_status 2 "$tercet" data
expect_status 2 "$tercet" data good.jsonl
expect_grep 'give its tokenizer too' "$err"
expect_status 2 "$tercet" data run.yaml --seq-len 5
expect_status 2 "$tercet" data nofile.jsonl --tokenizer tok
expect_grep '^tercet: nofile.jsonl: ' "$err"
expect_status 2 "$tercet" data good.jsonl --tokenizer nowhere
expect_grep '^tercet: nowhere' "$err"
expect_status 2 "$tercet" data good.jsonl --tokenizer tok --seq-len 0
expect_status 2 "$tercet" data good.jsonl --tokenizer tok --text body
expect_status 2 "$tercet" data run.yaml data.sequence=4 trian.steps=5
check "both mistakes are told" test "$(grep -c '^tercet: ' "$err")" -eq 2
expect_empty "$out"
expect_status 2 "$tercet" data nowhere.yaml
printf '{"text": "a"}\n' >one.jsonl
expect_status 2 "$tercet" data one.jsonl --tokenizer tok --no-eos --seq-len 4
expect_grep 'target' "$err" "a data set without any target is refused"

# Stopped by a signal, it leaves nothing behind either.
yes '{"text": "the cat sat on the mat"}' | head -n 3000000 >large.jsonl
"$tercet" data large.jsonl --tokenizer tok >"$out" 2>"$err" &
process=$!
for _ in $(seq 100); do
    [ -z "$(ls tmp)" ] || break
    sleep 0.05
done
kill -TERM "$process"
wait "$process"
check "SIGTERM gives 143" test $? -eq 143
expect_grep "^stopped by signal 15" "$err"
check "no temporary file is left" test -z "$(ls -A tmp)"

finish
