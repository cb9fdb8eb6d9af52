# Sends the marks of the other subjects without growing: a shell controls no memory; status 7. Runs
# in any POSIX shell, with the strictest options.
set -eu
. "$PROBES/shell/strandline.sh"

task=${1-} argument=${2-}
if [ "$task" = loop ]; then
    strandline_mark before
    left=$argument
    while [ "$left" -gt 0 ]; do
        strandline_mark quiet
        left=$((left - 1))
    done
    strandline_mark after
    exit 7
fi
if [ "$task" = trap ]; then
    trap 'echo trapped' PIPE
fi
strandline_mark start
if [ "$task" = reuse ]; then
    eval "exec $STRANDLINE_MARK_FD>\"\$argument\""
fi
false || strandline_mark grown
(strandline_mark freed)
strandline_mark "$(printf 'two\nlines\001')"
long=nnnnnnnnnn
long=$long$long$long$long$long$long
strandline_mark "$long$long$long$long$long"
if [ "$task" = trap ]; then
    trap
fi
echo done
exit 7
