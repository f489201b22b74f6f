/**
 * Locks of a Redis or Valkey server that has loaded the rlock module, for ioredis and node-redis.
 *
 *     const locks = new Locks(client);
 *     const held = await locks.lock('invoice:7', { lease: 30_000, wait: 10_000 });
 *     try { await write({ fence: held.fence }); } finally { await held.release(); }
 *
 * All times are milliseconds. rlock.d.ts has the types, README.md the options.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { connector } from './connection.mjs';
import { check, Request } from './request.mjs';

const REPLY_LIMIT = 5_000; // for a reply, beyond the wait, where the client has no limit of its own
const IDLE_MOST = 16; // connections that are kept for later waits
const ANSWERED_LATER = new Set(['LOADING', 'MASTERDOWN', 'TRYAGAIN', 'UNBLOCKED']); // states that end by themselves
const now = () => performance.now();
const never = new AbortController().signal;

/** What this module throws, beside TypeError, RangeError, the reason of an abort, and the library's own errors. */
export class LockError extends Error {}
/** The wait is over, or the request was withdrawn by somebody else. No place in the queue is left. */
export class NotAcquired extends LockError {}
/** The lock is no longer held: its lease is over, or it was taken away. */
export class Lost extends LockError {}
/** The server refused. `code` is the first word of its error, or NOMODULE where the module is not loaded. */
export class Refused extends LockError {
  constructor(code, message, cause) {
    super(message, { cause });
    this.code = code;
  }

  static of(error) {
    if (/unknown command.*RLOCK\./i.test(error.message)) {
      return new Refused('NOMODULE', `the server has not loaded the rlock module, librlock.so (${error.message})`, error);
    }
    return new Refused(/^[A-Z]+\b/.exec(error.message)?.[0] ?? 'ERR', error.message, error);
  }
}

/** When a call of `lock` asks next, and whether it may: its wait, cut into pieces of `askEvery`. */
class Turn {
  asked = 0;
  isRepeated = false;
  pause = 100;

  constructor(request, askEvery) {
    this.request = request;
    this.askEvery = askEvery;
    this.until = now() + request.wait;
  }

  /** How long the next request waits in the server, 0: it is a try. Throws when the wait is over. */
  piece() {
    const { keys, wait } = this.request;
    const left = this.until - now();
    if (this.asked && left <= 0) {
      if (this.asked === 1 && this.trouble && !this.isRepeated) { // A first reply that was lost: once more.
        this.isRepeated = true;
        return 0;
      }
      throw new NotAcquired(`${keys}: not acquired within ${wait} ms`, { cause: this.trouble });
    }
    return this.asked ? Math.ceil(Math.max(0, Math.min(left, this.askEvery))) : 0;
  }

  /** Was answered by nil. Before its time this means that somebody else ended the wait. */
  refused(waited, piece) {
    this.trouble = undefined;
    this.pause = 100;
    if (waited < piece - 2) {
      throw new NotAcquired(
        `${this.request.keys}: the request was withdrawn by RLOCK.CANCEL, CLIENT UNBLOCK, or another request of owner ${this.request.owner}`,
      );
    }
  }

  /** How long until the request is sent again after `error`; throws it where asking again is no help. */
  failed(error, isFirstContact) {
    const isTry = this.request.wait === 0;
    if (error instanceof Refused) {
      const isPassing = ANSWERED_LATER.has(error.code) || (error.code === 'READONLY' && this.asked > 1);
      if (isTry || !isPassing) throw error;
    } else if (isFirstContact || (isTry && this.isRepeated)) {
      throw error;
    }
    this.trouble = error;
    const next = this.pause;
    this.pause = Math.min(next * 2, 1_000);
    return Math.max(0, Math.min(next, this.until - now()));
  }
}

export class Locks {
  #open;
  #limit;
  #prefix;
  #askEvery;
  #control; // a promise of the connection for all that does not wait
  #idle = [];
  #claims = new Set();
  #isClosed = false;

