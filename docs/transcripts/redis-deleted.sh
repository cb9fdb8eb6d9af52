needs redis-server redis-cli
run 'redis-server --port 7877 --save "" --enable-debug-command local > log &'
subject=$!
await grep -q 'Ready to accept connections' log
run 'redis-cli -p 7877 DEBUG POPULATE 200000 key 400'
run "redis-cli -p 7877 EVAL \"for i=0,199999 do if i%200>0 then redis.call('del','key:'..i) end end\" 0"
run 'strandline explain $(pidof redis-server)'
run 'strandline reclaim $(pidof redis-server)'
