#!/bin/bash
# tercet inspect: model directories, checkpoints, safetensors and event files, sound and damaged.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1
goldens=$TEST_SOURCE/goldens

# A model directory: parameters are counted from its tensors.
cp -r "$goldens/gqa" model
expect_status 0 "$tercet" inspect model
expect_grep '^model +model$' "$out"
expect_grep '^family +llama$' "$out"
expect_grep '^parameters +93,300$' "$out"
expect_grep '^tensors +21$' "$out"
expect_grep '^  vocab_size: 331$' "$out"
expect_grep '^model.embed_tokens.weight +F32 +\[331, 60\] +79\.4 kB$' "$out"
expect_grep '^model.norm.weight +F32 +\[60\] +240 B$' "$out"
expect_status 0 "$tercet" inspect model/ --json
expect_json_line "$out"
expect_grep '"kind": "model"' "$out"
expect_grep '"supported": true, "parameters": 93300,' "$out"
expect_grep '"config": \{.*"num_hidden_layers": 2,' "$out"
expect_grep '\{"name": "model.norm.weight", "dtype": "F32", "shape": \[60\], "bytes": 240, "file": "model.safetensors"\}' "$out"

# Without weights the configuration says how many parameters there would be; the same number.
rm model/model.safetensors
expect_status 0 "$tercet" inspect model
expect_grep '^parameters +93,300 \(from config.json' "$out"

# Of a family that is unknown, everything that can be read is shown.
cp -r "$goldens/gqa" stranger
sed -i 's/"model_type": "llama"/"model_type": "stranger\\u001b[2J"/' stranger/config.json
expect_status 0 "$tercet" inspect stranger
expect_grep '^family +not usable here: .*stranger' "$out"
expect_grep '^parameters +93,300$' "$out"
expect_no_grep $'\033' "$out" "no escape sequence of a file reaches the terminal"
expect_status 0 "$tercet" inspect stranger --json
expect_grep '"supported": false, "problem": ".*stranger' "$out"

# One safetensors file.
expect_status 0 "$tercet" inspect "$goldens/gqa/model.safetensors"
expect_grep '^elements +93,300$' "$out"
expect_grep '^metadata +format: pt$' "$out"
expect_grep '^lm_head.weight +F32 +\[331, 60\]' "$out"
expect_status 0 "$tercet" inspect "$goldens/gqa/model.safetensors" --json
expect_json_line "$out"
expect_grep '"kind": "safetensors".*"bytes": 373200, "metadata": \{"format": "pt"\}' "$out"

# Event files, byte by byte as TensorBoard's format has it.
printf '%b' '\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7f\x4b\x22\x09\x00\x00\x00\x00\x00\x40\x8f\x40\x1a\x0d' \
    '\x62\x72\x61\x69\x6e\x2e\x45\x76\x65\x6e\x74\x3a\x32\x73\xae\x6b\x56\x1a\x00\x00\x00\x00\x00\x00\x00\x12' \
    '\x9b\xd8\x2d\x09\x00\x00\x00\x00\x00\x48\x8f\x40\x10\x01\x2a\x0d\x0a\x0b\x0a\x04\x6c\x6f\x73\x73\x15\x00' \
    '\x00\x60\x40\xbe\x0a\x6b\x7a\x25\x00\x00\x00\x00\x00\x00\x00\xea\xbc\x36\xf3\x09\x00\x00\x00\x00\x00\x5c' \
    '\x8f\x40\x10\x02\x2a\x18\x0a\x0b\x0a\x04\x6c\x6f\x73\x73\x15\x00\x00\x10\x40\x0a\x09\x0a\x02\x6c\x72\x15' \
    '\x00\x00\x00\x3e\xd6\x2e\x77\x3c' >events.out.tfevents.1.host.1.0
check "the event file has 135 bytes" test "$(wc -c <events.out.tfevents.1.host.1.0)" -eq 135
expect_status 0 "$tercet" inspect events.out.tfevents.1.host.1.0
expect_grep '^events +3$' "$out"
expect_grep '^time +3\.5 s$' "$out"
expect_grep '^loss +2 +1 +2 +2\.25 +2\.25 +3\.5$' "$out"
expect_grep '^lr +1 +2 +2 +0\.125 +0\.125 +0\.125$' "$out"
expect_status 0 "$tercet" inspect events.out.tfevents.1.host.1.0 --json
expect_json_line "$out"
expect_grep '\{"tag": "loss", "count": 2, "first_step": 1, "last_step": 2, "last": 2.25, "least": 2.25, "greatest": 3.5\}' "$out"
# Cut short: what could be read is shown, and the end is told.
head -c 120 events.out.tfevents.1.host.1.0 >cut.tfevents
expect_status 2 "$tercet" inspect cut.tfevents
expect_grep '^loss +1 +1 +1 +3\.5 ' "$out"
expect_grep '^tercet: .*cut.tfevents' "$err"

# Wrong input: status 2, nothing on standard output.
mkdir nothing
head -c 5000 "$goldens/gqa/model.safetensors" >cut.safetensors
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >lying.safetensors
: >empty.safetensors
cp -r "$goldens/gqa" broken
echo '{"model_type": ' >broken/config.json
cp -r "$goldens/gqa" list
echo '[1]' >list/config.json
for path in nowhere nothing cut.safetensors lying.safetensors empty.safetensors broken list "$goldens/versions.json"; do
    expect_status 2 "$tercet" inspect "$path"
    expect_grep "^tercet: $path" "$err"
    expect_empty "$out"
done
expect_status 2 "$tercet" inspect stranger --verify
expect_grep 'manifest' "$err"
expect_status 2 "$tercet" inspect stranger list

# A checkpoint, and the events of its run.
yes '{"text": "the cat sat on the mat"}' | head -n 40 >text.jsonl
expect_status 0 "$tercet" tokenizer train text.jsonl --vocab-size 265 -o tok
cat >run.yaml <<END
output: run
model: {config: $goldens/gqa/config.json}
tokenizer: tok
data: {train: [text.jsonl], seq_len: 16}
train: {steps: 2, global_batch: 2, micro_batch: 1, dtype: fp32}
parallel: {threads: 1}
END
expect_status 0 "$tercet" train run.yaml
expect_status 0 "$tercet" inspect run/last --verify
expect_grep '^checkpoint +run/last$' "$out"
expect_grep '^parameters +93,300$' "$out"
expect_grep '^tokenizer +265 tokens, ' "$out"
expect_grep '^step +2$' "$out"
expect_grep '^tokens seen +[0-9]+$' "$out"
expect_grep '^verified +all files match' "$out"
expect_status 0 "$tercet" inspect run/last --json
expect_grep '"kind": "checkpoint".*"training": \{"step": 2, "tokens_seen": ' "$out"
expect_status 0 "$tercet" inspect run/last/training/moment1.safetensors
expect_grep '^elements +93,300$' "$out"
for events in run/tensorboard/events.out.tfevents.*; do
    expect_status 0 "$tercet" inspect "$events"
    expect_grep '^[a-z/_]*loss +2 +1 +2 ' "$out"
done
expect_status 2 "$tercet" inspect run
expect_grep 'output of a run' "$err"
# One byte of the weights is changed.
printf '\x55' | dd of=run/last/model.safetensors bs=1 seek=5000 conv=notrunc status=none
expect_status 2 "$tercet" inspect run/last --verify
expect_grep '^tercet: run/last/model.safetensors: .*checksum' "$err"
expect_status 0 "$tercet" inspect run/last

finish
