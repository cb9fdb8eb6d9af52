needs python3
cat > service.py <<'END'
import os
import time


class Session:
    __slots__ = ('user', 'number')

    def __init__(self, number):
        self.user, self.number = f'user {number:>25}', number + 1_000_000


sessions = [Session(number) for number in range(30_000)]
print('ready', flush=True)
while not os.path.exists('begin'):
    time.sleep(0.01)
for step in range(120):
    sessions += [Session(len(sessions) + number) for number in range(1_000)]
    time.sleep(0.03)
print('full', flush=True)
time.sleep(600)
END
python3 service.py > said &
subject=$!
await grep -q ready said
run 'strandline record --ledger ends,every=1s -o service.strandline $(pidof python3) > record.out &'
recorder=$!
await grep -q . service.strandline
touch begin
await grep -q full said
kill -INT $recorder
wait $recorder || true
run 'strandline report service.strandline'
run 'strandline report service.strandline --type __main__.Session'
