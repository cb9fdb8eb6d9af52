import java.util.HashMap;
import java.util.Map;
import strandline.Strandline;

/**
 * Fills a map, deletes half of it, and makes the JVM give back what it will: System.gc().
 *
 * <pre>java Half COUNT BYTES WHICH MILLISECONDS        WHICH: alternate or oldest</pre>
 *
 * Collectors that give back later, by a thread of their own, are waited for so long after each collection.
 */
final class Half {
    /** The serial collector shrinks its heap by steps, and is done at the fourth collection that was asked for. */
    private static final int COLLECTIONS = 4;

    private Half() {}

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]);
        int size = Integer.parseInt(arguments[1]);
        boolean alternate = arguments[2].equals("alternate");
        long wait = Long.parseLong(arguments[3]);
        Map<Integer, byte[]> kept = new HashMap<>();
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
        Thread.sleep(wait);
        Strandline.mark("remedied");
        for (int i = 1; i < COLLECTIONS; i++) {
            System.gc();
        }
        Thread.sleep(wait);
        Strandline.mark("insisted");
        long deleted = (long) (count - kept.size()) * size;
        System.out.println("{\"left\": " + kept.size() + ", \"deleted_bytes\": " + deleted + "}");
    }
}
