import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.HashMap;
import java.util.Map;
import strandline.Strandline;

/**
 * Fills a map, deletes half of it, and makes the JVM give back what it will: System.gc().
 *
 * <pre>java Half COUNT BYTES WHICH MILLISECONDS        WHICH: alternate or oldest</pre>
 *
 * Some collectors give memory back later, from a thread of their own. After each collection this waits until RSS has not shrunk for
 * MILLISECONDS. If the number is negative, it first waits until no page of the committed heap is free, at most a minute: ZGC checks
 * once per ZUncommitDelay and counts in whole seconds, so that it uncommits up to two seconds after a collection. (RSS does not show
 * that: under ZGC it also shrinks where one of several mappings of the same memory goes.)
 */
final class Half {
    /** The serial collector shrinks its heap by steps, and is done at the fourth collection that was asked for. */
    private static final int COLLECTIONS = 4;

    /** Between two looks at RSS, in milliseconds. */
    private static final int PAUSE = 20;
    /** The longest wait for ZGC to uncommit what is free, in milliseconds. */
    private static final long MAX_WAIT = 60_000;
    /** The size of ZGC's small pages. */
    private static final long ZGC_PAGE = 2 << 20;
    /** Fewer pages than this are no shrinking. */
    private static final long FEW_PAGES = 64;

    private Half() {}

    /** Resident pages: the second number of statm. */
    private static long resident(RandomAccessFile statm, byte[] buffer) throws IOException {
        statm.seek(0);
        int length = statm.read(buffer);
        int at = 0;
        while (at < length && buffer[at] != ' ') at++;
        long pages = 0;
        for (at++; at < length && buffer[at] != ' '; at++) pages = pages * 10 + (buffer[at] - '0');
        return pages;
    }

    /** Waits until RSS has not shrunk in looks over this time: on a busy machine they take longer. */
    private static void rest(RandomAccessFile statm, byte[] buffer, long milliseconds, boolean uncommits)
            throws IOException, InterruptedException {
        for (long waited = 0; uncommits && waited < MAX_WAIT; waited += PAUSE) {
            Thread.sleep(PAUSE);
            uncommits = Runtime.getRuntime().freeMemory() >= ZGC_PAGE;
        }
        long last = resident(statm, buffer);
        for (long still = 0; still * PAUSE < milliseconds; still++) {
            Thread.sleep(PAUSE);
            long now = resident(statm, buffer);
            if (now + FEW_PAGES < last) {
                still = -1;
                last = now;
            }
        }
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        int size = Integer.parseInt(arguments[1]);
        boolean alternate = arguments[2].equals("alternate");
        long wait = Math.abs(Long.parseLong(arguments[3]));
        boolean uncommits = arguments[3].startsWith("-");
        Map<Integer, byte[]> kept = new HashMap<>();
        RandomAccessFile statm = new RandomAccessFile("/proc/self/statm", "r");
        byte[] buffer = new byte[128];
        // What this needs is loaded now.
        rest(statm, buffer, 1, false);
        Strandline.mark("start");
        for (int i = 0; i < count; i++) {
            // The JVM writes zeros to it.
            kept.put(i, new byte[size]);
        }
        Strandline.mark("filled");
        // Numbers that were made for it would have it collect.
        kept.keySet().removeIf(i -> alternate ? i % 2 == 0 : i < count / 2);
        Strandline.mark("halved");
        System.gc();
        rest(statm, buffer, wait, uncommits);
        Strandline.mark("remedied");
        for (int i = 1; i < COLLECTIONS; i++) {
            System.gc();
        }
        rest(statm, buffer, wait, uncommits);
        Strandline.mark("insisted");
        long deleted = (long) (count - kept.size()) * size;
        System.out.println("{\"left\": " + kept.size() + ", \"deleted_bytes\": " + deleted + "}");
    }
}
