needs cc python3
run 'cc -O2 -pthread -o server examples/server.c'
run "strandline try --repeat 3 --ready port=7007 --load 'python3 examples/load.py 7007' -- ./server 7007"
