import java.util.ArrayList;
import java.util.List;

/** Fills a list with arrays and lets go of it: in main or in a method that returns, after a collection or without one. */
public final class Dropped {
    private static volatile long sum;

    private static void fill(int count, int bytes) {
        List<byte[]> held = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            held.add(new byte[bytes]);
        }
        held = null;
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        int bytes = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("collected")) {
            System.gc();
        }
        if (arguments[1].equals("method")) {
            fill(count, bytes);
        } else {
            List<byte[]> held = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                held.add(new byte[bytes]);
            }
            // What is held until the end, by a local variable alone.
            if (arguments[1].equals("held")) {
                System.out.println("ready");
                System.in.read();
                System.out.println(held.size());
                return;
            }
            // The same, by a method that runs: there a collection would have to wait for it.
            if (arguments[1].equals("running")) {
                byte[][] all = held.toArray(new byte[0][]);
                held = null;
                System.out.println("ready");
                for (int i = 0; ; i = (i + 1) % count) {
                    sum += all[i].length;
                }
            }
            held = null;
        }
        System.out.println("ready");
        System.in.read();
    }
}
