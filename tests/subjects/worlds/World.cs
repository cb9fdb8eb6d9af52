// Threads allocate and check their objects while one collects without end: the collector stops the
// others by a signal. Each byte of its input prints the number of collections and of wrong bytes; q
// ends it.
using System;
using System.Threading;

static class World {
  static long collections, wrong;
  static volatile byte[] sink;

  static void Work() {
    for (byte turn = 1;; turn++) {
      var block = new byte[1000 + turn];
      for (int i = 0; i < block.Length; i++) block[i] = turn;
      sink = new byte[100];
      if (block[0] != turn || block[block.Length - 1] != turn) Interlocked.Increment(ref wrong);
    }
  }

  static void Collect() {
    for (;;) {
      GC.Collect();
      Interlocked.Increment(ref collections);
    }
  }

  static void Start(ThreadStart run) {
    new Thread(run) { IsBackground = true }.Start();
  }

  static void Main() {
    for (int i = 0; i < 3; i++) Start(Work);
    Start(Collect);
    while (Interlocked.Read(ref collections) < 10) Thread.Yield();
    Console.WriteLine("ready");
    var input = Console.OpenStandardInput();
    for (int command; (command = input.ReadByte()) != 'q' && command >= 0;)
      Console.WriteLine("{{\"collections\":{0},\"wrong\":{1}}}", Interlocked.Read(ref collections), Interlocked.Read(ref wrong));
    Environment.Exit(0);
  }
}
