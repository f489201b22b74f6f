import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Has the engine's classes call {@code rlock.Comparisons} and {@code rlock.Interruption} for the methods that are in them, instead
 * of Chicory's. Only the table of constants of each class file changes. The argument is the directory of the classes.
 */
final class Redirect {
    private static final Set<String> COMPARISONS =
            Set.of("I32_LT_U", "I32_LE_U", "I32_GT_U", "I32_GE_U", "I64_LT_U", "I64_LE_U", "I64_GT_U", "I64_GE_U");
    /** Behind the magic number and the version. */
    private static final int COUNT = 8;

    private final byte[] file;
    private final ByteBuffer bytes;
    private final Map<Integer, String> texts = new HashMap<>();
    private final Map<Integer, Integer> offsets = new HashMap<>();
    private final int count;
    private final int end;

    private Redirect(byte[] file) throws IOException {
        this.file = file;
        bytes = ByteBuffer.wrap(file);
        count = bytes.getChar(COUNT);
        int at = COUNT + 2;
        for (int i = 1; i < count; i++) {
            offsets.put(i, at);
            switch (file[at]) {
                case 1: // A text.
                    int length = bytes.getChar(at + 1);
                    texts.put(i, new DataInputStream(new ByteArrayInputStream(file, at + 1, length + 2)).readUTF());
                    at += 3 + length;
                    break;
                case 5: // A long or a double has two places.
                case 6:
                    i++;
                    at += 9;
                    break;
                case 7: // A class and others that refer to one constant.
                case 8:
                case 16:
                case 19:
                case 20:
                    at += 3;
                    break;
                case 15:
                    at += 4;
                    break;
                default:
                    at += 5;
            }
        }
        end = at;
    }

    private String textAt(int place) {
        return texts.get((int) bytes.getChar(place));
    }

    private int at(int place) {
        return offsets.get((int) bytes.getChar(place));
    }

    /** The places of the references to these methods of a class. */
    private List<Integer> references(String type, Set<String> methods) {
        // A reference to a method has a class, which has a name, and a name with a type.
        return offsets.values().stream().filter(at -> file[at] == 10 && type.equals(textAt(at(at + 1) + 1))
                && methods.contains(textAt(at(at + 3) + 1))).collect(Collectors.toList());
    }

    /** The file with two more constants: the name of our class, and the class. The references lead to it. */
    private byte[] redirected(List<Integer> references, String to) throws IOException {
        references.forEach(at -> bytes.putChar(at + 1, (char) (count + 1)));
        bytes.putChar(COUNT, (char) (count + 2));
        var all = new ByteArrayOutputStream();
        var output = new DataOutputStream(all);
        output.write(file, 0, end);
        output.writeByte(1);
        output.writeUTF(to);
        output.writeByte(7);
        output.writeShort(count);
        output.write(file, end, file.length - end);
        return all.toByteArray();
    }

    private static void redirect(Path directory, String from, Set<String> methods, String to) throws IOException {
        int known = 0;
        try (var files = Files.newDirectoryStream(directory, "Compiled*.class")) {
            for (var path : files) {
                var file = new Redirect(Files.readAllBytes(path));
                var references = file.references(from, methods);
                known += references.size() + file.references(to, methods).size();
                if (!references.isEmpty()) {
                    Files.write(path, file.redirected(references, to));
                }
            }
        }
        if (known == 0) {
            throw new IllegalStateException("no class calls " + from + ": has Chicory's compiler changed?");
        }
    }

    public static void main(String[] arguments) throws IOException {
        var directory = Path.of(arguments[0], "rlock");
        redirect(directory, "com/dylibso/chicory/runtime/OpcodeImpl", COMPARISONS, "rlock/Comparisons");
        redirect(directory, "rlock/CompiledMachineShaded", Set.of("checkInterruption"), "rlock/Interruption");
    }
}
