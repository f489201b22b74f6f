package rlock;

import com.dylibso.chicory.runtime.ExportFunction;
import com.dylibso.chicory.runtime.Instance;
import com.dylibso.chicory.runtime.Memory;
import rlock.Engine.Writer;

/** The engine in WebAssembly, which Chicory has compiled to bytecode. It runs in an interrupted thread too: {@link Interruption}. */
final class Bytecode implements Machine {
    private final Instance instance;
    private final Memory memory;
    private final ExportFunction input;
    private final ExportFunction output;
    private final ExportFunction handle;
    private final ExportFunction remaining;

    Bytecode() {
        instance = Instance.builder(Compiled.load()).withMachineFactory(Compiled::create).build();
        memory = instance.memory();
        input = instance.export("rlock_input");
        output = instance.export("rlock_output");
        handle = instance.export("rlock_handle");
        remaining = instance.export("rlock_remaining");
    }

    /** Only a defect of the engine makes a call fail. */
    private static long call(ExportFunction function, long... arguments) {
        try {
            return function.apply(arguments)[0];
        } catch (RuntimeException defect) {
            throw new Error("the engine has failed", defect);
        }
    }

    private void pass(Writer event) {
        var at = (int) call(input, event.length);
        memory.write(at, event.bytes, 0, event.length);
    }

    private byte[] result(long length) {
        return memory.readBytes((int) call(output), (int) length);
    }

    @Override
    public long version() {
        return call(instance.export("rlock_version"));
    }

    @Override
    public byte[] open(Writer configuration) {
        pass(configuration);
        var wrong = call(instance.export("rlock_open"));
        return wrong == 0 ? null : result(wrong);
    }

    @Override
    public byte[] handle(Writer event, long now) {
        pass(event);
        var length = (int) call(handle, now);
        return length == -1 ? null : result(length);
    }

    @Override
    public long remaining(long guard, long now) {
        return call(remaining, guard, now);
    }

    @Override
    public void close() {
        // The memory is an object of Java.
    }
}
