needs node
block javascript docs/inside-runtimes.md > sessions.js
run 'node sessions.js &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof node) --path-to Session'
run 'strandline holders --top 3 $(pidof node)'
