#!/bin/sh
# A plain shell job, one of an array: adds up its own part of the numbers 1 to 10 million, and checks the sum.
#
#     tenbin submit --array 1-10 --time 1m -- sh examples/sum.sh
set -eu

part=${TENBIN_ARRAY_INDEX:-1}
size=${1:-1000000}
last=$((part * size))
first=$((last - size + 1))

sum=$(seq "$first" "$last" | awk '{ sum += $1 } END { printf "%.0f\n", sum }')
echo "job ${TENBIN_JOB_ID:-none} on $(nproc) cores: $first + ... + $last = $sum"
test "$sum" -eq $(((first + last) * size / 2))
