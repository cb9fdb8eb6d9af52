#!/bin/sh
# Runs one idiom: run.sh BUILD FOLDER_OF_THE_PROBES LANGUAGE:IDIOM BUFFERS
here=$(dirname "$0") build=$1 probes=$2 language=${3%%:*} idiom=${3#*:} buffers=$4

# What build.sh made; where there is nothing, what the compiler said.
built() {
    [ -e "$build/$1" ] || { head -n 5 "$build/$language.log" >&2; exit 127; }
}

# Goes on as a command, without huge pages where small_pages.c could be compiled.
start() {
    if [ -x "$build/small_pages" ]; then exec "$build/small_pages" "$@"; else exec "$@"; fi
}

case $language in
c0 | c2 | cpp | rust0 | rust2)
    built "$language"
    start "$build/$language" "$idiom" "$buffers"
    ;;
go)
    built go.program
    start "$build/go.program" "$idiom" "$buffers"
    ;;
java)
    built java.classes/Buffers.class
    # 3 GiB: a megabyte and the array's header take two of G1's regions of a megabyte.
    start java -Xms16m -Xmx3g -XX:MaxDirectMemorySize=1g -XX:-AlwaysPreTouch -cp "$build/java.classes" \
        Buffers "$idiom" "$buffers"
    ;;
node) start node "$here/buffers.js" "$probes/node/strandline.js" "$idiom" "$buffers" ;;
python)
    export PYTHONPATH="$probes/python"
    start python3 "$here/buffers.py" "$idiom" "$buffers"
    ;;
# Debian's own Python, which python3-numpy is for.
numpy)
    export PYTHONPATH="$probes/python"
    start /usr/bin/python3 "$here/buffers.py" "np.$idiom" "$buffers"
    ;;
perl) start perl "-I$probes/perl" "$here/buffers.pl" "$idiom" "$buffers" ;;
sbcl)
    start sbcl --dynamic-space-size 2GB --script "$here/buffers.lisp" "$probes/lisp/strandline.lisp" "$idiom" "$buffers"
    ;;
*)
    echo "run.sh: no such language: $language" >&2
    exit 2
    ;;
esac
