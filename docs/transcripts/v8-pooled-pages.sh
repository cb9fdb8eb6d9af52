needs node
block js docs/inside-runtimes.md > answers.js
run 'node --expose-gc answers.js &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof node)'
