'use strict';
// Carries out the actions of the engine: sockets, time and callers. It decides nothing about locks. `rlock.d.ts` documents
// the API.

const { defaultMaxListeners, getMaxListeners, setMaxListeners } = require('node:events');
const net = require('node:net');
const { Duplex } = require('node:stream');
const tls = require('node:tls');
const { inspect } = require('node:util');
const { Engine, NONE } = require('./engine.cjs');
const { access, action, ending, event, fault, level, owning, together, transport } = require('./format.cjs');
const { version } = require('./package.json');

/** The log of a client without the option `log`. */
const warn = (importance, text) => {
  if (importance === 'warn') process.emitWarning(text, 'RlockWarning');
};
const levels = { [level.debug]: 'debug', [level.information]: 'info', [level.warning]: 'warn' };
const losses = {
  [ending.leaseEnded]: 'its lease ended',
  [ending.endedByServer]: 'the server ended it',
  [ending.released]: 'it was released with the client',
};
/** The longest time of an option, in milliseconds: 30 days. */
const TIME_MAX = 30 * 24 * 3600 * 1000;
/** The longest time of a timer in Node, in milliseconds. */
const TIMER_MAX = 2 ** 31 - 1;
/** How much one read brings, in bytes. */
const READ_MAX = 16 * 1024;
/**
 * The engine gets at most half of what was read at once, or this number of bytes if that is more. Then the answered callers run,
 * and their new requests leave. The server works on these while the engine takes the rest. If it took everything at once,
 * each side would wait while the other one works.
 */
const TAKEN_MIN = 32;
/** Instead of a deadline in nanoseconds. */
const NEVER = 2n ** 64n - 1n;
/** How many changes an observer keeps. */
const CHANGES_MAX = 1024;
/** The most permits of a semaphore. */
const PERMITS_MAX = 1_000_000;

class RlockError extends Error {
  constructor(code, message, { transient = false } = {}) {
    super(message);
    this.name = `${code}Error`;
    this.code = code;
    this.transient = transient;
  }
}

/** Whole milliseconds. The values in `none` mean no limit, or no time at all. */
const millis = (name, value, none = []) => {
  if (none.includes(value)) return NONE;
  if (typeof value === 'number' && value >= 0 && value <= TIME_MAX) return Math.ceil(value);
  throw new RangeError(`${name} is ${inspect(value)}, it must be a number of milliseconds from 0 to ${TIME_MAX}`);
};
const ABSENT = [undefined, null];
const ENDLESS = [...ABSENT, Infinity];

const count = (name, value, least, most) => {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new RangeError(`${name} is ${inspect(value)}, it must be a whole number from ${least} to ${most}`);
};

/** A value of the right type. */
const typed = (name, value, isRight, what) => {
  if (isRight) return value;
  throw new TypeError(`${name} is ${inspect(value)}, it must be ${what}`);
};
const isAbsent = value => ABSENT.includes(value);

/** UTF-8 has no halves of surrogate pairs: each would become the same bytes. The text may be a secret, so it is not shown. */
const wellFormed = (name, text) => {
  if (text.isWellFormed()) return text;
  throw new RangeError(`${name} has half of a surrogate pair, it must be well-formed Unicode`);
};
const checkText = (name, value) => wellFormed(name, typed(name, value, typeof value === 'string', 'a string'));
const checkBytes = (name, value) => {
  if (typeof value === 'string') return wellFormed(name, value);
  return typed(name, value, value instanceof Uint8Array, 'a string or a Uint8Array');
};
const checkKey = key => {
  if (checkBytes('key', key).length > 0) return key;
  throw new RlockError('OutOfRange', 'key is empty, it must be at least 1 byte');
};
const checkKeys = keys => Array.from(typed('keys', keys, Array.isArray(keys), 'an array'), checkKey);
const textOf = key => (typeof key === 'string' ? key : Buffer.from(key).toString());

/** A guard's fence is a BigInt, and the fences of `info` are numbers. */
const fenceOf = value => {
  const isWhole = typeof value === 'bigint' || Number.isInteger(value);
  if (isWhole && value > 0 && value <= Number.MAX_SAFE_INTEGER) return value;
  throw new RangeError(`fence is ${inspect(value)}, it must be a whole number from 1 to ${Number.MAX_SAFE_INTEGER}`);
};

const checkFlag = (name, value) => typed(name, value, typeof value === 'boolean', 'true or false');

