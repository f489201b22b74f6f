package rlock.boot;

/** A bean that hears what the starter's client tells: a type of its own, as others look for beans of {@code Consumer}. */
public interface OccurrenceListener {
    void hear(rlock.Occurrence it);
}
