needs python3
cat > prefork.py <<'END'
import os
import time

table = {number: str(number) * 8 for number in range(400_000)}
for _ in range(3):
    if os.fork() == 0:
        break
print('ready', flush=True)
time.sleep(600)
END
python3 prefork.py > said &
subject=$!
are_ready() {
    [ "$(grep -c ready said)" = 4 ]
}
await are_ready
run 'strandline explain --tree $(pidof python3)'
