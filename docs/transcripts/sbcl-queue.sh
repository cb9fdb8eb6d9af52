needs sbcl
block lisp docs/inside-runtimes.md > queue.lisp
run 'sbcl --script queue.lisp &'
subject=$!
await asleep
run 'strandline explain $(pidof sbcl)'
# Its (gc :full t) follows.
is_collected() {
    awk '$1 == "VmRSS:" { found = $2 } END { exit !(found < 60000) }' "/proc/$subject/status"
}
await is_collected
await asleep
run 'strandline explain $(pidof sbcl)'
