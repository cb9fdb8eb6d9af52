needs java javac
cat > Loaders.java <<'END'
import java.io.InputStream;
import java.util.*;

class Loaders extends ClassLoader {
    public static class Small {
        public Small() {}
    }

    Class<?> define(byte[] code) {
        return defineClass("Loaders$Small", code, 0, code.length);
    }

    public static void main(String[] words) throws Exception {
        byte[] code;
        try (InputStream file = Loaders.class.getResourceAsStream("Loaders$Small.class")) {
            code = file.readAllBytes();
        }
        List<Object> kept = new ArrayList<>();
        for (int i = 0; i < 8_000; i++) kept.add(new Loaders().define(code).getDeclaredConstructor().newInstance());
        System.out.println("ready");
        Thread.sleep(600_000);
        System.out.println(kept.size());
    }
}
END
javac Loaders.java
run 'java -Xmx64m Loaders &'
subject=$!
await printed '^ready'
run 'strandline explain $(pidof java)'
