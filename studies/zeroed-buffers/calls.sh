#!/bin/sh
# Which functions a way of taking buffers calls: as compiled (by objdump, in way.o) and as run (interpose.c counts calls
# for a whole buffer). Prints one line of JSON: `calls`, a text such as "malloc, memset", `wanted_bytes`, and the three
# counts. For x86-64 and glibc, as interpose.c is.
#   calls.sh BUILD WAY kept|dropped BUFFERS
set -eu
build=$1 way=$2 use=$3 buffers=$4
calls=$(objdump -dr --no-show-raw-insn "$build/way.o" | awk -v function_name="<${use}_$way>:" '
    NF == 2 && $2 ~ /^<.*>:$/ { inside = $2 == function_name; found += inside }
    inside && /\trep stos/ { list = list ", rep stos" }
    inside && /R_X86_64_/ {
        name = $NF
        sub(/[-+]0x[0-9a-f]+$/, "", name)
        if (name ~ /newarray/) name = "new"
        else if (name ~ /gc_calloc|GC6calloc/) name = "GC.calloc"
        else if (name !~ /^(malloc|calloc|memset)$/) next
        list = list ", " name
    }
    END { if (!found) exit 1; print list == "" ? "nothing" : substr(list, 3) }')
counted=$(LD_PRELOAD="$build/interpose.so" "$build/buffers" "$way" "$use" "$buffers" |
    sed -n 's/^{\("wanted_bytes": [0-9]*, \).*\("malloc_calls".*}\)$/\1\2/p')
[ -n "$counted" ]
printf '{"calls": "%s", %s\n' "$calls" "$counted"
