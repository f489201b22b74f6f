import type { ConnectionOptions } from 'node:tls';

/** The name of a lock: text, or any bytes. */
export type Key = string | Uint8Array;

/** What went wrong, in the same words in every language. */
export type Code =
  | 'OutOfRange' | 'Connect' | 'ModuleMissing' | 'Unavailable' | 'NotReplicated' | 'Lost' | 'QueueFull' | 'Cancelled'
  | 'Deadlock' | 'HeldOtherwise' | 'Denied' | 'NotALock' | 'OutOfMemory' | 'Refused' | 'Protocol' | 'Closed'
  | 'NotAcquired';

export class RlockError extends Error {
  /** What went wrong; `name` is the same with `Error` behind it, such as `LostError`. */
  readonly code: Code;
  /** Whether to try again may help. */
  readonly transient: boolean;
}

/** Times are in milliseconds; parts of one are rounded up. */
export interface ClientOptions {
  /** What connections and owners begin with, for those who look for them on the server: 1 to 64 bytes without spaces. */
  name?: string;
  /** How long the server may take for one reply. Default 5000. */
  responseTimeout?: number;
  /** How long calls that do not wait for a lock go on when servers cannot be reached. Default 10,000. */
  retryTimeout?: number;
  /** How long replicas may take to say that they know of a grant; see `replicas`. Default 1000. */
  replicationTimeout?: number;
  /** For `rediss://`: as of `tls.connect`, such as `ca`, `cert`, `key`. Default: Node's own roots. */
  tls?: ConnectionOptions;
  /** Receives the events of connections. Default: warnings go to `process.emitWarning`, with the name `RlockWarning`. */
  log?: (level: 'debug' | 'info' | 'warn', text: string) => void;
}

/** Times are in milliseconds; parts of one are rounded up. */
export interface LockOptions {
  /** How long to wait. Left out: without limit. */
  wait?: number;
  /** Ends the wait: the call rejects with its reason at once, and the request is withdrawn. */
  signal?: AbortSignal;
  /** How long others wait after this process has died; 1 ms to 30 days, at most what the server allows. Default 30,000. */
  lease?: number;
  /** Whether the lease is renewed, every third of it. Default true. Otherwise the lock is lost at its end. */
  renew?: boolean;
  /** For how long the lease is renewed at most, from the grant: then the lock is lost. Default without limit. */
  maxHold?: number;
  /** Ends the hold this much after the end of its connection. Default: the connection does not matter. One key only. */
  bound?: number;
  /** Counts a grant and each renewal only once this many replicas know of it. Default 0. Not together with `bound`. */
  replicas?: number;
  /** What the lock belongs to, instead of an owner of its own. See `Client.activity`. */
  activity?: Activity;
}

/** Calls of one activity enter again what it holds; two activities that wait for each other are refused with `Deadlock`. */
export interface Activity {
  readonly number: number;
}

export interface Metrics {
  grants: number;
  waits: number;
  losses: number;
  lateRenewals: number;
  reconnects: number;
}

/**
 * Locks of one server, of a master that Sentinels name, or of a cluster: one connection for each server, for any number
 * of locks and waits.
 */
