#!/bin/bash
# Wrong input of `tercet train`: each is refused with status 2 and one message that names the place, before text is
# read or anything is written; what goes wrong later leaves no half of anything.
# shellcheck source=tests/system/lib.sh disable=SC2016,SC2317 # functions and texts for `damage` and `expect_status`
. "$TEST_SOURCE/system/lib.sh" || exit 1
cd "$scratch" || exit 1

for i in $(seq 1 40); do echo "{\"text\": \"Line $i of a text that is as short as can be.\"}"; done >train.jsonl
head -n 5 train.jsonl >eval.jsonl
"$TERCET" tokenizer train train.jsonl --vocab-size 280 -o tokenizer 2>/dev/null >/dev/null || exit 1
cat >run.yaml <<'YAML'
output: out
model:
  config: {model_type: llama, hidden_size: 12, num_attention_heads: 2, num_key_value_heads: 1, num_hidden_layers: 1,
    intermediate_size: 16, vocab_size: 280, max_position_embeddings: 64}
tokenizer: tokenizer
data: {train: [train.jsonl], eval: [eval.jsonl], seq_len: 16, cache: cache}
train: {steps: 2, global_batch: 6, micro_batch: 1, dtype: fp32}
YAML
sed -e '/^  config/,/^    inter/c\  from: model' -e '/^tokenizer/d' run.yaml >from.yaml

# refused PATTERN ARGUMENTS…: status 2, one message that matches, and neither output nor tokens appear.
refused() {
    local pattern=$1 place
    shift
    rm -rf out cache
    expect_status 2 "$TERCET" train "$@" </dev/null
    expect_grep "$pattern" "$err"
    check "one message" test "$(grep -c '^tercet: ' "$err")" = 1
    for place in out cache; do
        if [ -n "$(find "$place" -name '[!.]*' ! -name "$place" ! -name checksums.json 2>/dev/null)" ]; then
            not_ok "nothing is left in $place" "$(find "$place")"
        fi
    done
}

# ---- run files ----

refused '^tercet: nofile.yaml: .*No such file' nofile.yaml
refused '^tercet: "": this name is empty' ''
mkdir directory.yaml
refused '^tercet: directory.yaml: it is a directory' directory.yaml
head -c 3000 "$TERCET" >binary.yaml
refused '^tercet: binary.yaml:1:1: .*YAML' binary.yaml
printf 'output: caf\351\n' >latin.yaml
refused '^tercet: latin.yaml:1:12: .*UTF-8' latin.yaml
truncate -s 100M large.yaml
refused '^tercet: large.yaml: it is larger than' large.yaml
refused '^tercet: /dev/zero: it is larger than' /dev/zero
echo '- a list' >list.yaml
refused '^tercet: list.yaml:1:1: expected a map' list.yaml
mkfifo pipe.yaml
refused '^tercet: pipe.yaml: it is a pipe' pipe.yaml
{ sleep 0.3; cat run.yaml >pipe.yaml; } &
expect_status 0 "$TERCET" plan pipe.yaml
wait
expect_status 0 "$TERCET" plan <(cat run.yaml)
printf '\357\273\277' | cat - run.yaml | sed 's/$/\r/' >mark.yaml
expect_status 0 "$TERCET" plan mark.yaml

# All mistakes at once, each with its line and the nearest name.
cat >wrong.yaml <<'YAML'
outptu: out
model: {from: x, config: {}}
tokeniser: t
data: {train: 5, seq_len: many}
train: {steps: 3.5, global_batch: 2, micro_batch: 4, dtype: bf61}
YAML
expect_status 2 "$TERCET" train wrong.yaml optimzer.lr=1
for pattern in 'wrong.yaml:1:1: outptu: unknown' 'mean output\?' 'wrong.yaml:3:1: tokeniser' 'mean tokenizer\?' \
    'wrong.yaml:4:15: data.train' 'wrong.yaml:4:27: data.seq_len' 'wrong.yaml:5:16: train.steps' 'wrong.yaml:5:61: train.dtype' \
    'mean bf16\?' 'output is missing' 'model.from and model.config are both' 'micro_batch 4 is larger' \
    'command line: optimzer.lr' 'mean optimizer.lr\?'; do
    expect_grep "$pattern" "$err"
done

# ---- numbers ----

for setting in seed=-1 train.global_batch=1000000000000000000 data.seq_len=1000000000 data.seq_len=0 \
    parallel.threads=1000000 train.micro_batch=4611686018427387904 train.steps=9223372036854775808 train.steps=-1 \
    train.steps=1.5 parallel.zero=4 optimizer.lr=.nan optimizer.eps=0 checkpoint.keep=-1 schedule.warmup_steps=3 \
    train.lanes=2 parallel.watchdog=0 parallel.watchdog=-1 parallel.watchdog=.nan parallel.watchdog=.inf \
    parallel.watchdog=soon; do
    refused "${setting%%=*}" run.yaml "$setting"
