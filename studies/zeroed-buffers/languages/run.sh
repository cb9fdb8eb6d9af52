#!/bin/sh
# Runs one idiom: run.sh BUILD FOLDER_OF_THE_PROBES LANGUAGE:IDIOM BUFFERS
here=$(dirname "$0") build=$1 probes=$2 language=${3%%:*} idiom=${3#*:} buffers=$4

# What build.sh made; where there is nothing, what the compiler said.
built() {
    [ -e "$build/$1" ] || { head -n 5 "$build/$language.log" >&2; exit 127; }
}

case $language in
c0 | c2 | cpp | rust0 | rust2)
    built "$language"
    exec "$build/$language" "$idiom" "$buffers"
    ;;
go)
    built go.program
    exec "$build/go.program" "$idiom" "$buffers"
    ;;
java)
    built java.classes/Buffers.class
    # 3 GiB: a megabyte and the array's header take two of G1's regions of a megabyte.
    exec java -Xms16m -Xmx3g -XX:MaxDirectMemorySize=1g -XX:-AlwaysPreTouch -cp "$build/java.classes" \
        Buffers "$idiom" "$buffers"
    ;;
node) exec node "$here/buffers.js" "$probes/node/strandline.js" "$idiom" "$buffers" ;;
python) PYTHONPATH=$probes/python exec python3 "$here/buffers.py" "$idiom" "$buffers" ;;
# Debian's own Python, which python3-numpy is for.
numpy) PYTHONPATH=$probes/python exec /usr/bin/python3 "$here/buffers.py" "np.$idiom" "$buffers" ;;
perl) exec perl "-I$probes/perl" "$here/buffers.pl" "$idiom" "$buffers" ;;
sbcl)
    exec sbcl --dynamic-space-size 2GB --script "$here/buffers.lisp" "$probes/lisp/strandline.lisp" "$idiom" "$buffers"
    ;;
*)
    echo "run.sh: no such language: $language" >&2
    exit 2
    ;;
esac
