# shellcheck shell=bash
# For tests of whole runs: `. "$TEST_SOURCE/system/lib.sh"` first, checks, `finish` last.
#
#     $TERCET            the program (set by CTest)
#     $TEST_SOURCE       the directory tests/ of the repository (set by CTest)
#     $scratch           an empty directory, removed at the end
#     $out, $err         what the last command of expect_status wrote
#
# Each check prints a line as in TAP, "ok 3 - what was checked" or "not ok …" with the details, and the test
# goes on; finish gives the exit status.
set -u
export LC_ALL=C.UTF-8
: "${TERCET:?is to name the program}" "${TEST_SOURCE:?is to name the directory tests/}"
if [ ! -x "$TERCET" ]; then
    echo "$TERCET is no program" >&2
    exit 1
fi

scratch=$(mktemp -d) || exit 1
trap '[ "$BASHPID" = $$ ] && rm -rf "$scratch"' EXIT
# What tercet has measured and keeps for this machine must not show in results.
export XDG_CACHE_HOME=$scratch/.cache
out=$scratch/.out
err=$scratch/.err
checks=0
failures=0

# A check behind a pipe or in parentheses runs in a shell of its own, and what it counts is lost.
refuse_subshell() {
    if [ "$BASH_SUBSHELL" -gt 0 ]; then
        echo "$1" >>"$scratch/.subshell"
    fi
}

# ok DESCRIPTION
ok() {
    refuse_subshell "$1"
    checks=$((checks + 1))
    echo "ok $checks - $1"
}

# not_ok DESCRIPTION [DETAILS…]
not_ok() {
    refuse_subshell "$1"
    checks=$((checks + 1))
    failures=$((failures + 1))
    echo "not ok $checks - $1"
    shift
    if [ $# -gt 0 ]; then printf '%s\n' "$@" | sed 's/^/#   /'; fi
}

# skip REASON: the test cannot run here.
skip() {
    echo "1..0 # SKIP $1"
    exit 77
}

# find_mpirun: the array mpirun, to be followed by -n RANKS and a command; false where the program was built without
# MPI or this machine cannot start anything with it.
find_mpirun() {
    mpirun=(mpirun)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    "$TERCET" version --json | grep -q '"mpi": true' && command -v mpirun >/dev/null || return 1
    if mpirun --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then mpirun+=(--oversubscribe); fi
    "${mpirun[@]}" -n 2 true >/dev/null 2>&1
}

# finish: the plan, and the exit status of the test.
finish() {
    echo "1..$checks"
    if [ "$checks" -eq 0 ]; then
        echo "# nothing was checked"
        exit 1
    fi
    if [ -e "$scratch/.subshell" ]; then
        echo "# checked in a shell of its own, so not counted:"
        sed 's/^/#   /' "$scratch/.subshell"
        exit 1
    fi
    [ "$failures" -eq 0 ] || exit 1
    exit 0
}

# check DESCRIPTION COMMAND…: the command succeeds.
check() {
    local description=$1
    shift
    if "$@" >"$scratch/.check" 2>&1; then
        ok "$description"
    else
        not_ok "$description" "status $? of: $*" "$(head -c 2000 "$scratch/.check")"
    fi
}

# expect_status STATUS COMMAND…: the command ends with this status, and no sanitizer complains. Standard
# input is the caller's. A failure shows both outputs.
expect_status() {
    local wanted=$1 status
    shift
    "$@" >"$out" 2>"$err"
    status=$?
    local name="${*##*/}"
    name=${name//[[:cntrl:]]/?}
    if grep -qE 'AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:' "$err"; then
        not_ok "status $wanted: $name" "$(head -c 4000 "$err")"
    elif [ "$status" -ne "$wanted" ]; then
        not_ok "status $wanted: $name" "status is $status" "$(head -c 1000 "$out")" "$(head -c 2000 "$err")"
    else
        ok "status $wanted: $name"
    fi
}

# expect_grep PATTERN FILE [DESCRIPTION]: a line of the file matches the extended regular expression.
expect_grep() {
    if grep -qE -e "$1" "$2"; then
        ok "${3:-found: $1}"
    else
        not_ok "${3:-found: $1}" "$(head -c 2000 "$2")"
    fi
}

# expect_no_grep PATTERN FILE [DESCRIPTION]
expect_no_grep() {
    if grep -qE -e "$1" "$2"; then
        not_ok "${3:-absent: $1}" "$(grep -E -m 5 -e "$1" "$2")"
    else
        ok "${3:-absent: $1}"
    fi
}

# expect_empty FILE [DESCRIPTION]
expect_empty() {
    if [ -s "$1" ]; then
        not_ok "${2:-nothing in ${1##*/}}" "$(head -c 2000 "$1")"
    else
        ok "${2:-nothing in ${1##*/}}"
    fi
}

# expect_equal FILE FILE [DESCRIPTION]: the same bytes.
expect_equal() {
    if cmp -s "$1" "$2"; then
        ok "${3:-${1##*/} and ${2##*/} are equal}"
    else
        not_ok "${3:-${1##*/} and ${2##*/} are equal}" "$(diff "$1" "$2" 2>&1 | head -c 2000)"
    fi
}

# expect_text TEXT FILE [DESCRIPTION]: the file holds this text, and nothing else (line ends at the end apart).
expect_text() {
    if [ "$(cat "$2")" = "$1" ]; then
        ok "${3:-the output is $1}"
    else
        not_ok "${3:-the output is $1}" "found: $(head -c 2000 "$2")"
    fi
}

# expect_json_line FILE: one line that looks like one JSON object; fields are looked at with expect_grep.
expect_json_line() {
    if [ "$(wc -l <"$1")" -eq 1 ] && grep -qE '^\{.*\}$' "$1"; then
        ok "one JSON object on one line"
    else
        not_ok "one JSON object on one line" "$(head -c 2000 "$1")"
    fi
}

# poison FILE: makes the last 60 fp32 numbers of a weight file (model.norm.weight, where it is 60 wide) the largest float,
# so that computing with them overflows. (Weights that are not finite are refused when they are read.)
poison() {
    local size
    size=$(stat -c %s "$1")
    for _ in $(seq 60); do printf '\377\377\177\177'; done |
        dd of="$1" bs=1 seek=$((size - 240)) conv=notrunc status=none
}
