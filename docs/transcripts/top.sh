needs c++ python3
c++ -O1 -o high-rss examples/high-rss.cpp
block python docs/inside-runtimes.md > slotted.py
python3 slotted.py &
subject=$!
await asleep
./high-rss 1024 > said &
subject=$!
await grep -q ready said
./high-rss 512 > said &
subject=$!
await grep -q ready said
run 'strandline top --once | head -4'
