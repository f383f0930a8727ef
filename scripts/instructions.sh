#!/usr/bin/env bash
# Counts the instructions that a turn and a step of a tool loop take, with callgrind.
#
# Unlike times, instruction counts hardly depend on the machine's load, so they reveal small regressions. Each case runs
# twice, once with N repetitions and once with 3 N. The difference divided by 2 N excludes the start of the process.
#
#   scripts/instructions.sh                all cases of the benchmarks `turn` and `tool_loop`
#   scripts/instructions.sh turn ask       one case
#
# Needs valgrind (Debian: `apt-get install valgrind`).
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || {
    echo "valgrind is not installed: apt-get install valgrind" >&2
    exit 3
}

host=$(rustc -vV | sed -n 's/^host: //p')
runner="CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER"

# Prints the instructions of one process.
collected() { # benchmark, case, repetitions
    local out
    out=$(env "$runner=valgrind --tool=callgrind --callgrind-out-file=/dev/null" \
        cargo bench --quiet --bench "$1" -- --count "$2" "$3" 2>&1) || {
        echo "$out" >&2
        return 1
    }
    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' <<<"$out"
}

count() { # benchmark, case, repetitions
    local few many
    few=$(collected "$1" "$2" "$3")
    many=$(collected "$1" "$2" $((3 * $3)))
    printf '%-12s %-10s %8d instructions\n' "$1" "$2" $(((many - few) / (2 * $3)))
}

if [ $# = 2 ]; then
    count "$1" "$2" 1000
    exit
fi
for case in ask prompt watched flushed saved; do count turn "$case" 1000; done
for case in step10 step100 step1000; do count tool_loop "$case" 1000; done
