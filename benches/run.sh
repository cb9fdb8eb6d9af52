#!/bin/sh
# `make bench`: strandline beside what people use today, in one run on one machine.
#
#   benches/run.sh [OUT]            OUT: benches/RESULTS.md
#
# STRANDLINE=PATH   the program to measure (default: target/release/strandline, built here)
# BENCH="explain snapshot allocators recording lab sbcl perl runtimes holders export"     which ones
# BENCH_GIB="1 4"   heap sizes; BENCH_ROUNDS=3; BENCH_IDLE_ROUNDS=30
# BENCH_ALLOCATORS_GIB=4; BENCH_SERVER_GIB=1; BENCH_SBCL=sbcl; BENCH_SBCL_GIB=1
# BENCH_PROCESSES=300; BENCH_MINUTES=5; BENCH_MEBIBYTES=20
# BENCH_COMPARISONS=100; BENCH_LAB_PAIRS=7
# BENCH_PERL_VALUES=5000000; BENCH_PERL_ROUNDS=7; BENCH_PERL=perl
# BENCH_OBJECTS=4000000; BENCH_BLOCKS="1000000 12000000"
# BENCH_PAIRS=15    pairs a ratio; BENCH_SECONDS=2 of work each; BENCH_IDLE_SECONDS=60
#
# Numbers are ratios against something run beside it, in turns, not limits on time.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
missing=
for tool in cc python3 gcore; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || { echo "bench: missing:$missing; apt-get install gcc python3 gdb" >&2; exit 3; }
if [ -z "${STRANDLINE:-}" ]; then
    (cd "$root" && cargo build --release --quiet)
    STRANDLINE=$root/target/release/strandline
    export STRANDLINE
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/strandline-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
out=${1:-$here/RESULTS.md}
for bench in ${BENCH:-explain snapshot allocators recording lab sbcl perl runtimes holders export}; do
    case $bench in
        explain) cc -std=gnu11 -O2 -pthread "$root/tests/subjects/big_heap.c" -o "$work/big_heap" -ldl ;;
        snapshot)
            cc -std=gnu11 -O2 -pthread "$root/tests/subjects/big_heap.c" -o "$work/big_heap" -ldl
            cc -std=gnu11 -O2 -pthread "$here/many_maps.c" -o "$work/many_maps"
            cc -std=gnu11 -O2 "$here/server.c" -o "$work/server"
            ;;
        allocators) cc -std=gnu11 -O2 -fno-builtin "$here/small_blocks.c" -o "$work/small_blocks" ;;
        recording)
            cc -std=gnu11 -O2 "$here/work.c" -o "$work/work"
            if [ -z "${HOUR:-}" ]; then
                (cd "$root" && cargo build --release --quiet -p strandline-recording --example hour)
                HOUR=$root/target/release/examples/hour
                export HOUR
            fi
            ;;
        sbcl)
            command -v sbcl >/dev/null || { echo "bench: sbcl: no sbcl; apt-get install sbcl" >&2; continue; }
            cc -std=gnu11 -O2 -pthread "$root/tests/subjects/big_heap.c" -o "$work/big_heap" -ldl
            ;;
        lab) cc -std=gnu11 -O2 -pthread "$root/tests/subjects/lab.c" -o "$work/lab" ;;
        perl) command -v "${BENCH_PERL:-perl}" >/dev/null || { echo "bench: perl: no perl; apt-get install perl" >&2; continue; } ;;
        runtimes | export) ;;
        holders) cc -std=gnu11 -O2 "$here/graph_heap.c" -o "$work/graph_heap" ;;
        *) echo "bench: there is no bench $bench" >&2; exit 2 ;;
    esac
    python3 "$here/$bench.py" "$work" "$out"
done
