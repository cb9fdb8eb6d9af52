/*
 * strandline: names an instant of a Java program for `strandline run`.
 *
 *     import strandline.Strandline;      // javac this file into your class path
 *     Strandline.mark("cache filled");
 *     strandline run -o cache.strandline -- java -cp classes Program
 *
 * Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is one volatile load and a branch after the
 * first. With it, a mark is three system calls plus the time that strandline takes for its sample; some
 * short-lived objects. Figures: docs/probes.md.
 *
 * Java 8 or later, Linux, no native code. Java has no way to open an inherited descriptor, so its number is
 * put into a FileDescriptor with sun.misc.Unsafe: silently up to Java 23. From 24 on, start the program with
 * --add-opens java.base/java.io=ALL-UNNAMED: then the constructor is used instead. Without that, Java 24 and
 * 25 warn once on standard error, and a Java that refuses makes marks do nothing.
 * In a named module, the module requires jdk.unsupported.
 *
 * Threads take turns. Processes of one tree do not: when two mark in the same instant, the later one's
 * sample may be taken a little after its mark. Java closes the descriptor in its children.
 */
package strandline;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.FileReader;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;

/** Marks for strandline. */
public final class Strandline {
    private static final int NAME_BYTES = 200;
    private static final int FIRST_THAT_WARNS = 24;

    // Volatile, so that marks without strandline need no lock.
    private static volatile boolean off;
    private static boolean looked;
    private static Path link;
    private static String file;
    private static FileInputStream in;
    private static FileOutputStream out;

    private Strandline() {}

    /**
     * Names this instant; returns when strandline has taken its sample. Does nothing where strandline is not
     * there, or is no more.
     *
     * @param name its name; control characters become spaces, and it is cut to 200 bytes
     */
    public static void mark(String name) {
        if (!off) {
            markOn(name);
        }
    }

    private static synchronized void markOn(String name) {
        try {
            if (!looked) {
                looked = true;
                off = !look();
            }
            if (!off) {
                // The descriptor may be another file of the program's by now.
                off = !isOurs() || !talk(line(String.valueOf(name)));
            }
        } catch (ReflectiveOperationException | IOException | RuntimeException | LinkageError e) {
            off = true;
        }
    }

    private static byte[] line(String name) {
        byte[] all = name.substring(0, Math.min(name.length(), NAME_BYTES)).getBytes(StandardCharsets.UTF_8);
        int size = Math.min(all.length, NAME_BYTES);
        byte[] line = Arrays.copyOf(all, size + 1);
        for (int i = 0; i < size; i++) {
            if (line[i] >= 0 && line[i] < 32 || line[i] == 127) {
                line[i] = ' ';
            }
        }
        line[size] = '\n';
        return line;
    }

    /** Writes the line and waits for the answer; false, or an exception, where nobody is at the other end. */
    private static boolean talk(byte[] line) throws IOException {
        out.write(line);
        for (;;) {
            try {
                return in.read() >= 0;
            } catch (IOException e) {
                // A process of the tree may have made the socket non-blocking, which says so by an exception.
                // One for a broken connection comes once, and the end of input after it.
                if (!isOurs()) {
                    return false;
                }
                sleep();
            }
        }
    }

    private static void sleep() {
        try {
            Thread.sleep(1);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            Thread.yield();
        }
    }

    private static boolean isOurs() {
        return file.equals(target(link));
    }

    private static String target(Path link) {
        try {
            return Files.readSymbolicLink(link).toString();
        } catch (IOException | RuntimeException e) {
            return "";
        }
    }

    /** Whether there is a strandline to talk to: the number, above the standard descriptors, of a stream socket. */
    private static boolean look() throws ReflectiveOperationException {
        String value = System.getenv("STRANDLINE_MARK_FD");
        if (value == null || !value.matches("[0-9]{1,9}") || Integer.parseInt(value) < 3) {
            return false;
        }
        link = Paths.get("/proc/self/fd/" + Integer.parseInt(value));
        file = target(link);
        if (!file.startsWith("socket:[") || isOtherKind(file.substring(8, file.length() - 1))) {
            return false;
        }
        FileDescriptor descriptor = descriptor(Integer.parseInt(value));
        in = new FileInputStream(descriptor);
        out = new FileOutputStream(descriptor);
        return true;
    }

    /**
     * Whether the kernel's list says that the socket is of another kind than a stream. A socket that is not in
     * it may be of another network namespace.
     */
    private static boolean isOtherKind(String inode) {
        // Not Files: that would leave a buffer outside the heap with each thread.
        try (BufferedReader rows = new BufferedReader(new FileReader("/proc/net/unix"))) {
            // Num RefCount Protocol Flags Type St Inode Path
            for (String row = rows.readLine(); row != null; row = rows.readLine()) {
                String[] columns = row.trim().split(" +");
                if (columns.length > 6 && columns[6].equals(inode)) {
                    return !columns[4].equals("0001");
                }
            }
            return false;
        } catch (IOException | RuntimeException e) {
            return false;
        }
    }

    private static FileDescriptor descriptor(int number) throws ReflectiveOperationException {
        String version = System.getProperty("java.specification.version", "0");
        if (!version.startsWith("1.") && Integer.parseInt(version) >= FIRST_THAT_WARNS) {
            try {
                Constructor<FileDescriptor> constructor = FileDescriptor.class.getDeclaredConstructor(int.class);
                constructor.setAccessible(true);
                return constructor.newInstance(number);
            } catch (RuntimeException | ReflectiveOperationException e) {
                // java.io is not open to us.
            }
        }
        // By reflection throughout: it compiles without a warning, and without the class.
        Class<?> type = Class.forName("sun.misc.Unsafe");
        Field instance = type.getDeclaredField("theUnsafe");
        instance.setAccessible(true);
        Object unsafe = instance.get(null);
        FileDescriptor descriptor = new FileDescriptor();
        Field field = FileDescriptor.class.getDeclaredField("fd");
        Object offset = type.getMethod("objectFieldOffset", Field.class).invoke(unsafe, field);
        type.getMethod("putInt", Object.class, long.class, int.class).invoke(unsafe, descriptor, offset, number);
        return descriptor;
    }
}
