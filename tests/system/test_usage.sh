#!/bin/bash
# What people meet first: help, wrong names, wrong options, a standard output that cannot be written.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET

expect_status 0 "$tercet" --help
expect_grep '^Example:$' "$out"
expect_grep '^  tokenizer +[a-z]' "$out"
expect_empty "$err"
cp "$out" "$scratch/help"
for way in help -h; do
    expect_status 0 "$tercet" "$way"
    expect_equal "$scratch/help" "$out"
done

expect_status 2 "$tercet"
expect_empty "$out" "without a verb, standard output stays empty"
expect_grep '^Usage: tercet VERB' "$err"

# Every verb that the help lists has a help with an example, that reaches standard output.
verbs=$(sed -n 's/^  \([a-z]*\)  .*/\1/p' "$scratch/help")
for verb in train plan eval generate logits tokenizer data inspect doctor completion man version; do
    check "the help lists $verb" grep -qx "$verb" <<<"$verbs"
done
for verb in $verbs; do
    expect_status 0 "$tercet" "$verb" --help
    expect_grep '^ *Example:$' "$out" "tercet $verb --help has an example"
    expect_grep "^ +.*tercet $verb" "$out" "… of this verb"
    expect_empty "$err"
    cp "$out" "$scratch/verb"
    expect_status 0 "$tercet" "$verb" -h
    expect_equal "$scratch/verb" "$out" "-h is --help"
    expect_status 0 "$tercet" help "$verb"
    if [ "$verb" != tokenizer ]; then
        expect_status 2 "$tercet" "$verb" --no-such-option
        expect_grep "^tercet $verb: .*--no-such-option" "$err"
        expect_empty "$out"
    fi
done
for verb in train encode decode; do
    expect_status 0 "$tercet" tokenizer "$verb" --help
    expect_grep "^ +.*tercet tokenizer $verb" "$out"
    expect_status 2 "$tercet" tokenizer "$verb" --no-such-option
    expect_grep "^tercet tokenizer $verb: " "$err"
    expect_status 2 "$tercet" tokenizer "$verb"
    expect_empty "$out"
done

expect_status 2 "$tercet" inspct x
expect_grep '^tercet: there is no .tercet inspct.' "$err"
expect_grep '^  did you mean .tercet inspect.' "$err"
expect_status 2 "$tercet" tokenizer encod x
expect_grep 'did you mean .tercet tokenizer encode.' "$err"
expect_status 2 "$tercet" qqqqqqqqqqqq
expect_no_grep 'did you mean' "$err"
expect_status 2 "$tercet" help qqqqqqqqqqqq
expect_status 2 "$tercet" $'bad\n\033[31mname'
expect_no_grep $'\033' "$err" "no escape sequence reaches the terminal"
check "a name with a line end stays on one line" test "$(wc -l <"$err")" -eq 2

expect_status 2 "$tercet" inspect
expect_grep 'Give a directory or a file' "$err"
expect_status 2 "$tercet" version extra

expect_status 0 "$tercet" version
expect_grep '^tercet [0-9]+\.[0-9]+\.[0-9]+$' "$out"
expect_grep '^oneDNN +[0-9]+\.[0-9]+' "$out"
expect_grep '^PCRE2 +[0-9]+\.[0-9]+' "$out"
expect_grep '^MPI +(yes(, .+)?|no)$' "$out"
cp "$out" "$scratch/version"
expect_status 0 "$tercet" --version
expect_equal "$scratch/version" "$out"
expect_status 0 "$tercet" version --json
expect_json_line "$out"
for key in version compiler build mpi libraries oneDNN PCRE2 jansson libyaml libarchive utf8proc; do
    expect_grep "\"$key\": " "$out"
done

expect_status 2 "$tercet" completion
expect_grep '^tercet completion: for which shell' "$err"
expect_empty "$out"
expect_status 2 "$tercet" completion fish
expect_grep 'not for .fish' "$err"
expect_status 2 "$tercet" completion bash zsh
expect_grep 'one shell at a time' "$err"
expect_status 2 "$tercet" man train
expect_grep 'nothing is expected here' "$err"

# Standard output full, closed, or a pipe that nobody reads: told, and status 1.
expect_full() {
    "$@" >/dev/full 2>"$err"
    local status=$?
    check "a full standard output gives 1: ${*##*/}" test "$status" -eq 1
    expect_grep '^tercet: standard output: .*No space left' "$err"
}
expect_full "$tercet" version
expect_full "$tercet" --help
expect_full "$tercet" inspect --help
# More than is buffered: what went wrong is no longer known at the end, but that it did.
for verb in man 'completion bash' 'completion zsh'; do
    # shellcheck disable=SC2086 # verb and argument
    "$tercet" $verb >/dev/full 2>"$err"
    check "a full standard output gives 1: $verb" test $? -eq 1
    expect_grep '^tercet: standard output: ' "$err"
done
"$tercet" version >&- 2>"$err"
check "a closed standard output gives 1" test $? -eq 1
expect_grep '^tercet: standard output: ' "$err"
mkfifo "$scratch/pipe"
cat "$scratch/pipe" >/dev/null & # opens the pipe for reading …
reader=$!
exec 9>"$scratch/pipe"
kill "$reader" # … and is gone before anything is written
wait "$reader" 2>/dev/null
"$tercet" version >&9 2>"$err"
check "a pipe that nobody reads gives 1" test $? -eq 1
expect_grep '^tercet: standard output: .*Broken pipe' "$err"
exec 9>&-

finish
