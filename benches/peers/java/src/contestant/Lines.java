package contestant;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;

/** What is printed, and what is read: one line each. */
final class Lines {
    private Lines() {}

    /** Wall clock, in microseconds since 1970. */
    static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    static void print(String line) {
        System.out.print(line + "\n");
        System.out.flush();
    }

    static void event(String name) {
        print("{\"event\":\"" + name + "\"}");
    }

    static void eventAt(String name) {
        print("{\"event\":\"" + name + "\",\"at\":" + now() + "}");
    }

    /** A row is caller, asked, granted, releasing, released. */
    static void finish(List<long[]> rows, long errors) {
        StringBuilder lines = new StringBuilder();
        for (long[] row : rows) {
            char before = '[';
            for (long number : row) {
                lines.append(before).append(number);
                before = ',';
            }
            lines.append("]\n");
        }
        lines.append("{\"event\":\"done\",\"errors\":").append(errors).append('}');
        print(lines.toString());
    }

    /** Waits for the driver's word. */
    static void await() throws IOException {
        if (new BufferedReader(new InputStreamReader(System.in)).readLine() == null) {
            throw new IOException("standard input has ended: nobody says when to go on");
        }
    }
}