done
refused '^tercet: command line: parallel.watchdog: 0 is too small, it must be at least 0.1$' run.yaml parallel.watchdog=0
expect_status 2 "$TERCET" train run.yaml train.steps=null train.epochs=0.01 schedule.warmup_steps=9
expect_grep '^tercet: schedule.warmup_steps: 9 .* 1$' "$err"
rm -rf cache
for ranks in 0 -3 100000 2x; do
    expect_status 2 "$TERCET" train run.yaml -n "$ranks"
done
refused '7 ranks share 6 micro-batches' run.yaml -n 7
check "ranks are counted before text is read" test ! -e cache

# ---- models ----

for setting in num_attention_heads=0 num_attention_heads=-5 num_attention_heads=99999999999 num_attention_heads=5 \
    hidden_size=0 hidden_size=9223372036854775807 hidden_size=1e3 num_key_value_heads=3 num_hidden_layers=0 \
    num_hidden_layers=2147483647 intermediate_size=-1 head_dim=7 vocab_size=4294967296 model_type=gpt2 model_type=5 \
    rope_theta=0 initializer_range=1e300 rms_norm_eps=-1 hidden_act=gelu tie_word_embeddings=2 attention_dropout=0.5 \
    'rope_scaling={rope_type: yarn, factor: 2}' 'rope_scaling={rope_type: linear}' 'architectures=[MixtralForCausalLM]' \
    'quantization_config={bits: 4}' eos_token_id=-5; do
    name=${setting%%=*}
    [ "$name" = hidden_size ] && name='(hidden_size|num_attention_heads)'
    refused "run.yaml:3: model.config: $name" run.yaml "model.config.$setting"
done
refused 'train.jsonl:1: the tokenizer tokenizer gives the id [0-9]+, but the embedding .* ends at 9$' run.yaml model.config.vocab_size=10
refused '^tercet: (memory|out): ' run.yaml model.config.hidden_size=1000000 model.config.intermediate_size=16000000
refused '^tercet: memory: the run needs' run.yaml data.seq_len=16777216 train.micro_batch=100 train.global_batch=100
check "memory is counted before text is read" test ! -e cache
expect_status 0 "$TERCET" train run.yaml --dry-run model.config.sliding=3 model.config.max_position_embeddings=8
expect_grep '^warning: .*sliding is not understood: .* kept' "$err"
expect_grep '^warning: data.seq_len 16 is beyond .*max_position_embeddings 8' "$err"

# ---- tokenizers ----

refused '^tercet: nodir: there is no such' run.yaml tokenizer=nodir
mkdir bare
cp tokenizer/tokenizer.json bare
refused '^tercet: bare: documents are to end in EOS' run.yaml tokenizer=bare
refused '^tercet: bare: documents are to begin with BOS' run.yaml tokenizer=bare data.add_eos=false data.add_bos=true
expect_status 0 "$TERCET" train run.yaml tokenizer=bare model.config.eos_token_id=0 --dry-run
head -c 500 tokenizer/tokenizer.json >bare/tokenizer.json
refused '^tercet: bare/tokenizer.json:[0-9]+:[0-9]+: .*JSON' run.yaml tokenizer=bare

# ---- text ----

line='{"text": "a line that is right"}'
: >empty.jsonl
printf '\n  \n' >blank.jsonl
printf '%s\n{"text": "abc\n' "$line" >broken.jsonl
printf '%s\n{"txt": "abc"}\n' "$line" >nofield.jsonl
printf '%s\n{"text": null}\n' "$line" >null.jsonl
printf '%s\n{"text": 5}\n' "$line" >number.jsonl
printf '%s\n{"text": "caf\351"}\n' "$line" >latin.jsonl
printf '{"text": ""}\n{"text": ""}\n' >single.jsonl
echo "$line" >name.csv
echo "$line" >plain.jsonl.gz
gzip -c train.jsonl | head -c 100 >cut.jsonl.gz
mkdir directory.jsonl
mkfifo pipe.jsonl
while read -r file pattern; do
    refused "^tercet: $file$pattern" run.yaml "data.train=$file"
