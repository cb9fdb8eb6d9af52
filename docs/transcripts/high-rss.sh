needs c++
run 'c++ -O1 -o high-rss examples/high-rss.cpp'
run './high-rss 256 &'
subject=$!
await printed 'is ready'
await asleep
run 'strandline explain $(pidof high-rss)'
run 'strandline holders $(pidof high-rss)'
run 'strandline reclaim --dry-run $(pidof high-rss)'
run 'strandline reclaim $(pidof high-rss)'
