#!/bin/bash
# tercet doctor: its fields as text and as JSON, what it keeps, what it finds about MPI; and the share of the
# measured peak that training tells from then on.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET
cd "$scratch" || exit 1
export XDG_CACHE_HOME=$scratch/cache
peaks=cache/tercet/peaks.json
cores=$(nproc)

# A balanced JSON object: brackets outside of strings match, and nothing follows.
json_is_whole() {
    # shellcheck disable=SC2317 # called through check
    awk '{ text = text $0 "\n" }
         END {
             gsub(/\\./, "", text); gsub(/"[^"]*"/, "s", text)
             n = split(text, c, "")
             for (i = 1; i <= n; i++) {
                 if (depth == 0 && i > 1 && c[i] !~ /[ \n]/) exit 1
                 if (c[i] ~ /[{[]/) open[++depth] = c[i]
                 if (c[i] ~ /[]}]/ && open[depth--] != (c[i] == "}" ? "{" : "[")) exit 1
                 if (c[i] == "\"") exit 1
             }
             exit depth != 0 || c[1] != "{" || text ~ /,[ ]*[]}]/
         }' "$1"
}

# ---- a run before anything was measured ----

cp -r "$TEST_SOURCE/goldens/gqa" model
printf '{"text": "one document, the cat sat on the mat"}\n' >text.jsonl
"$tercet" tokenizer train text.jsonl --vocab-size 270 -o tok >/dev/null || exit 1
cp tok/* model
cat >run.yaml <<'YAML'
output: run
model: {from: model}
data: {train: [text.jsonl], seq_len: 64}
train: {steps: 3, global_batch: 1, micro_batch: 1, dtype: fp32}
parallel: {threads: 1}
checkpoint: {dtype: fp32}
YAML
expect_status 0 "$tercet" train run.yaml
check "peak_share is null before" test "$(grep -c '"peak_share": null' run/metrics.jsonl)" -eq 3
expect_no_grep 'of peak' "$err"

# ---- without measuring ----

expect_status 0 "$tercet" doctor --quick
expect_empty "$err"
for field in CPU cores memory products MPI GPUs oneDNN glibc; do
    expect_grep "^$field +[^ ]" "$out" "field $field"
done
expect_grep '^memory bandwidth +not measured' "$out"
expect_grep '^GPUs +none used by this version' "$out"
expect_grep "^  peak +not measured; run .tercet doctor" "$out"
expect_grep '^cores +'"$cores"' usable of [0-9]+' "$out"
check "nothing is kept" test ! -e cache
expect_status 0 "$tercet" doctor --quick --json
expect_json_line "$out"
check "JSON is whole" json_is_whole "$out"
expect_grep '"bandwidth": \{"bytes_per_second": null, "one_thread": null\}' "$out"
expect_grep '"peaks": \[\]' "$out"

# ---- measuring, over what is damaged ----

mkdir -p cache/tercet
printf '{"format": 1, "peaks": [{"machine": ' >$peaks
expect_status 0 "$tercet" doctor --quick
expect_grep 'measured peaks in .*/cache/tercet/peaks.json are damaged' "$out"
# About ten seconds where nothing else runs.
expect_status 0 timeout 120 "$tercet" doctor --json
expect_json_line "$out"
check "JSON is whole" json_is_whole "$out"
expect_grep '"bytes_per_second": [1-9][0-9.e+]*, "one_thread": [1-9]' "$out"
for dtype in fp32 bf16; do
    for threads in 1 "$cores"; do
        expect_grep "\"dtype\": \"$dtype\", \"threads\": $threads, \"flops\": [1-9][0-9.e+]*, " "$out"
    done
