#!/bin/bash
# tools/check-layers: accepts this repository, and finds each kind of wrong include.
set -eu
check=$TEST_SOURCE/../tools/check-layers
"$check" "$TEST_SOURCE/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# expect FILE LINE TEXT: a tree with this one line is refused, naming the file and saying TEXT.
expect() {
    rm -rf "$scratch/src"
    mkdir -p "$scratch/src/base" "$scratch/$(dirname "$1")"
    echo 'int x;' >"$scratch/src/base/x.c"
    printf '/* first */\n%s\n' "$2" >"$scratch/$1"
    if "$check" "$scratch" >"$scratch/out"; then
        echo "accepted: $2 in $1"
        exit 1
    fi
    if ! grep -qF "$1:" "$scratch/out" || ! grep -qF "$3" "$scratch/out"; then
        echo "wrong message for $2 in $1:"
        cat "$scratch/out"
        exit 1
    fi
}
expect src/base/a.c '#include "text/b.h"' 'must not include "text/b.h"'
expect src/train/a.h '  #  include "infer/b.h"' 'must not include "infer/b.h"'
expect src/config/a.c '#include "cli/b.h"' 'must not include "cli/b.h"'
expect src/backend/cpu/a.c '#include "exec/b.h"' 'must not include "exec/b.h"'
expect src/cli/a.c '#include "error.h"' 'should be included as "room/file.h"'
expect src/cli/a.c '#include "../base/error.h"' 'should be included as "room/file.h"'
expect src/cli/a.c '#include "nowhere/error.h"' 'is in no room'
expect src/kitchen/a.c '#include "base/error.h"' 'is no room'

rm -rf "$scratch/src"
mkdir -p "$scratch/src/cli" "$scratch/src/graph"
echo '#include "config/schema.h"' >"$scratch/src/cli/a.c"
echo '#include "graph/op.h"' >"$scratch/src/graph/b.c"
"$check" "$scratch"
