// Threads allocate and check their objects while one collects without end: each collection waits
// until all others are at a safepoint. Each byte of its input prints the number of collections and
// of wrong bytes; q ends it.
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLong;

public class World {
    static final AtomicLong collections = new AtomicLong(), wrong = new AtomicLong();
    static volatile byte[] sink;

    static void work() {
        for (byte turn = 1;; turn++) {
            byte[] block = new byte[1200 + turn];
            Arrays.fill(block, turn);
            sink = new byte[100];
            if (block[0] != turn || block[block.length - 1] != turn) wrong.incrementAndGet();
        }
    }

    static void collect() {
        for (;;) {
            System.gc();
            collections.incrementAndGet();
        }
    }

    static void start(Runnable run) {
        Thread thread = new Thread(run);
        thread.setDaemon(true);
        thread.start();
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < 2; i++) start(World::work);
        start(World::collect);
        while (collections.get() < 10) Thread.yield();
        System.out.println("ready");
        for (int command; (command = System.in.read()) != 'q' && command >= 0;)
            System.out.println("{\"collections\":" + collections + ",\"wrong\":" + wrong + "}");
        System.exit(0);
    }
}