done <<'LIST'
empty.jsonl : the file is empty
blank.jsonl : the file holds nothing
broken.jsonl :2:[0-9]+: not a line of JSON
nofield.jsonl :2: .*no field "text"
null.jsonl :2: .*null
number.jsonl :2: .*integer
latin.jsonl :2: byte [0-9]+ .*UTF-8
name.csv : cannot tell
plain.jsonl.gz : its name says gzip
cut.jsonl.gz : cannot uncompress
directory.jsonl : is a directory
pipe.jsonl : is not a regular file
nofile.jsonl : .*No such file
LIST
refused '^tercet: no.[.]jsonl: no file matches' run.yaml 'data.train=no?.jsonl'
expect_status 2 "$TERCET" train run.yaml data.train=single.jsonl
expect_grep 'no target token' "$err"
refused '^tercet: nofile.jsonl: ' run.yaml data.eval=nofile.jsonl
check "evaluation text is looked for before text is read" test ! -e cache

# ---- outputs ----

rm -rf out cache
touch file
ln -s nowhere dangling
ln -s loop loop
long=$(printf 'n%.0s' $(seq 300))
deep=$(printf 'd/%.0s' $(seq 1990))
for output in file file/x dangling dangling/x loop loop/x "$long" "$deep" /dev/null /proc/x; do
    refused "^tercet: ${output:0:100}" run.yaml "output=$output"
done
check "no directory of a path that is too long" test ! -e d
refused '^tercet: file/c: cannot make' run.yaml data.cache=file/c
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    # As a user who may not write here.
    chmod 755 . && chmod -R a+rX .
    mkdir closed
    program=$scratch/program
    printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$TERCET" >"$program"
    chmod 755 "$program"
    if "$program" version >/dev/null 2>&1; then
        real=$TERCET TERCET=$program
        refused '^tercet: out: cannot make this directory: Permission' run.yaml data.cache=/tmp
        refused '^tercet: closed: cannot write into this directory: Permission' run.yaml data.cache=/tmp output=closed
        refused '^tercet: closed/c: cannot make .*Permission' run.yaml data.cache=closed/c output=/tmp/never
        chmod 000 eval.jsonl
        refused '^tercet: eval.jsonl: .*Permission' run.yaml data.cache=/tmp output=/tmp/never
        chmod 644 eval.jsonl
        TERCET=$real
    fi
fi
mkdir place
ln -s place link
expect_status 0 "$TERCET" train run.yaml output="link/../place/sp äce ß/" eval.at_start=false
check "the run is where it was asked for" test -e "place/sp äce ß/last/model.safetensors"

# ---- model directories ----

expect_status 0 "$TERCET" train run.yaml output=made checkpoint.every=1 -n 5
# A header rewritten with sed keeps its length where both texts are as long.
damage() {
    rm -rf model
    cp -rL made/last model
    rm -r model/training
    weights=model/model.safetensors
    "$@"
}
rewrite() { sed -i "$1" "$weights"; }
damage truncate -s -100 model/model.safetensors
refused '^tercet: model/model.safetensors: .*truncated' from.yaml
damage truncate -s 5 model/model.safetensors
refused '^tercet: model/model.safetensors: .*too short' from.yaml
damage eval 'printf "\377\377\377\377\377\377\377\177" | dd of=$weights conv=notrunc status=none'
refused '^tercet: model/model.safetensors: the header should have' from.yaml
damage rewrite 's/"F32","shape":\[12,12\]/"BF1","shape":[12,12]/'
refused 'dtype BF1 is not supported' from.yaml
damage rewrite 's/"F32","shape":\[12,12\]/"I32","shape":[12,12]/'
refused 'I32 \[12, 12\], which holds no weights' from.yaml
damage rewrite 's/\[16,12\]/[12,16]/'
refused 'F32 \[12, 16\], but config.json asks for \[16, 12\]' from.yaml
damage rewrite 's/\[16,12\]/[16,92]/'
refused 'data_offsets' from.yaml
damage rewrite 's/model.norm.weight/model.nirm.weight/'
expect_status 2 "$TERCET" train from.yaml
expect_grep 'the tensor model.norm.weight is missing' "$err"
damage rewrite 's/"data_offsets":\[0,/"data_offsets":[4,/'
refused 'model.safetensors: ' from.yaml
# The last tensor's last element.
damage eval 'printf "\000\000\300\177" | dd of=$weights bs=1 seek=$(($(stat -c %s $weights) - 4)) conv=notrunc status=none'
rm -rf out cache
expect_status 2 "$TERCET" train from.yaml
expect_grep 'element [0-9]+ of [a-z_.]+ is nan' "$err"
check "weights that are not finite begin no output" test ! -e out
damage rm model/model.safetensors
refused '^tercet: model: it holds neither' from.yaml
damage rm model/config.json
refused '^tercet: model/config.json: .*No such file' from.yaml
damage eval ': >model/config.json'
refused '^tercet: model/config.json:1: ' from.yaml
damage sed -i 's/"model_type"/"model_tipe"/' model/config.json
refused 'model/config.json.*: model_type: it is missing' from.yaml

