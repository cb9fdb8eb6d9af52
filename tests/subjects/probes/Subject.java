import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import strandline.Strandline;

/** Grows by 64 MiB at a mark and gives it back at the next; status 7. */
public final class Subject {
    private static void loop(int count) {
        for (; count > 0; count--) {
            Strandline.mark("quiet");
        }
    }

    private static void crowd(int count) throws InterruptedException {
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> loop(count));
            threads[i].start();
        }
        for (int i = 0; i < 20; i++) {
            System.gc();
            threads[i % 4].interrupt();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Strandline.mark("after");
        System.exit(7);
    }

    private static long direct() {
        long bytes = 0;
        for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
            bytes += pool.getMemoryUsed();
        }
        return bytes;
    }

    private static ByteBuffer grow() {
        ByteBuffer memory = ByteBuffer.allocateDirect(64 << 20);
        for (int at = 0; at < memory.capacity(); at += 4096) {
            memory.put(at, (byte) 1);
        }
        return memory;
    }

    public static void main(String[] arguments) throws Exception {
        String task = arguments.length > 1 ? arguments[0] : "";
        if (task.equals("crowd")) {
            crowd(Integer.parseInt(arguments[1]));
        }
        if (task.equals("loop")) {
            loop(100);
            Strandline.mark("before");
            loop(Integer.parseInt(arguments[1]));
            Strandline.mark("after");
            System.exit(7);
        }
        // A first call, so that the JVM has loaded and allocated what it needs for it.
        long before = direct();
        Strandline.mark("start");
        ByteBuffer memory = grow();
        Strandline.mark("grown");
        memory = null;
        while (direct() > before) {
            System.gc();
            Thread.sleep(1);
        }
        Strandline.mark("freed");
        Strandline.mark("two\nlines\u0001");
        Strandline.mark(new String(new char[300]).replace('\0', 'n'));
        System.out.println("done");
        System.exit(7);
    }
}
