'use strict';

// A module for NestJS, and a decorator for methods that run while a lock is held. rlock-nestjs.d.ts describes both.

const { AsyncLocalStorage } = require('node:async_hooks');
const { ConfigurableModuleBuilder, Inject, Module } = require('@nestjs/common');
const { Client } = require('rlock-client');

const LEASE_MIN = 30_000;
const LEAST_MAX = 30 * 24 * 60 * 60 * 1000;

const held = new AsyncLocalStorage();

/** The calls of locked methods of one application. */
class RlockCalls {
  #client;
  #running = new Set();
  #ends = new AbortController();

  constructor(client) { this.#client = client; }

  call(key, options, work) {
    const running = this.#call(key, options, work);
    this.#running.add(running);
    const ended = () => this.#running.delete(running);
    running.then(ended, ended);
    return running;
  }

  async #call(key, { skip, atLeast, ...options }, work) {
    const guard = await this.#lock(key, skip, { lease: Math.max(LEASE_MIN, atLeast), ...options, signal: this.#ends.signal });
    if (!guard) return undefined;
    let result;
    try {
      result = await held.run(guard, work);
    } catch (error) {
      // The error of the work matters more than a loss of the lock.
      await guard.releaseAfter(atLeast).catch(() => {});
      throw error;
    }
    await guard.releaseAfter(atLeast);
    return result;
  }

  /** `null` if the call is skipped. */
  async #lock(key, skip, options) {
    if (!skip) return this.#client.lock(key, options);
    try {
      return await this.#client.lock(key, { wait: 0, ...options });
    } catch (error) {
      if (error.code === 'NotAcquired' || this.#ends.signal.aborted) return null;
      throw error;
    }
  }

  /** Ends all waits, because a server that closes waits for the requests that wait. */
  beforeApplicationShutdown() { this.#ends.abort(new Error('rlock: the application shuts down')); }

  /** Waits for methods that run: `close` releases their locks. */
  async onApplicationShutdown() {
    await Promise.allSettled(this.#running);
    await this.#client.close();
  }
}

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN } = new ConfigurableModuleBuilder({ moduleName: 'Rlock' })
  .setClassMethodName('forRoot')
  .setExtras({}, definition => ({ ...definition, global: true }))
  .build();

class RlockModule extends ConfigurableModuleClass {}
Module({
  providers: [
    { provide: Client, inject: [MODULE_OPTIONS_TOKEN], useFactory: ({ url, ...options }) => new Client(url, options) },
    { provide: RlockCalls, inject: [Client], useFactory: client => new RlockCalls(client) },
  ],
  exports: [Client, RlockCalls],
})(RlockModule);

const CALLS = Symbol('rlock');

function Locked(key, { skip = false, atLeast = 0, ...options } = {}) {
  if (!(Number.isFinite(atLeast) && atLeast >= 0 && atLeast <= LEAST_MAX)) {
    // Found at the release, the lock would stay held.
    throw new RangeError(`atLeast is ${atLeast}, it must be a number from 0 to ${LEAST_MAX}`);
  }
  return (target, name, descriptor) => {
    const method = descriptor?.value;
    if (typeof target === 'function' || typeof method !== 'function') {
      throw new TypeError(`@Locked is for methods of instances, and ${String(name)} is none`);
    }
    Inject(RlockCalls)(target, CALLS); // The calls of the application to which the instance belongs.
    const locked = function (...given) {
      const calls = this[CALLS];
      if (!calls) throw new Error(`@Locked: ${target.constructor.name}.${String(name)} needs an instance that Nest has created`);
      const chosen = typeof key === 'function' ? key.apply(this, given) : key;
      return calls.call(chosen, { skip, atLeast, ...options }, () => method.apply(this, given));
    };
    Object.defineProperty(locked, 'name', { value: method.name });
    // What decorators below this one have noted, such as the times of @Cron.
    for (const each of Reflect.getOwnMetadataKeys(method)) {
      Reflect.defineMetadata(each, Reflect.getOwnMetadata(each, method), locked);
    }
    descriptor.value = locked;
  };
}

function currentGuard() { return held.getStore(); }

// Names alone: import finds them by reading this line.
module.exports = { currentGuard, Locked, RlockModule };