// Each of these, or nothing.
const optionsOf = value => typed('options', value, isAbsent(value) || typeof value === 'object', 'an object') ?? {};
const callback = (name, value) => typed(name, value, isAbsent(value) || typeof value === 'function', 'a function');
/** Not by its class: there may be several, as in tests that have a realm of their own. */
const isSignal = it => typeof it?.aborted === 'boolean' && typeof it.addEventListener === 'function';
const signalOf = value => typed('signal', value, isAbsent(value) || isSignal(value), 'an AbortSignal');
const activityOf = value => typed('activity', value, isAbsent(value) || Activity.is(value), 'made by `activity()`');

/** Options of `tls.connect`. Node checks most of them only when it connects: here to nothing. */
const tlsOf = options => {
  if (!options) return {};
  // It may be a secret.
  if (typeof options !== 'object') throw new TypeError('tls must be an object');
  try {
    const nothing = new Duplex({ read() {}, write(bytes, encoding, done) { done(); } });
    tls.connect({ ...options, socket: nothing }).on('error', () => {}).destroy();
  } catch (error) {
    throw new RangeError(`tls is refused by Node: ${error.message}`, { cause: error });
  }
  return options;
};

const closed = () => new RlockError('Closed', 'the client has been closed');

const listen = (signal, abort) => {
  // Any number of waits may listen to one signal, so a warning about a leak would be wrong.
  if (signal && getMaxListeners(signal) === defaultMaxListeners) setMaxListeners(Infinity, signal);
  signal?.addEventListener('abort', abort, { once: true });
};

/** What has happened. Its keys may be secret: what prints or copies all properties of an object leaves them out. */
class Occurrence {
  #keys;

  constructor(it) {
    this.kind = it.what;
    this.outcome = it.outcome;
    this.duration = it.nanoseconds / 1e6;
    this.text = it.text;
    this.#keys = Object.freeze(it.keys.map(textOf));
    Object.freeze(this);
  }

  get keys() { return this.#keys; }
}

/**
 * Values by rising numbers, most of which are taken soon. A Map would copy its table again and again meanwhile, and whatever
 * is in the tables that it leaves behind lives until all garbage is collected.
 */
class Numbered {
  static #PER_PAGE = 64;
  #pages = new Map();
  size = 0;

