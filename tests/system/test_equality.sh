#!/bin/bash
# The same bits on any number of ranks: 48 combinations in which every value of every setting meets every number
# of ranks, and every value of every other setting. equality.sh tells what is compared, and runs all of them.
exec "$BASH" "$(dirname "$0")/equality.sh" --subset