done
expect_grep '"kept_in": "[^"]*/cache/tercet/peaks.json"' "$out"
expect_grep '"gpus": \{"used": 0' "$out"
expect_grep '"missing": \[' "$out"
expect_no_grep 'damaged' "$out"
expect_grep '^measured$' "$err"
check "what is kept is whole" json_is_whole $peaks
check "and no other file is left" test "$(ls -A cache/tercet)" = peaks.json
expect_status 0 "$tercet" doctor --quick
expect_grep '^  fp32, 1 thread +[0-9.]+ [GT]FLOP/s \(forward ' "$out"
expect_grep "^  kept in +$scratch/cache/tercet/peaks.json" "$out"
cp $peaks measured.json

# ---- and a run after it ----

expect_status 0 "$tercet" train run.yaml --overwrite
check "peak_share is a number" test "$(grep -cE '"peak_share": [0-9.e-]+' run/metrics.jsonl)" -eq 3
# Where other work made what doctor measured too low, that is told instead.
expect_grep '[0-9]+ % of (the product )?peak' "$err"
cp run/last/model.safetensors measured.safetensors

# The number itself, of a made-up peak: six FLOPs a token and matrix element, and in attention, forward and
# backward, twelve for each pair of tokens and element of all heads.
sed -i -E 's/"(linear|grad_input)": [^,]*/"\1": 1.0/; s/"grad_weight": [^,]*/"grad_weight": 2e9/' $peaks
expect_status 0 "$tercet" train run.yaml --overwrite
number() { # KEY of config.json
    sed -nE "s/^ *\"$1\": ([0-9]+),?\$/\1/p" model/config.json
}
# shellcheck disable=SC2016 # awk's own fields
check "peak_share is the FLOPs needed over time and peak" awk -v d="$(number hidden_size)" \
    -v f="$(number intermediate_size)" -v layers="$(number num_hidden_layers)" -v heads="$(number num_attention_heads)" \
    -v kv="$(number num_key_value_heads)" -v words="$(number vocab_size)" '
    function field(name) {
        if (!match($0, "\"" name "\": [^,}]*")) exit bad = 1
        return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) + 0
    }
    {
        n = field("tokens")
        size = d / heads
        matrices = layers * (2 * d * heads * size + 2 * d * kv * size + 3 * d * f) + d * words
        flops = 6 * n * matrices + 12 * layers * heads * size * n * (n + 1) / 2
        error = field("peak_share") / (flops / field("seconds") / 2e9) - 1
        if (error > 1e-9 || error < -1e-9) bad = 1
        lines++
    }
    END { exit bad || lines != 3 || n < 2 || matrices == 0 }' run/metrics.jsonl
expect_equal measured.safetensors run/last/model.safetensors "what is kept leaves the numbers of training alone"

# A machine that is not this one does not count, and what is damaged neither.
sed -i 's/"machine": "/"machine": "another /' $peaks
expect_status 0 "$tercet" train run.yaml --overwrite
check "another machine's peaks are not taken" test "$(grep -c '"peak_share": null' run/metrics.jsonl)" -eq 3
printf 'damaged' >$peaks
expect_status 0 "$tercet" train run.yaml --overwrite
check "nor damaged ones" test "$(grep -c '"peak_share": null' run/metrics.jsonl)" -eq 3
if [ "$cores" -ge 2 ]; then
    grep -vE '"threads": 1,' measured.json >$peaks # entries without threads: damaged as a whole
    expect_status 0 "$tercet" train run.yaml --overwrite
    check "nor those that lack a field" test "$(grep -c '"peak_share": null' run/metrics.jsonl)" -eq 3
    cp measured.json $peaks
    cat text.jsonl text.jsonl >two.jsonl
    expect_status 0 "$tercet" train run.yaml --overwrite -n 2 train.dtype=bf16 train.global_batch=2 data.pack=false \
        'data.train=[two.jsonl]'
    if [ "$cores" -le 4 ]; then
        check "two ranks of one thread: with two threads" \
            test "$(grep -cE '"peak_share": [0-9.e-]+' run/metrics.jsonl)" -eq 3
    fi
fi

# ---- nowhere to keep it, nothing on PATH ----

