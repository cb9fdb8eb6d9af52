import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;

/** Collects, makes 200 arrays of 1 MB, drops them, and waits. */
public class Garbage {
    static void fill() {
        List<byte[]> held = new ArrayList<>();
        for (int count = 0; count < 200; count++) held.add(new byte[1_000_000]);
        if (held.size() != 200) throw new IllegalStateException();
    }

    public static void main(String[] words) throws Exception {
        System.gc();
        fill();
        long used = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
        System.out.println("ready {\"used\": " + used + ", \"version\": \"" + System.getProperty("java.version") + "\"}");
        System.in.read();
    }
}
