needs perl
block perl docs/inside-runtimes.md > lexicals.pl
run 'perl lexicals.pl &'
subject=$!
await asleep
run 'strandline explain $(pidof perl)'