  /** @see rlock.d.ts */
  constructor(client, { askEvery = 10_000 } = {}) {
    check('askEvery', askEvery, Number.isFinite(askEvery) && askEvery >= 100 && askEvery <= 600_000, '100 to 600000 ms');
    const { open, limit, prefix } = connector(client);
    this.#limit = limit || REPLY_LIMIT;
    this.#open = () => open(this.#limit);
    this.#prefix = prefix;
    this.#askEvery = askEvery;
    client.once('end', () => this.close());
  }

  async lock(key, options = {}) {
    const { signal = never, onLoss } = options;
    const request = new Request(key, this.#prefix, options);
    this.#claim(request);
    try {
      const { fence, sent } = await this.#acquire(request, signal);
      return new Held(request, fence, sent, this.#limit, onLoss, {
        call: (...what) => this.#call(...what),
        forget: () => this.#disclaim(request),
      });
    } catch (error) {
      this.#disclaim(request);
      throw error;
    }
  }

  async using(key, options, work) {
    const held = await this.lock(key, options);
    let result;
    try {
      result = await work(held);
    } catch (error) {
      await held.release().catch(() => {}); // The error of the work says more.
      throw error;
    }
    await held.release();
    return result;
  }

  close() {
    this.#isClosed = true;
    for (const each of this.#idle.splice(0)) each.close();
    this.#control?.then(control => control.endWhenIdle(), () => {});
  }

  #claim(request) {
    const taken = request.claims().filter(each => this.#claims.has(each));
    check('owner', request.owner, !taken.length, `one activity's: it holds or awaits ${request.keys} already`);
    for (const each of request.claims()) this.#claims.add(each);
  }

  #disclaim(request) {
    for (const each of request.claims()) this.#claims.delete(each);
  }

  /** The fence, and the time from which the lease counts: before the request was sent. */
  async #acquire(request, signal) {
    const turn = new Turn(request, this.#askEvery);
    let call; // the latest request: { connection, answer, isWaiting }
    let isLeft = false; // whether a grant or a place may be left behind
    try {
      for (;;) {
        signal.throwIfAborted();
        const piece = turn.piece();
        let fence, sent, waited;
        try {
          const connection = piece ? await this.#waiting() : await this.#controlling();
          signal.throwIfAborted();
          turn.asked += 1;
          isLeft = true;
          sent = now();
          call = this.#start(connection, request.acquire(piece), piece);
          fence = await unlessAborted(call.answer, signal);
          waited = now() - sent;
          if (piece) this.#keep(connection);
          if (fence !== null && waited > request.lease / 3) { // Granted when? A holder's lease starts anew.
            sent = now();
            call = this.#start(await this.#controlling(), request.acquire(0));
            fence = await unlessAborted(call.answer, signal);
          }
        } catch (error) {
          if (signal.aborted) throw signal.reason;
          isLeft &&= turn.asked > 1 || !(error instanceof Refused);
          if (call?.isWaiting) call.connection.close();
          await pause(turn.failed(error, !turn.asked), undefined, { signal }).catch(() => {});
          continue;
        }
        signal.throwIfAborted();
        if (fence !== null) return { fence, sent };
        isLeft = turn.asked > 1 && request.wait > 0; // Its place is kept, for the next piece of the wait.
        turn.refused(waited, piece);
      }
    } catch (error) {
      if (isLeft) await this.#withdraw(request, call);
      throw error;
    }
  }