expect_status 0 env -u HOME -u XDG_CACHE_HOME "$tercet" doctor --quick
expect_grep 'peaks cannot be kept' "$out"
expect_grep 'set HOME or XDG_CACHE_HOME' "$out"
if "$tercet" version | grep -qE '^MPI +yes'; then
    expect_status 0 env PATH="$scratch" "$tercet" doctor --quick
    expect_grep 'no MPI launcher .* is on PATH' "$out"
    expect_grep 'apt-get install (openmpi-bin|mpich)' "$out"
    # A launcher that does not answer, and one of another library.
    printf '#!/bin/sh\nexec sleep 100\n' >mpirun
    chmod +x mpirun
    expect_status 0 timeout 60 env PATH="$scratch:$PATH" "$tercet" doctor --quick
    expect_grep "^  launcher +$scratch/mpirun\$" "$out"
    printf '#!/bin/sh\nprintf "HYDRA build details:\\n    Version:          4.0.2\\n    more\\n"\n' >mpirun
    expect_status 0 env PATH="$scratch:$PATH" "$tercet" doctor --quick
    expect_grep "^  launcher +$scratch/mpirun: HYDRA build details: Version: 4.0.2\$" "$out"
    if "$tercet" version | grep -qE '^MPI +yes, Open MPI'; then
        expect_grep 'belongs to another MPI library than this build' "$out"
        expect_grep 'apt-get install openmpi-bin' "$out"
    fi
    rm mpirun
else
    expect_status 0 "$tercet" doctor --quick
    expect_grep 'this build has no MPI' "$out"
    expect_grep 'apt-get install libopenmpi-dev' "$out"
fi
expect_status 0 env ONEDNN_MAX_CPU_ISA=SSE41 "$tercet" doctor --quick
if grep -qw avx2 /proc/cpuinfo; then
    expect_grep 'the CPU has avx[^,]*, products use portable' "$out"
    expect_grep 'unset ONEDNN_MAX_CPU_ISA' "$out"
fi

# ---- under a launcher ----

launch=(mpirun --oversubscribe --bind-to none)
[ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
# The MPI library leaks in plug-ins that it unloads, so no suppression can name them.
leaky=(env "ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0")
if "$tercet" version | grep -qE '^MPI +yes, Open MPI' && "${launch[@]}" -n 2 true 2>/dev/null; then
    expect_status 0 "${leaky[@]}" "${launch[@]}" -n 2 "$tercet" doctor --json
    expect_json_line "$out"
    check "JSON is whole" json_is_whole "$out"
    expect_grep '"under_launcher": true, "ranks": \[\{"host": "[^"]+", "cores": "[0-9,-]+", .*\}, \{"host": ' "$out"
    expect_grep '"bytes_per_second": null' "$out" "nothing is measured there"
    if [ "$cores" -ge 2 ]; then
        expect_no_grep 'MPI (pins|lets)' "$out"
        core=$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')
        expect_status 0 "${leaky[@]}" taskset -c "$core" "${launch[@]}" -n 2 "$tercet" doctor
        expect_grep 'MPI pins all 2 ranks to 1 core, of [0-9]+' "$out"
        expect_grep 'mpirun --bind-to none' "$out"
        expect_grep "^  rank 1 of 2 +[^ ]+, cores $core\$" "$out"
    fi
    # What the launcher of another library looks like to a rank.
    expect_status 0 "${leaky[@]}" PMI_SIZE=2 PMI_RANK=0 "$tercet" doctor
    expect_grep 'the launcher started 2 ranks, but they do not know each other' "$out"
    expect_grep '^  ranks +not joined' "$out"
    expect_status 0 "${leaky[@]}" PMI_SIZE=2 PMI_RANK=1 "$tercet" doctor
    expect_empty "$out" "one rank reports"
fi

# ---- wrong usage ----

expect_status 2 "$tercet" doctor now
expect_status 2 "$tercet" doctor --threads 0
expect_status 2 "$tercet" doctor --threads 1 --quick
expect_status 2 "$tercet" doctor --threads 65536
expect_grep 'threads: this process may run on [0-9]+ cores only' "$err"
finish
