import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import com.sun.management.HotSpotDiagnosticMXBean;

/**
 * Fills a list with arrays and drops it: in main or in a method that returns, after a
 * collection or without one. Then it allocates nothing, so that the JVM has no cause to
 * collect.
 */
public final class Dropped {
    private static final byte[] READY = "ready\n".getBytes();
    private static volatile long sum;
    private static FileOutputStream out;
    private static FileInputStream in;

    private static void fill(int count, int bytes) {
        List<byte[]> held = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            held.add(new byte[bytes]);
        }
        held = null;
    }

    /** Collects, and leaves the heap so large that filling it needs no collection. */
    private static void collect() {
        HotSpotDiagnosticMXBean machine = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
        String most = machine.getVMOption("MaxHeapFreeRatio").getValue();
        machine.setVMOption("MaxHeapFreeRatio", "100");
        System.gc();
        machine.setVMOption("MaxHeapFreeRatio", most);
    }

    /** Prints "ready" and waits for its input. */
    private static void rest() throws IOException {
        out.write(READY);
        in.read();
    }

    public static void main(String[] arguments) throws Exception {
        out = new FileOutputStream(FileDescriptor.out);
        in = new FileInputStream(FileDescriptor.in);
        int count = Integer.parseInt(arguments[2]);
        int bytes = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("collected")) {
            collect();
        }
        if (arguments[1].equals("method")) {
            fill(count, bytes);
        } else {
            List<byte[]> held = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                held.add(new byte[bytes]);
            }
            // Only a local variable holds these arrays, until the end.
            if (arguments[1].equals("held")) {
                rest();
                System.out.println(held.size());
                return;
            }
            // The same in a method that computes: a collection would have to wait for it.
            if (arguments[1].equals("running")) {
                byte[][] all = held.toArray(new byte[0][]);
                held = null;
                out.write(READY);
                for (int i = 0; ; i = (i + 1) % count) {
                    sum += all[i].length;
                }
            }
            held = null;
        }
        rest();
    }
}
