needs node
run 'node examples/sessions.js &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof node)'
run 'strandline holders $(pidof node)'
run 'strandline reclaim --remedy v8_memory_pressure $(pidof node)'
