import type { ConnectionOptions } from 'node:tls';

/**
 * The name of a lock: well-formed text, or any bytes, but not empty. Where a client shows a key as text, bytes that are no
 * UTF-8 are U+FFFD there, so two keys may look the same.
 */
export type Key = string | Uint8Array;

/** The kind of an error; the codes are the same in every language. */
export type Code =
  | 'OutOfRange' | 'Connect' | 'Member' | 'ModuleMissing' | 'Unavailable' | 'NotReplicated' | 'Lost' | 'QueueFull'
  | 'Cancelled' | 'Deadlock' | 'HeldOtherwise' | 'Denied' | 'NotALock' | 'OutOfMemory' | 'Refused' | 'Protocol' | 'Closed'
  | 'NotAcquired';

export class RlockError extends Error {
  /** The kind of the error. `name` is the code followed by `Error`, such as `LostError`. */
  readonly code: Code;
  /** Whether a retry may help. */
  readonly transient: boolean;
}

/** Times are in milliseconds; fractions are rounded up. */
export interface ClientOptions {
  /** The beginning of the names of connections and owners, for people who inspect the server: 1 to 64 bytes without spaces. */
  name?: string;
  /** How long the server may take for one reply. Default 5000. */
  responseTimeout?: number;
  /** How long calls that do not wait for a lock are retried while servers are unreachable. Default 10,000. */
  retryTimeout?: number;
  /** How long replicas may take to acknowledge a grant; see `replicas`. Default 1000. */
  replicationTimeout?: number;
  /**
   * For `rediss://`: options of `tls.connect`, such as `ca`, `cert`, `key`. Default: Node's own root certificates. What Node
   * refuses is a RangeError with the reason.
   */
  tls?: ConnectionOptions;
  /**
   * Receives the events of connections. Without it, the client passes only warnings to `process.emitWarning`, with the
   * name `RlockWarning`. The first failure of an outage is a warning.
   */
  log?: (level: 'debug' | 'info' | 'warn', text: string) => void;
  /**
   * Hears how each wait and each hold ends, and of connections and renewals: see docs/telemetry.md. It must be quick. What it
   * throws is logged as a warning.
   */
  listener?: (occurrence: Occurrence) => void;
}

/**
 * What has happened to a call, a hold or a connection. The keys may be secret, so `inspect`, `JSON.stringify` and a copy of all
 * properties do not show them.
 */
export interface Occurrence {
  readonly kind: 'wait' | 'hold' | 'at_risk' | 'not_renewed' | 'not_released' | 'connected' | 'not_connected' | 'disconnected';
  /** How a wait or a hold ended; otherwise empty. */
  readonly outcome: '' | 'granted' | 'refused' | 'abandoned' | 'released' | 'lease_ended' | 'ended_by_server' | 'closed' | Code;
  /** In milliseconds, with fractions. */
  readonly duration: number;
  readonly keys: readonly string[];
  /** The address of a server, or its error. */
  readonly text: string;
}

/** Times are in milliseconds; fractions are rounded up. */
export interface LockOptions {
  /** How long to wait. Default: no limit. */
  wait?: number;
  /** Ends the wait: the call rejects with the signal's reason at once, and the client withdraws the request. */
  signal?: AbortSignal;
  /** How long others wait after this process has died: 3 ms to 30 days, and at most the server's limit. Default 30,000. */
  lease?: number;
  /** Whether the client renews the lease, every third of it. Default true. Otherwise the lock is lost when the lease ends. */
  renew?: boolean;
  /** The longest time, counted from the grant, for which the lease is renewed. Then the lock is lost. Default: no limit. */
  maxHold?: number;
  /** The hold ends this time after its connection. Default: it does not depend on its connection. One key only. */
  bound?: number;
  /** How many replicas must acknowledge a grant and each renewal. Default 0. Not together with `bound`. */
  replicas?: number;
  /**
   * How long before the lease ends at the server the guard is lost here: time for code that looks at its guard now and then.
   * Default 0, at most a third of `lease`, of `bound` and of `maxHold`.
   */
  margin?: number;
  /** The owner of the lock, made by `activity()` of any client. Default: a new owner for each call. */
  activity?: Activity;
  /**
   * Called with the milliseconds that are left if no renewal has been confirmed for half of the lease; again only after one
   * has succeeded. Then there is still time to finish, or to begin nothing new. What it throws is logged as a warning.
   */
  onRisk?: (left: number) => void;
}

/**
 * An owner for sequential work: its calls re-enter its locks. If two activities would wait for each other, the server
 * refuses the second wait with `Deadlock`.
 */
export class Activity {
  private constructor();
  /** Only a client makes one. */
  private readonly brand: never;
  readonly number: number;
}

export interface Metrics {
  grants: number;
  waits: number;
  losses: number;
  lateRenewals: number;
  reconnects: number;
}

