package rlock;

/**
 * What the engine's bytecode calls at each loop and call, since its build. Chicory's method throws in an interrupted thread, which
 * would leave the engine in an inconsistent state. An interrupt is meant for the code of a user, in whose thread a client is
 * opened, or in a stage of a future in the client's thread.
 */
final class Interruption {
    private Interruption() {}

    static void checkInterruption() {}
}
