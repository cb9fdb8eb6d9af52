// Takes COUNT buffers of 1 MiB: java Buffers bytes|fill|direct COUNT. Marks `before` and `taken`; prints one line of
// JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use until then).

import java.nio.ByteBuffer;
import java.util.Arrays;
import strandline.Strandline;

public final class Buffers {
    private static final int BUFFER_BYTES = 1 << 20;

    private static ByteBuffer take(String idiom) {
        switch (idiom) {
            case "bytes":
                return ByteBuffer.wrap(new byte[BUFFER_BYTES]);
            case "fill":
                byte[] filled = new byte[BUFFER_BYTES];
                Arrays.fill(filled, (byte) 0);
                return ByteBuffer.wrap(filled);
            case "direct":
                return ByteBuffer.allocateDirect(BUFFER_BYTES);
            default:
                throw new IllegalArgumentException(idiom);
        }
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[1]);
        ByteBuffer[] buffers = new ByteBuffer[count];
        Strandline.mark("before");
        for (int i = 0; i < count; i++) {
            buffers[i] = take(arguments[0]);
        }
        Strandline.mark("taken");
        long sum = 0;
        for (ByteBuffer buffer : buffers) {
            sum += buffer.get(5000);
        }
        System.out.println("{\"wanted_bytes\": " + (long) count * BUFFER_BYTES + ", \"sum\": " + sum + "}");
    }
}
