// Fills a heap, drops objects, and prints the figures of the JVM's management beans. It obeys
// commands on standard input, one a line:
//
//   hold N   keeps N objects of class Held, each with a list of three
//   drop     drops nine of ten
//   large N  keeps N arrays of 5 MiB
//   load N   makes N class loaders, each of which loads a class
//   gc       collects
//   pools    prints its memory pools, a line each: NAME TAB used TAB committed; and two lines of
//            the same form: the number of collections, and the classes loaded and unloaded
//   end      ends
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ClassLoadingMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

public class Subject {
    static class Held {
        long number;
        List<Object> list = new ArrayList<>(3);
    }

    static class Loader extends ClassLoader {
        Class<?> again(String name, byte[] bytes) {
            return defineClass(name, bytes, 0, bytes.length);
        }
    }

    public static class Loaded {}

    static final List<Object> kept = new ArrayList<>();

    static void hold(int count) {
        for (int n = 0; n < count; n++) {
            Held held = new Held();
            held.number = n;
            held.list.add(n);
            held.list.add("value " + n);
            kept.add(held);
        }
    }

    static void load(int count) throws Exception {
        byte[] bytes;
        try (InputStream stream = Subject.class.getResourceAsStream("Subject$Loaded.class")) {
            bytes = stream.readAllBytes();
        }
        for (int n = 0; n < count; n++) {
            kept.add(new Loader().again("Subject$Loaded", bytes).getDeclaredConstructor().newInstance());
        }
    }

    static void pools() {
        List<MemoryPoolMXBean> pools = ManagementFactory.getMemoryPoolMXBeans();
        for (MemoryPoolMXBean pool : pools) {
            var usage = pool.getUsage();
            System.out.println(pool.getName() + "\t" + usage.getUsed() + "\t" + usage.getCommitted());
        }
        long collections = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            collections += collector.getCollectionCount();
        }
        System.out.println("collections\t" + collections + "\t0");
        ClassLoadingMXBean classes = ManagementFactory.getClassLoadingMXBean();
        System.out.println("classes\t" + classes.getTotalLoadedClassCount() + "\t" + classes.getUnloadedClassCount());
    }

    /// A direct buffer in which no page has only zeros.
    static ByteBuffer direct(int bytes) {
        ByteBuffer buffer = ByteBuffer.allocateDirect(bytes);
        for (int at = 0; at < bytes; at += 1024) buffer.put(at, (byte) 1);
        return buffer;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            int count = words.length > 1 ? Integer.parseInt(words[1]) : 0;
            switch (words[0]) {
                case "hold": hold(count); break;
                case "drop": {
                    List<Object> few = new ArrayList<>();
                    for (int n = 0; n < kept.size(); n += 10) few.add(kept.get(n));
                    kept.clear();
                    kept.addAll(few);
                    break;
                }
                case "large": for (int n = 0; n < count; n++) kept.add(new byte[5 << 20]); break;
                case "load": load(count); break;
                case "direct": for (int n = 0; n < count; n++) kept.add(direct(1 << 20)); break;
                case "gc": System.gc(); break;
                case "pools": pools(); break;
                case "end": return;
                default: System.out.println("what is " + words[0] + "?");
            }
            System.out.println("done");
        }
    }
}
