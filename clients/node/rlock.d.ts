/** All times are whole milliseconds. */
export interface Options {
  /** How long the hold lasts unless it is renewed, 1 to 86,400,000. Default 30,000. Renewed every third of it. */
  lease?: number;
  /** Left out: until the lock is acquired or `signal` aborts. 0: one try. Else at most so long, to 86,400,000. */
  wait?: number;
  /** Together with other readers. Default false. */
  shared?: boolean;
  /** Units in all, 1 to 1,000,000: a semaphore. */
  limit?: number;
  /** Units to take, 1 to `limit`, default 1. */
  permits?: number;
  /** 1 to 256 bytes; one activity at a time. Default: a new one, `<host>:<pid>:<random>`. */
  owner?: string;
  /** Ends the wait. The request is withdrawn before `lock` rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Called once if the lock is lost, with the hold. */
  onLoss?: (held: Held) => void;
}

export class Locks {
  /**
   * Takes locks through connections of its own, made as those of `client`: a `Redis` of ioredis or a client of
   * node-redis's `createClient`. They end with `client`.
   *
   * `askEvery`: 100 to 600,000, default 10,000. How often a waiter asks again, in its place in the queue. It is the
   * time within which a waiter sees that a connection hangs.
   * @throws TypeError for another kind of client, RangeError for `askEvery`
   */
  constructor(client: unknown, options?: { askEvery?: number });

  /**
   * Waits in the server's queue. Several keys are acquired all or none.
   *
   * Rejects with NotAcquired when the wait is over, Refused when the server refuses, RangeError or TypeError for a
   * bad argument, the reason of `signal` when it aborts, and the library's error when the server cannot be reached
   * to begin with. Before that the request is withdrawn, and a grant that came meanwhile is released.
   */
  lock(key: string | Buffer | (string | Buffer)[], options?: Options): Promise<Held>;

  /** Runs `work` under the lock and releases it, whatever happens. Returns what `work` returns. */
  using<T>(key: string | Buffer | (string | Buffer)[], options: Options, work: (held: Held) => Promise<T> | T): Promise<T>;

  /** Closes the idle connections, as the end of the client does. Holds are renewed and released all the same. */
  close(): void;
}

export class Held {
  /** The fencing token. */
  readonly fence: number;
  readonly key: string | Buffer;
  readonly keys: readonly (string | Buffer)[];
  readonly owner: string;
  /** True from the moment at which the server may have granted the lock to somebody else, or earlier. */
  readonly lost: boolean;
  /** Aborts with a `Lost` when the lock is lost. */
  readonly signal: AbortSignal;
  /** @throws Lost if the lock is lost */
  check(): void;
  /**
   * Gives the lock to the next waiter. Harmless when it is lost, or a second time. True if the server confirms that
   * the lock was held until now; false if not, or if that is not known as a reply was lost. Rejects with the library's
   * error if the server cannot be reached with three tries: the lock is then free when its lease ends.
   */
  release(): Promise<boolean>;
  /** `await using` */
  [Symbol.asyncDispose](): Promise<void>;
}

export class LockError extends Error {}
export class NotAcquired extends LockError {}
export class Lost extends LockError {}
export class Refused extends LockError {
  /** DEADLOCK, QUEUEFULL, WRONGTYPE, NOPERM, ERR, …, or NOMODULE where the module is not loaded. */
  readonly code: string;
}
