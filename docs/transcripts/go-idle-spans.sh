needs go
block go docs/inside-runtimes.md > deleted.go
run 'go build deleted.go'
run './deleted &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof deleted)'