# ---- runs that are there ----

mv made out
before=$(find out -type f -exec cksum {} + | sort)
expect_status 2 "$TERCET" train run.yaml
expect_grep 'this directory holds a run' "$err"
sed 's/from: model/from: out\/last/' from.yaml >self.yaml
expect_status 2 "$TERCET" train self.yaml --overwrite
expect_grep '^tercet: out/last: the run is to start from this' "$err"
expect_status 2 "$TERCET" train run.yaml tokenizer=out/checkpoint-000001 --overwrite
expect_grep '^tercet: out/checkpoint-000001: the run is to start from this' "$err"
expect_status 2 "$TERCET" train run.yaml --resume=run.yaml
expect_status 2 "$TERCET" train run.yaml --resume=nodir
expect_status 2 "$TERCET" train run.yaml --resume=out/checkpoint-000001 --overwrite
expect_status 2 "$TERCET" train run.yaml checkpoint.every=1 --resume train.steps=1 --allow-change train.steps
expect_grep 'it stands after step 2, beyond the run.s 1 steps' "$err"
check "the run that was there is as it was" test "$before" = "$(find out -type f -exec cksum {} + | sort)"
truncate -s -1 out/checkpoint-000002/model.safetensors
expect_status 2 "$TERCET" train run.yaml checkpoint.every=1 --resume
expect_grep 'out/checkpoint-000002/model.safetensors: the newest checkpoint is damaged' "$err"
expect_grep 'resume=out/checkpoint-000001' "$err"

# ---- what happens on the way ----

# A last batch of one row, and evaluation, with more ranks than rows.
rm -rf out
rows=$("$TERCET" train run.yaml --dry-run --json 2>/dev/null | sed -nE 's/.*"train": \{[^}]*"rows_per_epoch": ([0-9]+).*/\1/p')
check "there are enough rows" test "${rows:-0}" -gt 10
expect_status 0 "$TERCET" train run.yaml -n 5 "train.global_batch=$((rows - 1))" data.eval=eval.jsonl
expect_grep '"step": 2, ' out/metrics.jsonl

# A file system, or a limit, that is full.
rm -rf out cache
limited() { (ulimit -f 8 && exec "$TERCET" "$@"); }
expect_status 0 "$TERCET" train run.yaml --dry-run
expect_status 1 limited train run.yaml log.tensorboard=false checkpoint.every=1
expect_grep 'tercet: out/checkpoint-000001.*: cannot write it: File too large' "$err"
check "no checkpoint is left in part" test -z "$(find out -name 'checkpoint*' -o -name last)"
check "one message" test "$(grep -c '^tercet: ' "$err")" = 1
rm -rf out
fill() { "$TERCET" train run.yaml --json -n 2 >/dev/full; }
expect_status 1 fill
check "one message" test "$(grep -c '^tercet: ' "$err")" = 1

# Text that grows once its checksum is made, while it is tokenized.
for _ in $(seq 30000); do echo "$line"; done >growing.jsonl
rm -rf out cache
"$TERCET" train run.yaml data.train=growing.jsonl >"$out" 2>"$err" &
pid=$!
while ! ls cache/*tmp* >/dev/null 2>&1 && kill -0 "$pid" 2>/dev/null; do sleep 0.001; done
echo "$line" >>growing.jsonl
wait "$pid"
check "a text that grew: status 1" test $? -eq 1
expect_grep 'growing.jsonl: the file changed while it was tokenized' "$err"
# One that grows all the time is found out in whichever of the two passes comes first.
while sleep 0.002; do echo "$line" >>growing.jsonl; done &
grower=$!
expect_status 1 "$TERCET" train run.yaml data.train=growing.jsonl
kill "$grower"
wait "$grower" 2>/dev/null
expect_grep 'growing.jsonl: the file changed while it was (read|tokenized)' "$err"
check "no tokens are kept of it" test -z "$(find cache -name 'tokens-*')"
check "and no output begun" test ! -e out

# A bare environment, and streams that are closed.
expect_status 0 env -i ${ASAN_OPTIONS:+"ASAN_OPTIONS=$ASAN_OPTIONS"} ${LSAN_OPTIONS:+"LSAN_OPTIONS=$LSAN_OPTIONS"} "$TERCET" train run.yaml
rm -rf out
silent() { "$TERCET" train run.yaml -n 2 <&- >&- 2>&-; }
expect_status 0 silent
check "a run without streams is a run" test -e out/last/model.safetensors

finish
