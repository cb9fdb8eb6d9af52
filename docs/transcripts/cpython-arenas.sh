needs python3
block python docs/inside-runtimes.md > slotted.py
run 'python3 slotted.py &'
subject=$!
await asleep
run 'strandline explain $(pidof python3)'
