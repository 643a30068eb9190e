#!/bin/bash
# Completion for bash and zsh and the manual page: whole (all that --help tells is in each of them), well formed, and
# completing what it is to complete.
# shellcheck source=tests/system/lib.sh
. "$TEST_SOURCE/system/lib.sh" || exit 1
tercet=$TERCET

expect_status 0 "$tercet" completion bash
cp "$out" "$scratch/tercet.bash"
expect_status 0 "$tercet" completion zsh
mkdir "$scratch/functions"
cp "$out" "$scratch/functions/_tercet"
expect_status 0 "$tercet" man
cp "$out" "$scratch/tercet.1"
expect_empty "$err"

# ---- nothing is left out ----

# What troff writes as \- reads as -.
sed 's/\\-/-/g' "$scratch/tercet.1" >"$scratch/page"

verbs_of() { "$tercet" "$@" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'; }
# Long options and letters of a verb's help, one a line.
options_of() {
    "$tercet" "$@" --help | grep -E '^ {2,6}-' | grep -oE '^ *(-.,)? *(--[a-z-]+)?' |
        grep -oE '(--[a-z-]+|-[^- ,])' | sort -u
}
# The part of the bash script, the zsh script, or the page that is about one verb.
bash_part() { sed -n "/^    '$1')\$/,/^        ;;\$/p" "$scratch/tercet.bash"; }
zsh_part() { sed -n "/^_tercet_verb_${1// /_}()\$/,/^}\$/p" "$scratch/functions/_tercet"; }
page_part() { sed -n "/^\\.SS \"tercet $1\"\$/,/^\\.S[SH] \"\\{0,1\\}[A-Zt]/p" "$scratch/page" | sed '1!{/^\.S[SH]/d}'; }

# has TEXT PATTERN: one line of the text matches.
has() { grep -qE -e "$2" <<<"$1"; }

paths=()
for verb in $(verbs_of); do
    check "bash knows $verb" has "$(bash_part '')" "[( ]$verb "
    check "zsh knows $verb" has "$(zsh_part "$verb")" '^_tercet_verb'
    check "the page has $verb" has "$(page_part "$verb")" "^\\.SS "
    inner=$(verbs_of "$verb")
    if [ -z "$inner" ]; then paths+=("$verb"); fi
    for second in $inner; do
        check "bash knows $verb $second" has "$(bash_part "$verb")" "[( ]$second "
        paths+=("$verb $second")
    done
done
check "verbs were found" test ${#paths[@]} -ge 14
for path in "${paths[@]}"; do
    read -ra words <<<"$path"
    in_bash=$(bash_part "$path") in_zsh=$(zsh_part "$path") in_page=$(page_part "$path")
    options=$(options_of "${words[@]}")
    check "$path: the help lists options" has "$options" '^--help$'
    for option in $options; do
        name=${option//'?'/[?]}
        missing=''
        has "$in_bash" "options=.*[( ]'?${name}[ ')]" || missing+=' bash'
        has "$in_zsh" "^ *'\\*${name}(=|[+]|-)*\\[" || missing+=' zsh'
        has "$in_page" "fB${name}\\\\fP" || missing+=' man'
        if [ -z "$missing" ]; then
            ok "$path $option is in all three"
        else
            not_ok "$path $option is in all three" "missing in$missing"
        fi
    done
    # The example stands first.
    check "$path: the page begins with its example" has "$(sed -n '2,5p' <<<"$in_page")" "tercet $path"
done
"$tercet" train --help-config | sed -n 's/^  \([a-z][a-z_.]*\) (\(.*\)): \(.*\)/\1\t\2\t\3/p' >"$scratch/keys"
check "keys were found" test "$(wc -l <"$scratch/keys")" -ge 50
while IFS=$'\t' read -r key _ takes; do
    missing=''
    grep -qF "\\fB$key\\fP: \\fI$takes\\fP (" "$scratch/page" || missing+=' man'
    grep -qxE " *$key\)?" "$scratch/tercet.bash" || missing+=' bash'
    grep -qE "^    \\($key\\) " "$scratch/functions/_tercet" || missing+=' zsh'
    if [ -z "$missing" ]; then ok "key $key"; else not_ok "key $key" "missing in$missing"; fi
done <"$scratch/keys"

# ---- well formed ----

check "bash reads its script" bash -n "$scratch/tercet.bash"
if command -v shellcheck >/dev/null; then
    check "shellcheck finds nothing" shellcheck "$scratch/tercet.bash"
else
    echo "# skipped: no shellcheck here"
fi
for section in NAME SYNOPSIS DESCRIPTION VERBS 'RUN FILE' 'EXIT STATUS' ENVIRONMENT FILES EXAMPLES; do
    expect_grep "^\\.SH $section\$" "$scratch/tercet.1"
done
if command -v groff >/dev/null && groff -man -Tutf8 /dev/null >/dev/null 2>&1; then
    for device in utf8 ascii; do
        expect_status 0 groff -ww -man "-T$device" "$scratch/tercet.1"
        expect_empty "$err" "groff warns of nothing ($device)"
    done
else
    echo "# skipped: no groff with the man macros here"
fi
if man --version 2>/dev/null | grep -q '^man [0-9]'; then
    expect_status 0 man --warnings -l "$scratch/tercet.1"
    expect_empty "$err" "man warns of nothing"
else
    echo "# skipped: no man-db here"
fi
if command -v mandoc >/dev/null; then
    # The page has no date, so that one version's page is always the same.
    mandoc -T lint -W warning "$scratch/tercet.1" | grep -v 'missing date' >"$scratch/lint"
    expect_empty "$scratch/lint" "mandoc warns of nothing but the date"
else
    echo "# skipped: no mandoc here"
fi

# ---- bash ----

cd "$scratch" || exit 1
mkdir -p work/runs/first && cd work || exit 1
touch run.yaml 'a text.jsonl' other.jsonl
# WORDS as readline parts them, the last one under the cursor: prints what is offered, one a line.
complete_line() {
    # shellcheck disable=SC2016 # for the inner shell
    bash -c '. "$1"; shift; COMP_WORDS=(tercet "$@"); COMP_CWORD=$#
        _tercet; if ((${#COMPREPLY[@]} > 0)); then printf "%s\n" "${COMPREPLY[@]}"; fi' \
        bash "$scratch/tercet.bash" "$@" | sort
}
# completes WANTED WORDS…: WANTED has one a line.
completes() {
    local wanted=$1
    shift
    complete_line "$@" >"$out" 2>"$err"
    expect_text "$wanted" "$out" "bash: tercet $*<TAB>"
    expect_empty "$err"
}
completes train tr
completes $'tokenizer\ntrain' t
check "bash: all verbs on an empty word" test "$(complete_line '')" = "$( (verbs_of; echo help) | sort)"
completes --version --v
completes plan help pl
completes $'encode' tokenizer e
completes --vocab-size tokenizer train --voc
completes $'--resume\n--resume=' train --re
completes --ranks train run.yaml --ra
completes 'optimizer.lr=' train run.yaml optimizer.l
completes 'optimizer.lr=' plan -n 2 run.yaml optimizer.l
completes 'optimizer.lr=' plan --ranks = 2 run.yaml optimizer.l
completes $'bf16\nfp32' train run.yaml train.dtype =
completes bf16 train run.yaml train.dtype = b
completes $'false\ntrue' train run.yaml log.every = 2 data.pack = ''
completes '' train run.yaml optimizer.lr = 1
completes 'other.jsonl' train run.yaml data.train = o
completes 'a text.jsonl' train run.yaml data.train = a
completes run.yaml train run.y
completes runs train --resume = ru
completes '' train -n ''
completes data.shuffle train --allow-change data.sh
completes $'markdown\ntext' train --help-config =
completes skip tokenizer train --bad-lines s
completes $'bash\nzsh' completion ''
completes runs eval ru
completes other.jsonl eval runs --data o
completes --data eval runs --da
completes '' train run.yaml -- --re
completes 'data.train=' data run.yaml data.tr
completes other.jsonl data 'a text.jsonl' o
completes '' version x
completes '' nosuchverb x
cd "$scratch" || exit 1

# ---- zsh ----

if ! command -v zsh >/dev/null; then
    echo "# skipped: no zsh here"
    finish
fi
check "zsh reads its script" zsh -n "$scratch/functions/_tercet"
mkdir "$scratch/functions/runs"
touch "$scratch/functions/run.yaml"
types() { # types LINE WANTED: what LINE and a tab make
    zsh -f "$TEST_SOURCE/system/zsh_complete.zsh" "$scratch/functions" "$1" >"$out" 2>"$err"
    local status=$?
    if [ $status -eq 77 ]; then
        echo "# skipped: zsh has no zpty here"
        finish
    fi
    expect_text "<$2>" "$out" "zsh: $1<TAB>"
}
types 'tercet tr' 'tercet train '
types 'tercet train --re' 'tercet train --resume='
types 'tercet train run.yaml optimizer.l' 'tercet train run.yaml optimizer.lr='
types 'tercet train run.yaml train.dtype=b' 'tercet train run.yaml train.dtype=bf16 '
types 'tercet train --resume=ru' 'tercet train --resume=runs/'
types 'tercet train -n 2 --allow-change data.shu' 'tercet train -n 2 --allow-change data.shuffle '
types 'tercet tokenizer tr' 'tercet tokenizer train '
types 'tercet tokenizer train --bad-lines=s' 'tercet tokenizer train --bad-lines=skip '
types 'tercet generate runs --dty' 'tercet generate runs --dtype='
types 'tercet data run.yaml data.tra' 'tercet data run.yaml data.train='
types 'tercet help pla' 'tercet help plan '

finish