  /** Ends a request. A CANCEL may overtake it, so it is repeated until the request's call is answered. */
  async #withdraw(request, { connection, answer, isWaiting }) {
    let isAnswered = false;
    const settled = answer.then(() => {}, () => {}).then(() => (isAnswered = true));
    try {
      for (const giveUp = now() + REPLY_LIMIT; !isAnswered && now() < giveUp; ) {
        await this.#call(request.cancel());
        await Promise.race([settled, pause(100, undefined, { ref: false })]);
      }
      await this.#call(request.cancel()); // A piece of the wait that was over may have left its place.
      await this.#call(request.release());
    } catch {
      // The server cannot be reached: its lease ends a grant.
    }
    if (isWaiting) connection.close();
  }

  /** The reply to a command that may be repeated; throws the library's error when the last try fails. */
  async #call(command, limit = this.#limit, tries = 3) {
    for (let left = tries - 1; ; left--) {
      try {
        return await this.#start(await this.#controlling(), command, 0, limit).answer;
      } catch (error) {
        if (!left || error instanceof Refused) throw error;
      }
    }
  }

  #start(connection, command, wait = 0, limit = this.#limit) {
    const words = command.map(each => (typeof each === 'number' ? String(each) : each));
    const answer = connection.ask(words, wait + limit).catch(error => {
      throw connection.isAnswer(error) ? Refused.of(error) : error;
    });
    answer.catch(() => {}); // Whoever needs it awaits it.
    return { connection, answer, isWaiting: wait > 0 };
  }

  async #controlling() {
    const before = this.#control;
    const control = await before?.catch(() => undefined);
    if (control?.isOpen) return control;
    if (this.#control === before) {
      this.#control = this.#open().then(connection => Object.assign(connection, { isLast: this.#isClosed }));
      this.#control.catch(() => {}); // Whoever asked for it awaits it.
    }
    return this.#control;
  }

  async #waiting() {
    let connection;
    while ((connection = this.#idle.pop())) if (connection.isOpen) return connection;
    return this.#open();
  }

  #keep(connection) {
    if (this.#isClosed || this.#idle.length >= IDLE_MOST) connection.close();
    else this.#idle.push(connection);
  }
}

export class Held {
  #request;
  #limit;
  #onLoss;
  #locks;
  #until;
  #why;
  #isOver = false;
  #renewal; // the promise of the renewal that is under way
  #timers = {};
  #loss = new AbortController();

  constructor(request, fence, sent, limit, onLoss, locks) {
    this.fence = fence;
    this.keys = request.named;
    this.key = request.named[0];
    this.owner = request.owner;
    this.#request = request;
    this.#limit = limit;
    this.#onLoss = onLoss;
    this.#locks = locks;
    this.#extend(sent);
  }

  get lost() {
    if (!this.#isOver && now() >= this.#until) this.#lose('its lease is over, and could not be renewed');
    return this.#why !== undefined;
  }

  get signal() {
    return this.#loss.signal;
  }

  check() {
    if (this.lost) throw this.#why;
  }

  async release() {
    if (!this.#locks) return false;
    const locks = this.#locks;
    this.#locks = undefined;
    this.#end();
    try {
      return this.#request.isReleased(await locks.call(this.#request.release()));
    } finally {
      await this.#renewal; // So that no late renewal meets another lock of the same owner.
      locks.forget();
    }
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.release();
  }

  #extend(sent) {
    const { lease } = this.#request;
    this.#until = sent + lease;
    clearTimeout(this.#timers.lease);
    this.#timers.lease = later(() => this.#watch(), this.#until - now());
    this.#renewAt(sent + lease / 3);
  }

  /** A timer may ring a little early. */
  #watch() {
    if (!this.lost && !this.#isOver) this.#timers.lease = later(() => this.#watch(), 1);
  }

  #renewAt(due) {
    this.#timers.renew = later(() => (this.#renewal = this.#renew()), due - now());
  }

  async #renew() {
    if (this.lost) return;
    const sent = now();
    const pace = this.#request.lease / 3;
    try {
      const limit = Math.max(1, Math.min(this.#limit, this.#until - sent));
      const reply = await this.#locks.call(this.#request.renew(), limit, 1);
      if (this.lost || this.#isOver) return;
      if (this.#request.isRenewed(reply, this.fence)) this.#extend(sent);
      else this.#lose('the server says that it is no longer held');
    } catch {
      if (!this.#isOver) this.#renewAt(now() + Math.min(pace / 3, 1_000));
    }
  }

  #lose(why) {
    this.#why = new Lost(`${this.keys}, fence ${this.fence}: ${why}`);
    this.#end();
    this.#loss.abort(this.#why);
    if (this.#onLoss) queueMicrotask(() => this.#onLoss(this)); // What it throws is not ours to handle.
  }

  #end() {
    this.#isOver = true;
    clearTimeout(this.#timers.lease);
    clearTimeout(this.#timers.renew);
  }
}

/** A timer that does not keep the process alive: a hold that is forgotten ends with it. */
function later(work, pause) {
  return setTimeout(work, Math.max(0, pause)).unref();
}

/** What `promise` becomes, or the reason of `signal` if it is aborted before. */
function unlessAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener('abort', abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}
