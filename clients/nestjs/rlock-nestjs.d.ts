import type { ConfigurableModuleAsyncOptions, DynamicModule } from '@nestjs/common';
import type { ClientOptions, Guard, Key, LockOptions } from 'rlock-client';

export interface RlockModuleOptions extends ClientOptions {
  /** See `Client` of rlock-client. Default `redis://127.0.0.1:6379`. */
  url?: string;
}

/**
 * Provides a `Client` of rlock-client in all modules of an application. It connects at its first call.
 *
 * When the application closes, calls that wait for a lock reject at once. Methods that run continue with their locks, and
 * the client is closed when all of them have ended. For this at SIGTERM, call `app.enableShutdownHooks()`.
 */
export class RlockModule {
  static forRoot(options: RlockModuleOptions): DynamicModule;
  static forRootAsync(options: ConfigurableModuleAsyncOptions<RlockModuleOptions>): DynamicModule;
}

/** Times are in milliseconds; fractions are rounded up. */
export interface LockedOptions extends Omit<LockOptions, 'activity' | 'signal'> {
  /**
   * Does not run the method if somebody else holds the lock, and returns `undefined`. `wait` is then 0 by default. For
   * methods with `@Cron` and `@Interval`. Default false: the call rejects with `NotAcquired` after `wait`.
   */
  skip?: boolean;
  /**
   * The lock stays taken until this time after its grant, even if the method ends before. So an application whose clock is
   * late does not run the method again. Longer than the difference between the clocks, and shorter than the period by that
   * difference. 0 to 30 days; default 0. The default of `lease` is this time if it is more than 30,000.
   */
  atLeast?: number;
}

/**
 * Runs a method while a lock is held. The key is fixed, or comes from the arguments of the call. Each call is an owner of its
 * own, so a method must not call another one with the same key: it would wait for itself.
 *
 * The call rejects with the error of the method, or with `Lost` if the lock was lost meanwhile.
 * @throws RangeError if `atLeast` is out of its range
 */
export function Locked(key: Key | ((...args: any[]) => Key), options?: LockedOptions):
  <F extends (...args: any[]) => Promise<any>>(target: object, name: string | symbol, descriptor: TypedPropertyDescriptor<F>) => void;

/**
 * The guard of the locked method in which it is called, of the innermost one if they are nested; `undefined` elsewhere. Send
 * its `fence` with each write. Its `signal` aborts if the lock is lost.
 */
export function currentGuard(): Guard | undefined;

// Nothing else is exported.
export {};