export class Client {
  /**
   * Connects at the first call. `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `redis+cluster://`, and the
   * last two with `rediss`; default `redis://127.0.0.1:6379`.
   * @throws RangeError if the address or an option is bad
   */
  constructor(url?: string, options?: ClientOptions);
  /** Connects. Not needed: the first call does. */
  connect(options?: { signal?: AbortSignal }): Promise<void>;
  /** Waits for the lock. Rejects with `NotAcquired` if `wait` was not enough. */
  lock(key: Key, options?: LockOptions): Promise<Guard>;
  /** The lock if it is free, otherwise `null`. */
  tryLock(key: Key, options?: LockOptions): Promise<Guard | null>;
  /** All of 1 to 1024 locks or none. */
  lockAll(keys: readonly Key[], options?: LockOptions): Promise<Guard>;
  tryLockAll(keys: readonly Key[], options?: LockOptions): Promise<Guard | null>;
  /** The lock together with other readers. `lock` of the same key is the writer's. */
  read(key: Key, options?: LockOptions): Promise<Guard>;
  tryRead(key: Key, options?: LockOptions): Promise<Guard | null>;
  /** Permits of a semaphore with `limit` of them, 1 to 1,000,000. */
  acquire(key: Key, limit: number, options?: LockOptions & { permits?: number }): Promise<Guard>;
  tryAcquire(key: Key, limit: number, options?: LockOptions & { permits?: number }): Promise<Guard | null>;
  /** Runs `work` while the locks are held. Rejects with `Lost` if they were lost, even if `work` did not notice. */
  using<T>(keys: Key | readonly Key[], work: (signal: AbortSignal, guard: Guard) => Promise<T> | T): Promise<T>;
  using<T>(
    keys: Key | readonly Key[], options: LockOptions, work: (signal: AbortSignal, guard: Guard) => Promise<T> | T,
  ): Promise<T>;
  /** The right to lead at a key, and who leads; `options` are those of each campaign. Nothing is sent before it is used. */
  election(key: Key, options?: LockOptions): Election;
  activity(): Activity;
  /** What `RLOCK.INFO` says of a lock. */
  info(key: Key): Promise<Record<string, unknown>>;
  /** Ends every hold of a lock; how many there were. */
  force(key: Key): Promise<number>;
  /** What this client has counted. */
  metrics(): Promise<Metrics>;
  /** Ends what waits with `Closed`, releases what is held, and closes the connections; within `timeout`, 5000 by default. */
  close(options?: { timeout?: number }): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** What a leader publishes: text, or any bytes; 0 to 1024 of them. */
export type Value = string | Uint8Array;

/**
 * One of several processes leads, in the order of asking, and publishes a value: where it is reached, for example. It is
 * the lock at its key. An owner that holds it in another way keeps candidates waiting, but is no leader.
 */
export class Election {
  private constructor();
  /**
   * Waits until this process leads, and publishes `value` from then on. As `Client.lock`: rejects with `NotAcquired` if
   * `wait` was not enough, and leaves nothing on the server if `signal` aborts.
   */
  campaign(value: Value, options?: LockOptions): Promise<Leadership>;
  /** Leads if nobody else does, otherwise `null`. */
  tryCampaign(value: Value, options?: LockOptions): Promise<Leadership | null>;
  /** Who leads at the moment of asking. It may be different by now. */
  leader(options?: { signal?: AbortSignal }): Promise<Leader | null>;
  /**
   * Who leads now, and then each change of that, as the server tells it: see `Changes`. It begins at once. All that
   * observe by one client share its connection. Ends with the reason of `signal` if that aborts.
   */
  observe(options?: { signal?: AbortSignal }): Changes;
}

/** Who leads, as the server says. */
export interface Leader extends Proclaimed {
  readonly owner: string;
  /** The milliseconds until its leadership ends unless it is renewed. */
  readonly timeLeft: number;
}

/** What a leader has published. */
export interface Proclaimed {
  /** Larger than the fence of every leader before. */
  readonly fence: bigint;
  readonly value: Buffer;
}

export interface Change {
  /** Who leads from now on; `null` if nobody does. */
  readonly leader: Proclaimed | null;
  /** Whether others may have led since the last change: there was no connection, or too many changes were not taken. */
  readonly missed: boolean;
}

/**
 * Who leads, and each change of that. It begins with the leader of now, or that there is none. Each change comes once,
 * and fences never go back. After a new connection, a fail-over or a moved slot it begins again with the leader of that
 * moment, in a change that is `missed`. Of more than 1024 changes that are not taken the oldest are dropped, and the next
 * one is `missed`.
 *
 * An unreachable server ends nothing. Errors that do not pass are thrown once, and end it: `Denied`, `NotALock`,
 * `ModuleMissing`, `Refused`, `Closed`. Leaving the loop ends it, as `return()` does. The process stays alive while a
 * change is waited for.
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
  /** Larger than the fence of every earlier holder: send it along with each write. */
  readonly fence: bigint;
  /** The fence of each key. */
  readonly fences: Readonly<Record<string, bigint>>;
  /** Aborts when the lock is lost, with `Lost` as its reason. */
  readonly signal: AbortSignal;
  /** For how many milliseconds it counts, if nothing is heard any more; 0 if it is lost or released. */
  readonly remaining: number;
  readonly isValid: boolean;
  /** Throws `Lost` unless the lock is held, judged now. */
  check(): void;
  /** Releases the lock. Rejects with `Lost` if it was lost before. */
  release(): Promise<void>;
  /** The same, but the server keeps it until this many milliseconds after the grant. */
  releaseAfter(least: number): Promise<void>;
  /** Has the lock last for at least `lease` milliseconds from now. */
  extend(lease: number): Promise<void>;
  /** From shared to exclusive; false if `wait` was not enough, and then it is shared still. */
  upgrade(options?: { wait?: number; signal?: AbortSignal }): Promise<boolean>;
  /** From exclusive to shared. */
  downgrade(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Leads until it resigns, or the leadership is lost. Another one may lead before this one notices: see `fence`. */
export class Leadership extends Guard {
  private constructor();
  /**
   * Publishes another value; observers receive it under the same fence. Rejects with `Lost`, `OutOfRange` for more
   * than 1024 bytes, or `Unavailable`: then which value is published is not known.
   */
  proclaim(value: Value): Promise<void>;
  /** Ends the leadership: the same as `release`. */
  resign(): Promise<void>;
}
