needs python3
[ "$(id -u)" = 0 ] || lacks "no root, who may make control groups"
top=/sys/fs/cgroup/memory
limit=memory.limit_in_bytes
if [ ! -d $top ]; then
    top=/sys/fs/cgroup
    limit=memory.max
    grep -q memory $top/cgroup.subtree_control 2>/dev/null || lacks "no control groups that count memory"
fi
mkdir $top/upload $top/log $top/web 2>/dev/null || lacks "control groups of the names upload, log and web cannot be made"

# Starts a program in a control group, and waits until it made its file.
inside() {
    echo "$2" > "$top/$1/$limit"
    sh -c 'echo $$ > "$0" && exec python3 -c "$1" "$2"' "$top/$1/cgroup.procs" "$3" "$4" &
    subject=$!
    started="$started $subject"
    await test -e "$4"
}

started=
inside upload 134217728 'import sys, time
with open("/dev/shm/upload.db", "wb") as file: file.write(bytes(99 << 20))
open(sys.argv[1], "w").close()
time.sleep(1e6)' ready.1
inside log 268435456 'import os, sys, time
log = open("access.log", "wb")
log.write(bytes(200 << 20)); log.flush(); os.fsync(log.fileno())
open(sys.argv[1], "w").close()
time.sleep(1e6)' ready.2
inside web 209715200 'import os, sys, time
def work():
    blocks = [bytearray(4000) for _ in range(9000)]
    del blocks[:8000]
    return blocks
for number in range(3):
    if os.fork() == 0: break
else: number = 3
kept = work()
open(f"worker.{number}", "w").close()
while number == 3 and not all(os.path.exists(f"worker.{n}") for n in range(4)): time.sleep(.01)
if number == 3: open(sys.argv[1], "w").close()
time.sleep(1e6)' ready.3
run 'strandline explain --cgroup /upload'
run 'strandline explain --cgroup /log'
run 'strandline explain --cgroup /web --ledgers'
run 'strandline reclaim --cgroup /web'
for group in upload log web; do
    kill $(cat $top/$group/cgroup.procs)
    while [ -n "$(cat $top/$group/cgroup.procs)" ]; do sleep 0.05; done
    rmdir $top/$group
done
rm -f /dev/shm/upload.db
