// Threads allocate and check their objects while one collects without end: the collector stops the
// others by a signal. Each byte of its input prints the number of collections and of wrong bytes; q
// ends it.
import core.atomic;
import core.memory : GC;
import core.stdc.stdio : EOF, fflush, getchar, printf, puts, stdout;
import core.sys.posix.unistd : _exit;
import core.thread : Thread;

shared ulong collections, wrong;

void work() {
  for (ubyte turn = 1;; turn++) {
    auto block = new ubyte[](1000 + turn);
    block[] = turn;
    auto other = new ubyte[](100);
    other[] = 0;
    if (block[0] != turn || block[$ - 1] != turn) atomicOp!"+="(wrong, 1);
  }
}

void collect() {
  for (;;) {
    GC.collect();
    atomicOp!"+="(collections, 1);
  }
}

void main() {
  foreach (i; 0 .. 3) new Thread(&work).start();
  new Thread(&collect).start();
  while (atomicLoad(collections) < 10) Thread.yield();
  puts("ready");
  fflush(stdout);
  for (int command; (command = getchar()) != 'q' && command != EOF;) {
    printf("{\"collections\":%llu,\"wrong\":%llu}\n", atomicLoad(collections), atomicLoad(wrong));
    fflush(stdout);
  }
  _exit(0);
}
