#!/bin/bash
# docs/run-file.md says what the program's own table says.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$TERCET" train --help-config=markdown >"$work/table" || exit 1
[ -s "$work/table" ] || exit 1
# The page is an introduction followed by the table, unchanged.
tail -c "$(wc -c <"$work/table")" "$root/docs/run-file.md" | diff - "$work/table" && exit 0
echo "docs/run-file.md differs: put the output of tercet train --help-config=markdown after its introduction"
exit 1
