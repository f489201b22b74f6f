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
  /** Told what happens to connections. Default: nobody is. */
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
  /** Runs `work` while the locks are held. Rejects with `Lost` if they were lost, also if `work` did not notice. */
  using<T>(keys: Key | readonly Key[], work: (signal: AbortSignal, guard: Guard) => Promise<T> | T): Promise<T>;
  using<T>(
    keys: Key | readonly Key[], options: LockOptions, work: (signal: AbortSignal, guard: Guard) => Promise<T> | T,
  ): Promise<T>;
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

export class Guard {
  private constructor();
  readonly key: string;
  readonly keys: readonly string[];
  readonly owner: string;
  /** Larger than that of every earlier holder: send it along with each write. */
  readonly fence: bigint;
  /** That of each key. */
  readonly fences: Readonly<Record<string, bigint>>;
  /** Aborts when the lock is lost, with `Lost` as its reason. */
  readonly signal: AbortSignal;
  /** For how many milliseconds it counts, if nothing is heard any more; 0 if it is lost or released. */
  readonly remaining: number;
  readonly isValid: boolean;
  /** Throws `Lost` unless the lock is held, judged now. */
  check(): void;
  /** Gives the lock back. Rejects with `Lost` if it was lost before. */
  release(): Promise<void>;
  /** The same, but the server keeps it until so many milliseconds after the grant. */
  releaseAfter(least: number): Promise<void>;
  /** Has the lock last for at least `lease` milliseconds from now. */
  extend(lease: number): Promise<void>;
  /** From shared to exclusive; false if `wait` was not enough, and then it is shared still. */
  upgrade(options?: { wait?: number; signal?: AbortSignal }): Promise<boolean>;
  /** From exclusive to shared. */
  downgrade(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