  set(number, value) {
    const key = Math.floor(number / Numbered.#PER_PAGE);
    let page = this.#pages.get(key);
    if (!page) this.#pages.set(key, page = { values: new Array(Numbered.#PER_PAGE).fill(undefined), size: 0 });
    page.values[number % Numbered.#PER_PAGE] = value;
    page.size += 1;
    this.size += 1;
  }

  get(number) {
    return this.#pages.get(Math.floor(number / Numbered.#PER_PAGE))?.values[number % Numbered.#PER_PAGE];
  }

  take(number) {
    const key = Math.floor(number / Numbered.#PER_PAGE);
    const page = this.#pages.get(key);
    const value = page?.values[number % Numbered.#PER_PAGE];
    if (value === undefined) return value;
    page.values[number % Numbered.#PER_PAGE] = undefined;
    page.size -= 1;
    if (page.size === 0) this.#pages.delete(key);
    this.size -= 1;
    return value;
  }
}

/** Runs the engine of a client or a quorum: its sockets, its timer, and the calls and guards of its users. */
class Host {
  #engine;
  #sockets = new Map();
  #calls = new Numbered();
  /** Those that are neither released nor lost. */
  #guards = new Numbered();
  /** Of guards that have one: what is called when they are at risk. */
  #risks = new Map();
  #observers = new Map();
  /** What the engine has reported, and nobody has heard yet. */
  #reports = [];
  /** How many callers wait for a change. */
  #awaited = 0;
  #last = 0;
  #timer;
  #due;
  #tls;
  #log;
  #listener;
  /** The end of `close`, once it has begun. */
  #closing;
  /** Whether the sockets and the timer keep the process alive; undefined if there is a new one, which does. */
  #isAwaited;

  constructor(urls, kind, options) {
    const { responseTimeout, retryTimeout, replicationTimeout } = options;
    const name = checkText('name', options.name ?? '');
    this.#tls = tlsOf(options.tls);
    this.#log = callback('log', options.log) ?? warn;
    this.#listener = callback('listener', options.listener);
    this.#engine = new Engine({
      urls, together: kind, name, library: 'rlock-node', libraryVersion: version,
      response: millis('responseTimeout', responseTimeout, ABSENT),
      retry: millis('retryTimeout', retryTimeout, ABSENT),
      replication: millis('replicationTimeout', replicationTimeout, ABSENT),
      listens: Boolean(this.#listener),
    });
  }

  async close(options) {
    // As a listener, or behind a promise, it gets what is no option: the name of a signal, an exit code.
    const { timeout = 5000 } = Object(options);
    const limit = millis('timeout', timeout);
    if (!this.#closing) {
      // A listener may close it again inside of this.
      let begin;
      this.#closing = new Promise(resolve => { begin = resolve; });
      begin(this.#close(limit));
    }
    return this.#closing;
  }

  async #close(limit) {
    let timer;
    const late = new Promise(resolve => { timer = setTimeout(resolve, Math.min(TIMER_MAX, limit)).unref(); });
    this.#handle(event.leaveAll);
    const flushed = this.call(event.flush, undefined, {}, true);
    await Promise.race([flushed, late]).catch(() => {});
    this.#handle(event.closed);
    // The host stays in memory for as long as there is a timer.
    clearTimeout(timer);
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** `limit` is the number of permits of a semaphore. */
  async try(keys, mode, options, limit) {
    return this.granted(keys, mode, { ...optionsOf(options), wait: 0 }, { limit });
  }

  async lock(keys, mode, options, limit) {
    const guard = await this.granted(keys, mode, optionsOf(options), { limit });
    if (guard) return guard;
    throw new RlockError('NotAcquired', `${keys.map(textOf).join(', ')}: not acquired within ${options.wait} ms`);
  }

  /** Asks for locks, and for a leadership if there is a value to publish. Resolves to `null` if they are refused. */
  granted(keys, mode, options, { limit: wanted, value }) {
    const { lease: asked = 30_000, renew = true, signal } = options;
    const lease = millis('lease', asked);
    const activity = activityOf(options.activity);
    keys = checkKeys(keys);
    const limit = mode === access.permits ? count('limit', wanted, 1, PERMITS_MAX) : 0;
    const permits = mode === access.permits ? count('permits', options.permits ?? 1, 1, PERMITS_MAX) : 1;
    const replicas = count('replicas', options.replicas ?? 0, 0, 2 ** 16 - 1);
    const wait = millis('wait', options.wait, ENDLESS);
    const fields = {
      owner: activity ? owning.activity : owning.new, activity: activity?.number ?? 0, name: '', keys,
      mode, permits, limit, wait,
      lease, renewed: checkFlag('renew', renew), maxHold: millis('maxHold', options.maxHold, ENDLESS),
      bound: millis('bound', options.bound, ABSENT), replicas, margin: millis('margin', options.margin ?? 0), value,
    };
    const onRisk = callback('onRisk', options.onRisk);
    if (value === undefined) return this.call(event.lock, fields, { signal, keys, permits, lease, onRisk });
    return this.call(event.campaign, fields, { signal, keys, lease, onRisk, type: Leadership });
  }

  observe(key, options) {
    const signal = signalOf(optionsOf(options).signal);
    const call = ++this.#last;
    const abort = () => changes.end(signal.reason);
    const changes = new Changes({
      waits: count => {
        this.#awaited += count;
        this.#keepAlive();
      },
      ended: () => {
        signal?.removeEventListener('abort', abort);
        if (this.#observers.delete(call)) this.#handle(event.abandon, { call });
      },
    });
    if (signal?.aborted) abort();
    else if (this.#closing) changes.end(closed());
    else {
      listen(signal, abort);
      this.#observers.set(call, changes);
      try {
        this.#handle(event.observe, call, { key });
      } catch (error) {
        changes.end(error);
      }
    }
    return changes;
  }

  /** Begins a call. The engine or the signal settles its promise. */
  call(write, fields, { signal, guard, keys, permits, lease, onRisk, type } = {}, isLast = false) {
    signalOf(signal);
    if (this.#closing && !isLast) return Promise.reject(closed());
    if (signal?.aborted) return Promise.reject(signal.reason);
    const call = ++this.#last;
    return new Promise((resolve, reject) => {
      const abort = signal && (() => {
        this.#calls.take(call);
        this.#handle(event.abandon, { call });
        reject(signal.reason);
      });
      this.#calls.set(call, { guard, keys, permits, lease, onRisk, type, resolve, reject, signal, abort });
      try {
        listen(signal, abort);
        this.#handle(write, call, fields);
      } catch (error) {
        this.#calls.take(call);
        signal?.removeEventListener('abort', abort);
        throw error;
      }
    });
  }

  /** Passes an event to the engine. Whether anybody has heard of it. */
  #handle(write, first, second) {
    const { actions, deadline } = this.#engine.handle(write, first, second);
    // Bytes are written first: a caller that gets its result may call again at once, and the new request must come later.
    for (const it of actions) if (!this.#carryOut(it)) this.#reports.push(it);
    this.#wakeAt(deadline);
    // A listener may call again inside of this: what that call brings comes after the rest.
    const isHeard = this.#reports.length > 0;
    while (this.#reports.length) this.#report(this.#reports.shift());
    this.#keepAlive();
    return isHeard;
  }

  #carryOut(it) {
    const socket = this.#sockets.get(it.connection);
    switch (it.kind) {
      case action.connect: this.#connect(it); return true;
      case action.write: if (socket) this.#write(socket, it.bytes); return true;
      case action.close:
        this.#sockets.delete(it.connection);
        socket?.uncork(); // What was asked before leaves.
        socket?.destroy();
        return true;
      default: return false;
    }
  }

  /** What is asked in one turn of the event loop leaves in one write. */
  #write(socket, bytes) {
    if (socket.writableCorked === 0) {
      socket.cork();
      process.nextTick(() => socket.uncork());
    }
    socket.write(bytes);
  }

  #connect({ connection, how, host, port }) {
    const secure = how === transport.tls || how === transport.insecure;
    let untaken;
    /** Passes this many bytes to the engine, and the next ones until somebody hears of them. */
    const take = count => {
      let isHeard = false;
      while (untaken && !isHeard) {
        const bytes = untaken.subarray(0, count);
        untaken = bytes.length < untaken.length ? untaken.subarray(bytes.length) : undefined;
        isHeard = notify(event.received, { connection, bytes });
      }
    };
    const takeRest = () => take(Infinity);
    // One buffer for all reads, because the engine copies what is in it.
    const onread = {
      buffer: Buffer.allocUnsafe(READ_MAX),
      callback: (length, buffer) => {
        const read = buffer.subarray(0, length);
        untaken = untaken ? Buffer.concat([untaken, read]) : read;
        const count = Math.max(TAKEN_MIN, untaken.length >> 1);
        if (count < untaken.length) {
          untaken = Buffer.from(untaken);
          setImmediate(takeRest);
        }
        take(count);
        return true;
      },
    };
    const begin = () => {
      if (!secure) return net.connect(how === transport.unix ? { path: host, onread } : { host, port, onread });
      return tls.connect({
        servername: net.isIP(host) ? undefined : host, ...this.#tls, host, port, onread,
        ...(how === transport.insecure && { rejectUnauthorized: false }),
      });
    };
    let socket;
    try {
      socket = begin();
    } catch (error) {
      // It reports this as it reports a connection that fails later.
      socket = new net.Socket().destroy(error);
    }
    this.#sockets.set(connection, socket);
    this.#isAwaited = undefined;
    const notify = (write, fields) => {
      if (this.#sockets.get(connection) !== socket) return false;
      if (write === event.ended) this.#sockets.delete(connection);
      return this.#handle(write, fields);
    };
    const ended = (failure, text) => {
      takeRest();
      notify(event.ended, { connection, failure, text });
    };
    socket.setNoDelay(true);
    socket.once(secure ? 'secureConnect' : 'connect', () => notify(event.opened, { connection }));
    socket.on('error', error => {
      const isCertificate = /CERT|SELF_SIGNED|ALTNAME|UNABLE_TO/.test(error.code ?? '');
      ended(isCertificate ? fault.certificate : fault.io, `${host}:${port}: ${error.message}`);
    });
    socket.on('close', () => ended(fault.io, `${host}:${port}: the connection was closed`));
  }

  #report(it) {
    if (it.kind === action.over) {
      this.#risks.delete(it.guard);
      this.#guards.take(it.guard)?.end(it.why);
      return;
    }
    if (it.kind === action.note) {
      this.#say(levels[it.level], it.text);
      return;
    }
    if (it.kind === action.occurred) {
      if (this.#listener) this.#tell('listener', this.#listener, new Occurrence(it));
      const onRisk = it.what === 'at_risk' && this.#risks.get(it.guard);
      if (onRisk) this.#tell('onRisk', onRisk, it.nanoseconds / 1e6);
      return;
    }
    const observer = this.#observers.get(it.call);
    if (observer) {
      if (it.kind === action.leader) return observer.push(it);
      this.#observers.delete(it.call);
      return observer.end(new RlockError(it.code, it.text, it));
    }
    const call = this.#calls.take(it.call);
    call?.signal?.removeEventListener('abort', call.abort);
    switch (it.kind) {
      case action.granted:
        if (call) call.resolve(this.#guard(it, call));
        else this.#handle(event.untaken, { guard: it.guard });
        break;
      case action.refused: call?.resolve(null); break;
      case action.done: call?.resolve(); break;
      case action.answered: call?.resolve(it.answers); break;
      case action.leader: call?.resolve(it.leader); break;
      default: call?.reject(new RlockError(it.code, it.text, it));
    }
  }

  /** Logs. What a user's function throws changes nothing here. */
  #say(importance, text) {
    try {
      this.#log(importance, text);
    } catch (error) {
      warn('warn', `log has thrown: ${inspect(error)}`);
    }
  }

  /** Calls a user's function. What it throws changes nothing here. */
  async #tell(name, callback, value) {
    try {
      await callback(value);
    } catch (error) {
      this.#say('warn', `${name} has thrown: ${inspect(error)}`);
    }
  }

  /**
   * Nobody can release this lost guard any more, so the engine forgets it. That releases what the server still has of it.
   * Garbage decides nothing about locks, so this comes after the lease, which may be longer here than the guard was valid.
   */
  drop(guard, lease) {
    const known = new WeakRef(this); // A closed client does not stay for this.
    const leave = () => {
      const host = known.deref();
      if (host && !host.#closing) host.#handle(event.leave, { guard });
    };
    setTimeout(leave, Math.min(TIMER_MAX, lease)).unref();
  }

  #guard(it, { guard, keys, permits, lease, onRisk, type = Guard }) {
    const known = guard ?? new type(this, it.guard, keys, lease, permits);
    known.grant(it.owner, it.fences);
    if (!guard) this.#guards.set(it.guard, known);
    if (onRisk) this.#risks.set(it.guard, onRisk);
    return known;
  }

  remaining(guard) { return this.#engine.remaining(guard); }

  release(guard, least = NONE) {
    this.#guards.take(guard);
    this.#risks.delete(guard);
    return this.call(event.release, { guard, least }, {}, true);
  }

  #wakeAt(deadline) {
    const { clock } = this.#engine;
    // A timer is paused while the machine is suspended. One that fires too early does no harm.
    const due = deadline - clock.suspended;
    if (this.#timer && this.#due <= due) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (deadline === NEVER) return;
    this.#due = due;
    const ms = Number(deadline - clock.now()) / 1e6;
    const tick = () => {
      this.#timer = undefined;
      this.#handle(event.tick);
    };
    this.#timer = setTimeout(tick, Math.min(TIMER_MAX, Math.ceil(ms)));
    this.#isAwaited = undefined;
  }

  /** Only calls that somebody waits for keep the process alive. */
  #keepAlive() {
    const isAwaited = this.#calls.size + this.#awaited > 0;
    if (isAwaited === this.#isAwaited) return;
    this.#isAwaited = isAwaited;
    const verb = isAwaited ? 'ref' : 'unref';
    this.#timer?.[verb]();
    for (const socket of this.#sockets.values()) socket[verb]();
  }
}

/** An owner for sequential work. */
class Activity {
  /** One number for all clients, so that each activity is another owner in every client. */
  static #last = 0;
  #number = ++Activity.#last;

  static is(value) { return typeof value === 'object' && #number in value; }

  get number() { return this.#number; }
}

/** What a client and a quorum have in common. */
class Locks {
  #host;

  constructor(host) { this.#host = host; }

  lock(key, options) { return this.#host.lock([key], access.exclusive, options); }
  tryLock(key, options) { return this.#host.try([key], access.exclusive, options); }

  async using(keys, options, work = options) {
    if (typeof work !== 'function') throw new TypeError('work must be a function');
    const guard = await this.#host.lock([].concat(keys), access.exclusive, options === work ? undefined : options);
    let result;
    try {
      result = await work(guard.signal, guard);
    } catch (error) {
      // The error of the work matters more than a loss of the lock.
      await guard.release().catch(() => {});
      throw error;
    }
    await guard.release();
    return result;
  }

  activity() { return Object.freeze(new Activity()); }
  async connect(options) { await this.#host.call(event.connect, undefined, { signal: optionsOf(options).signal }); }
  close(options) { return this.#host.close(options); }
  [Symbol.asyncDispose ?? Symbol.for('asyncDispose')]() { return this.close(); }
}

/** Locks of one server, of a master that Sentinels name, or of a cluster. */
class Client extends Locks {
  #host;

  constructor(url = 'redis://127.0.0.1:6379', options = undefined) {
    const host = new Host([checkText('url', url)], together.single, optionsOf(options));
    super(host);
    this.#host = host;
  }

  lockAll(keys, options) { return this.#host.lock(keys, access.exclusive, options); }
  tryLockAll(keys, options) { return this.#host.try(keys, access.exclusive, options); }
  read(key, options) { return this.#host.lock([key], access.shared, options); }
  tryRead(key, options) { return this.#host.try([key], access.shared, options); }
  acquire(key, limit, options) { return this.#host.lock([key], access.permits, options, limit); }
  tryAcquire(key, limit, options) { return this.#host.try([key], access.permits, options, limit); }

  election(key, options) { return new Election(this.#host, checkKey(key), optionsOf(options)); }

  async info(key) { return this.#ask('RLOCK.INFO', checkKey(key)); }
  async force(key, options) {
    const { fence } = optionsOf(options);
    const rest = fence === undefined ? [] : ['FENCE', `${fenceOf(fence)}`];
    return this.#ask('RLOCK.FORCE', checkKey(key), true, rest);
  }

  async #ask(word, key, changes = false, rest = []) {
    const [answer] = await this.#host.call(event.question, { key, words: [word, key, ...rest], changes, limit: NONE });
    if (answer instanceof Error) throw new RlockError('Refused', answer.message);
    return answer;
  }

  async metrics() {
    const [grants, waits, losses, lateRenewals, reconnects] = await this.#host.call(event.metrics);
    return { grants, waits, losses, lateRenewals, reconnects };
  }
}

/** Locks on a majority of independent servers. */
class Quorum extends Locks {
  constructor(members, options = undefined) {
    typed('members', members, Array.isArray(members), 'an array of strings');
    const urls = Array.from(members, (url, place) => checkText(`members[${place}]`, url));
    const given = optionsOf(options);
    const anyGrace = checkFlag('anyGrace', given.anyGrace ?? false);
    super(new Host(urls, anyGrace ? together.anyGrace : together.quorum, given));
  }
}

/** Of lost guards that nobody has any more: their clients forget them. */
const dropped = new FinalizationRegistry(({ host, number, lease }) => host.drop(number, lease));

/** A hold of one lock or several. */
class Guard {
  #host;
  #number;
  #loss;
  #controller;
  #release;
  /** How many are not released yet. */
  #permits;
  /** The longest that it has had. */
  #lease;

  constructor(host, number, keys, lease, permits = 1) {
    this.#host = host;
    this.#number = number;
    this.#permits = permits;
    this.#lease = lease;
    this.keys = keys.map(textOf);
  }

  grant(owner, fences) {
    this.owner = owner;
    this.fences = Object.fromEntries(fences);
    this.fence = fences.reduce((most, [, fence]) => (fence > most ? fence : most), 0n);
  }

  end(why) {
    dropped.register(this, { host: this.#host, number: this.#number, lease: this.#lease }, this);
    this.#loss = this.#lost(losses[why]);
    this.#controller?.abort(this.#loss);
  }

  #lost(why) { return new RlockError('Lost', `${this.keys.join(', ')}: the lock was lost: ${why}`); }

  get key() { return this.keys[0]; }

  get signal() {
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.#loss) this.#controller.abort(this.#loss);
    }
    return this.#controller.signal;
  }

  get remaining() { return this.#release || this.#loss ? 0 : this.#host.remaining(this.#number); }

  get isValid() { return this.remaining > 0; }

  check() {
    if (this.isValid) return;
    throw this.#loss ?? this.#lost(this.#release ? 'it was released' : losses[ending.leaseEnded]);
  }

  /** As a listener of a signal of the process, it gets the name of the signal. */
  release(options) { return isAbsent(options) || typeof options === 'string' ? this.#releaseAll() : this.#releaseSome(options); }
  #releaseAll(least) {
    dropped.unregister(this);
    return (this.#release ??= this.#host.release(this.#number, least));
  }
  async #releaseSome(options) {
    const { permits } = optionsOf(options);
    if (permits === undefined) return this.release();
    if (this.#release) this.check();
    if (count('permits', permits, 1, this.#permits) === this.#permits) return this.release();
    this.#permits -= permits;
    return this.#host.call(event.releasePermits, { guard: this.#number, permits }, {}, true);
  }
  async releaseAfter(least) { return this.#releaseAll(millis('least', least)); }
  async extend(lease) {
    const wanted = millis('lease', lease);
    this.#lease = Math.max(this.#lease, wanted);
    return this.#host.call(event.extend, { guard: this.#number, lease: wanted });
  }
  downgrade() { return this.#host.call(event.downgrade, { guard: this.#number }); }
  async upgrade(options) {
    const { wait, signal } = optionsOf(options);
    const fields = { guard: this.#number, wait: millis('wait', wait, ENDLESS) };
    return (await this.#host.call(event.upgrade, fields, { signal, guard: this })) !== null;
  }

  [Symbol.asyncDispose ?? Symbol.for('asyncDispose')]() { return this.release(); }
}

/** The hold of a leader. */
class Leadership extends Guard {
  #host;
  #number;

  constructor(host, number, keys, lease) {
    super(host, number, keys, lease);
    this.#host = host;
    this.#number = number;
  }

  async proclaim(value) { await this.#host.call(event.proclaim, { guard: this.#number, value: checkBytes('value', value) }); }
  resign() { return this.release(); }
}

/** The leader at a key. */
class Election {
  #host;
  #key;
  #options;

  constructor(host, key, options) {
    this.#host = host;
    this.#key = key;
    this.#options = options;
  }

  async campaign(value, options) {
    const leadership = await this.#campaign(value, options);
    if (leadership) return leadership;
    throw new RlockError('NotAcquired', `${textOf(this.#key)}: not elected within ${options?.wait ?? this.#options.wait} ms`);
  }

  async tryCampaign(value, options) {
    return this.#campaign(value, { ...optionsOf(options), wait: 0 });
  }

  #campaign(value, options) {
    const asked = { ...this.#options, ...optionsOf(options) };
    return this.#host.granted([this.#key], access.exclusive, asked, { value: checkBytes('value', value) });
  }

  async leader(options) { return this.#host.call(event.leader, { key: this.#key }, { signal: optionsOf(options).signal }); }
  observe(options) { return this.#host.observe(this.#key, options); }
}

/** The changes that an observer receives, until it ends. */
class Changes {
  #callbacks;
  #untaken = [];
  #takers = [];
  #isEnded = false;
  /** The reason to throw at the end, if there is one. It may be any value, and it is thrown once. */
  #failures = [];

  constructor(callbacks) { this.#callbacks = callbacks; }

  push({ leader, missed }) {
    const change = { leader: leader && { fence: leader.fence, value: leader.value }, missed };
    const taker = this.#takers.shift();
    if (taker) {
      this.#callbacks.waits(-1);
      return taker({ value: change, done: false });
    }
    this.#untaken.push(change);
    if (this.#untaken.length > CHANGES_MAX) {
      this.#untaken.shift();
      this.#untaken[0].missed = true;
    }
  }

  end(...failures) {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#failures = failures;
    this.#callbacks.ended();
    const takers = this.#takers.splice(0);
    if (takers.length) this.#callbacks.waits(-takers.length);
    for (const taker of takers) taker(this.next());
  }

  async next() {
    if (this.#untaken.length) return { value: this.#untaken.shift(), done: false };
    if (!this.#isEnded) {
      return new Promise(resolve => {
        this.#takers.push(resolve);
        this.#callbacks.waits(1);
      });
    }
    if (this.#failures.length) throw this.#failures.shift();
    return { value: undefined, done: true };
  }

  async return() {
    this.end();
    this.#untaken = [];
    this.#failures = [];
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator]() { return this; }
  [Symbol.asyncDispose ?? Symbol.for('asyncDispose')]() { return this.return(); }
}

module.exports = { Activity, Changes, Client, Election, Guard, Leadership, Quorum, RlockError };