/** What a client and a quorum have in common. */
declare abstract class Locks {
  protected constructor();
  /** Connects now, and rejects if that fails. Without it, the first call connects. */
  connect(options?: { signal?: AbortSignal }): Promise<void>;
  /** Waits for the lock. Rejects with `NotAcquired` after `wait`. */
  lock(key: Key, options?: LockOptions): Promise<Guard>;
  /** Takes the lock if it is free; otherwise `null`. */
  tryLock(key: Key, options?: LockOptions): Promise<Guard | null>;
  /** Runs `work` while the lock is held. Rejects with `Lost` if it was lost, even if `work` did not notice. */
  using<T>(key: Key, work: (signal: AbortSignal, guard: Guard) => Promise<T> | T): Promise<T>;
  using<T>(key: Key, options: LockOptions, work: (signal: AbortSignal, guard: Guard) => Promise<T> | T): Promise<T>;
  /** A new owner for sequential work: the option `activity` of each call. */
  activity(): Activity;
  /**
   * Ends all waits with `Closed`, releases all holds, and closes the connections, within `timeout`: 5000 by default. Another
   * call waits for the same end, and only the `timeout` of the first one counts.
   */
  close(options?: { timeout?: number }): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Locks of one server, of a master that Sentinels name, or of a cluster. A client has one connection to each server, for
 * any number of locks and waits.
 */
export class Client extends Locks {
  /**
   * Creates a client, which connects at its first call. The URL begins with `redis://`, `rediss://`, `redis+unix://`,
   * `redis+sentinel://`, `rediss+sentinel://`, `redis+cluster://` or `rediss+cluster://`; default `redis://127.0.0.1:6379`.
   * @throws RangeError, TypeError if the URL or an option is invalid
   */
  constructor(url?: string, options?: ClientOptions);
  /** Takes all of 1 to 1024 locks, or none. */
  lockAll(keys: readonly Key[], options?: LockOptions): Promise<Guard>;
  tryLockAll(keys: readonly Key[], options?: LockOptions): Promise<Guard | null>;
  /** Takes the lock together with other readers. A writer calls `lock` with the same key. */
  read(key: Key, options?: LockOptions): Promise<Guard>;
  tryRead(key: Key, options?: LockOptions): Promise<Guard | null>;
  /** Takes permits of a semaphore that has `limit` permits, 1 to 1,000,000. */
  acquire(key: Key, limit: number, options?: LockOptions & { permits?: number }): Promise<Guard>;
  tryAcquire(key: Key, limit: number, options?: LockOptions & { permits?: number }): Promise<Guard | null>;
  /** Runs `work` while the locks are held. Rejects with `Lost` if they were lost, even if `work` did not notice. */
  using<T>(keys: Key | readonly Key[], work: (signal: AbortSignal, guard: Guard) => Promise<T> | T): Promise<T>;
  using<T>(
    keys: Key | readonly Key[], options: LockOptions, work: (signal: AbortSignal, guard: Guard) => Promise<T> | T,
  ): Promise<T>;
  /**
   * The right to lead at a key, and the current leader. `options` apply to each campaign. Creating it sends nothing.
   * @throws TypeError, RangeError, RlockError if an argument is invalid
   */
  election(key: Key, options?: LockOptions): Election;
  /** The fields of `RLOCK.INFO` for a lock. */
  info(key: Key): Promise<Record<string, unknown>>;
  /**
   * Ends every hold of a lock, or only the hold with this `fence`, and returns their number. With the fence from `info` it
   * never ends a later hold. A RangeError unless it is from 1 to 9007199254740991.
   */
  force(key: Key, options?: { fence?: bigint | number }): Promise<number>;
  /** The counters of this client. */
  metrics(): Promise<Metrics>;
}

export interface QuorumOptions extends ClientOptions {
  /**
   * Allows leases above the startup grace of a member. Then a member that crashes may grant a lock again that is still
   * held, and two can hold it at the same time. Use this only for servers that never forget for another reason. Default
   * false: such a lease is refused with `Member`.
   */
  anyGrace?: boolean;
}

/**
 * Locks that a majority of 3, 5, 7 or 9 independent servers holds, so they survive the failure of a minority. This is
 * Redlock, with a queue and a fence; it is not consensus. A member needs `rlock.startup-grace-ms` of at least the longest
 * lease, or `appendonly yes` with `appendfsync always`.
 *
 * The guards are those of a client. `upgrade` and `downgrade` reject with `OutOfRange`: all locks are exclusive.
 */
export class Quorum extends Locks {
  /**
   * Creates a quorum, which connects at its first call. Each URL is of one server (`redis://`, `rediss://`,
   * `redis+unix://`), and all processes name the same ones. Members that are down join later.
   *
   * Calls reject with `Member` if a server cannot take part: it is the same as another one, a replica, or without the
   * module.
   * @throws RangeError, TypeError if a URL, their number or an option is invalid
   */
  constructor(members: readonly string[], options?: QuorumOptions);
}

/** The value that a leader publishes: well-formed text or any bytes, 0 to 1024 of them. */
export type Value = string | Uint8Array;

/**
 * One of several processes leads, first come, first served, and publishes a value, such as its address. An election is
 * the lock at its key. An owner that holds the lock without a campaign keeps candidates waiting, but is not a leader.
 */
export class Election {
  private constructor();
  /**
   * Waits until this process leads, and publishes `value` from then on. Like `Client.lock`, it rejects with
   * `NotAcquired` after `wait`, and leaves nothing on the server if `signal` aborts.
   */
  campaign(value: Value, options?: LockOptions): Promise<Leadership>;
  /** Leads if nobody else does, otherwise `null`. */
  tryCampaign(value: Value, options?: LockOptions): Promise<Leadership | null>;
  /** The leader at the moment of the request. It may have changed since. */
  leader(options?: { signal?: AbortSignal }): Promise<Leader | null>;
  /**
   * The current leader, then each change: see `Changes`. It begins at once. All observers of one client share its
   * connection. It ends with the reason of `signal` if that aborts.
   * @throws TypeError if `signal` is invalid
   */
  observe(options?: { signal?: AbortSignal }): Changes;
}

/** The current leader, according to the server. */
export interface Leader extends Proclaimed {
  readonly owner: string;
  /** The milliseconds until its leadership ends unless it is renewed. */
  readonly timeLeft: number;
}

/** What a leader has published. */
export interface Proclaimed {
  /** Larger than the fence of every earlier leader. */
  readonly fence: bigint;
  readonly value: Buffer;
}

export interface Change {
  /** The new leader; `null` if nobody leads. */
  readonly leader: Proclaimed | null;
  /**
   * Whether the observer may have missed leaders since the last change. This happens if there was no connection, or if
   * it did not take its changes in time.
   */
  readonly missed: boolean;
}

/**
 * The current leader, then each change. The first change is the current leader, or `null`. Each change comes once, and
 * fences never decrease. After a new connection, a fail-over or a moved slot, the next change is the leader of that
 * moment, and it is `missed`. At most 1024 changes are kept: older ones are dropped, and the next one is `missed`.
 *
 * The iterator continues while the server is unreachable. Errors that do not pass by themselves are thrown once, and end
 * it: `Denied`, `NotALock`, `ModuleMissing`, `Refused`, `Closed`. Leaving the loop ends it, as `return()` does. The
 * process stays alive while the program waits for a change.
 */
export class Changes implements AsyncIterableIterator<Change> {
  private constructor();
  next(): Promise<IteratorResult<Change, undefined>>;
  return(): Promise<IteratorResult<Change, undefined>>;
  [Symbol.asyncIterator](): this;
  [Symbol.asyncDispose](): Promise<void>;
}

export class Guard {
  protected constructor();
  readonly key: string;
  readonly keys: readonly string[];
  readonly owner: string;
  /** Larger than the fence of every earlier holder. Send it with each write. */
  readonly fence: bigint;
  /** The fence of each key. Keys of bytes that look the same as text have one entry. */
  readonly fences: Readonly<Record<string, bigint>>;
  /** Aborts when the lock is lost, with `Lost` as its reason. */
  readonly signal: AbortSignal;
  /** For how many milliseconds the lock stays held if the server sends nothing more; 0 if it is lost or released. */
  readonly remaining: number;
  readonly isValid: boolean;
  /** Throws `Lost` unless the lock is held now. */
  check(): void;
  /**
   * Releases the lock, or only some of its `permits`: it stays held until all are released. Rejects with `Lost` if it was
   * lost before; with a RangeError unless `permits` is from 1 to the number that is still held (1 if it is no semaphore),
   * and nothing is released then.
   */
  release(options?: { permits?: number }): Promise<void>;
  /** The same, but the server keeps the lock until `least` milliseconds after the grant. */
  releaseAfter(least: number): Promise<void>;
  /** Makes the lease last for at least `lease` milliseconds from now. */
  extend(lease: number): Promise<void>;
  /**
   * Makes a shared hold exclusive. False after `wait`; the hold is then still shared. Rejects with `Lost` if the shared
   * hold is lost meanwhile, and acquires nothing then.
   */
  upgrade(options?: { wait?: number; signal?: AbortSignal }): Promise<boolean>;
  /** Makes an exclusive hold shared. */
  downgrade(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** The leadership, until it is resigned or lost. Another process may lead before this one notices a loss: see `fence`. */
export class Leadership extends Guard {
  private constructor();
  /**
   * Publishes another value, which observers receive under the same fence. Rejects with `Lost`; with `OutOfRange` for
   * more than 1024 bytes; or with `Unavailable`, after which either value may be published.
   */
  proclaim(value: Value): Promise<void>;
  /** Ends the leadership: the same as `release`. */
  resign(): Promise<void>;
}

// Nothing else is exported.
export {};
