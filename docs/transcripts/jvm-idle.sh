needs java
block java docs/inside-runtimes.md > Idle.java
run 'java -Xmx512m Idle.java &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof java)'
run 'strandline reclaim --remedy jvm_gc $(pidof java)'
