#!/bin/bash
# The main job from end to end, in about three minutes: train a tokenizer and a small Llama on two ranks from the text
# in examples/data, then continue a prompt. Leaves everything in demo/. TERCET=path uses another program.
set -eu
cd "$(dirname "$0")/.."
tercet=${TERCET:-build/tercet}
prompt="And the LORD said unto Moses,"

say() {
    printf '\n== %s\n' "$*"
}

rm -rf demo
mkdir -p demo
say "A tokenizer of 2,048 entries from the sample text"
"$tercet" tokenizer train examples/data/english_train.jsonl examples/data/chinese_train.jsonl \
    --vocab-size 2048 -o demo/tokenizer

say "Training on two ranks (examples/demo.yaml)"
"$tercet" train examples/demo.yaml -n 2

first=$(sed -n '/"loss"/{s/.*"loss": \([0-9.]*\).*/\1/p;q}' demo/run/metrics.jsonl)
last=$(sed -n '/"loss"/s/.*"loss": \([0-9.]*\).*/\1/p' demo/run/metrics.jsonl | tail -n 1)
say "Loss at the start: $(printf %.4f "$first"), at the end: $(printf %.4f "$last")"

say "What it makes of a prompt"
printf '%s' "$prompt"
"$tercet" generate demo/run/last --prompt "$prompt" --max-tokens 60 --temperature 0.7 --seed 1

cat <<END

== Next
  The model is an ordinary Hugging Face directory: demo/run/last
  Curves:       tensorboard --logdir demo/run/tensorboard
  More steps:   $tercet train examples/demo.yaml -n 3 --resume --allow-change train.steps train.steps=2500
  Your text:    copy examples/demo.yaml, set data.train to your .jsonl or .txt files and output to a new directory,
                check with  $tercet train YOUR.yaml --dry-run
  Every key:    $tercet train --help-config
END
