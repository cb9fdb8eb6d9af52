needs python3
# Its standard input stays open: it ends when it has read a byte.
sleep 600 | python3 "$ROOT/tests/subjects/python/variables/main.py" 300 &
subject=$!
await printed app.cache
run 'strandline holders --top 6 $(pidof python3)'
