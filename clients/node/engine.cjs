'use strict';
// The engine of rlock's clients, in WebAssembly, and what its events and actions are made of: docs/embedding.md.

const { openSync, readFileSync, readSync } = require('node:fs');
const { join } = require('node:path');
const { randomBytes } = require('node:crypto');
const { VERSION, configuration, read } = require('./format.cjs');

/** Instead of a time: no limit, or no time at all. */
const NONE = Infinity;

let compiled;

/** Encodes the fields of an event, one after the other. */
class Writer {
  constructor() {
    this.buffer = Buffer.allocUnsafe(4096);
    this.length = 0;
  }

  #reserve(count) {
    const at = this.length;
    this.length += count;
    if (this.length > this.buffer.length) {
      const larger = Buffer.allocUnsafe(2 * this.length);
      this.buffer.copy(larger, 0, 0, at);
      this.buffer = larger;
    }
    return at;
  }

  u8(number) {
    const at = this.#reserve(1);
    this.buffer[at] = number;
    return this;
  }

  u16(number) {
    const at = this.#reserve(2);
    this.buffer.writeUInt16LE(number, at);
    return this;
  }

  u32(number) {
    const at = this.#reserve(4);
    this.buffer.writeUInt32LE(number, at);
    return this;
  }

  u64(number) {
    const at = this.#reserve(8);
    if (number === NONE) {
      this.buffer.fill(0xff, at, at + 8);
    } else {
      this.buffer.writeUInt32LE(number % 2 ** 32, at);
      this.buffer.writeUInt32LE(Math.floor(number / 2 ** 32), at + 4);
    }
    return this;
  }

  flag(is) {
    return this.u8(is ? 1 : 0);
  }

  raw(bytes) {
    const at = this.#reserve(bytes.length);
    this.buffer.set(bytes, at);
    return this;
  }

  /** Bytes, or the UTF-8 of a string. */
  bytes(value) {
    return typeof value === 'string' ? this.text(value) : this.u32(value.length).raw(value);
  }

  text(value) {
    const length = Buffer.byteLength(value);
    const at = this.u32(length).#reserve(length);
    this.buffer.write(value, at, length);
    return this;
  }

  list(values) {
    this.u32(values.length);
    for (const value of values) this.bytes(value);
    return this;
  }
}

/** Decodes outputs. */
class Reader {
  constructor(buffer) {
    this.buffer = buffer;
    this.view = new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
    this.at = 0;
  }

  #skip(count) {
    this.at += count;
    return this.at - count;
  }

  u8() {
    return this.view.getUint8(this.#skip(1));
  }

  u16() {
    return this.view.getUint16(this.#skip(2), true);
  }

  u32() {
    return this.view.getUint32(this.#skip(4), true);
  }

  u64() {
    const low = this.u32();
    return low + this.u32() * 2 ** 32;
  }

  big() {
    return this.view.getBigUint64(this.#skip(8), true);
  }

  flag() {
    return this.u8() === 1;
  }

  /** A copy, because the next output overwrites this one. */
  bytes() {
    const length = this.u32();
    const at = this.#skip(length);
    return Buffer.from(this.buffer.subarray(at, at + length));
  }

  text() {
    const length = this.u32();
    const at = this.#skip(length);
    return this.buffer.toString('utf8', at, at + length);
  }

  times(read) {
    const values = new Array(this.u32());
    for (let at = 0; at < values.length; at++) values[at] = read();
    return values;
  }

  list() {
    return this.times(() => this.bytes());
  }

  /** Each key with its fence. */
  fences() {
    return this.times(() => [this.text(), this.big()]);
  }

  /** The fields of a group are there in any case. */
  optional(read) {
    const isThere = this.flag();
    const group = read();
    return isThere ? group : null;
  }

  /** A value in a server's answer. */
  value() {
    const value = () => this.value();
    switch (this.u8()) {
      case 0: return null;
      case 1: return Number(BigInt.asIntN(64, this.big()));
      case 2: return this.text();
      case 3: return this.times(value);
      case 4: return Object.fromEntries(this.times(() => [value(), value()]));
      default: return new Error(this.text());
    }
  }

  /** An output of this length: its actions, and the next deadline in nanoseconds. */
  output(length) {
    const end = this.at + length;
    const deadline = this.big();
    const actions = [];
    while (this.at < end) actions.push(read(this));
    return { actions, deadline };
  }
}

const forms = {
  /** Encodes an event, with the functions of `format.cjs`. */
  write(event, ...fields) {
    const writer = new Writer();
    event(writer, ...fields);
    return writer.buffer.subarray(0, writer.length);
  },

  /** Decodes an output. */
  read(output) {
    return new Reader(output).output(output.length);
  },
};

/** The unit of Linux's uptime, in nanoseconds. */
const HUNDREDTH = 10_000_000n;
/** How often a clock looks for a suspend, in nanoseconds. It takes about 2 µs. */
const PAUSE = 10_000_000n;

/**
 * A clock that also runs while the machine is suspended. `process.hrtime` does so on macOS and Windows, but not on Linux:
 * there this clock adds what the uptime, which does, has gained on it.
 */
class Clock {
  /** The clock of all engines. Each worker thread has its own. */
  static shared;

  /** For how long the machine has been suspended, as far as this clock knows. */
  suspended = 0n;
  #file;
  #text = Buffer.alloc(64);
  #lead;
  #looked = 0n;

  constructor(uptime = '/proc/uptime') {
    try {
      this.#file = openSync(uptime);
      this.#lead = this.#uptime() - process.hrtime.bigint();
    } catch {
      // Another system, or the file may not be read.
      this.#file = undefined;
    }
  }

  #uptime() {
    const length = readSync(this.#file, this.#text, 0, this.#text.length, 0);
    return BigInt(Math.round(100 * Number.parseFloat(this.#text.latin1Slice(0, length)))) * HUNDREDTH;
  }

  /** In nanoseconds. It never goes back. A suspend of which it does not know yet is less than 10 ms of this clock ago. */
  now() {
    const running = process.hrtime.bigint();
    return this.#file !== undefined && running - this.#looked >= PAUSE ? this.look() : running + this.suspended;
  }

  /** The same, but it knows of every suspend. */
  look() {
    this.#looked = process.hrtime.bigint();
    try {
      // Rounded up, so that no guard seems valid for too long.
      const gained = this.#file === undefined ? 0n : this.#uptime() + HUNDREDTH - this.#looked - this.#lead;
      if (gained > this.suspended) this.suspended = gained;
    } catch {
      this.#file = undefined;
    }
    return this.#looked + this.suspended;
  }
}

/** The engine of one client. It makes the decisions, and `rlock.cjs` carries out its actions. */
class Engine {
  #reader;

  constructor(settings) {
    compiled ??= new WebAssembly.Module(readFileSync(join(__dirname, 'rlock_engine.wasm')));
    this.exports = new WebAssembly.Instance(compiled).exports;
    if (this.exports.rlock_version() !== VERSION) throw new Error('rlock: rlock_engine.wasm is of another version');
    this.clock = (Clock.shared ??= new Clock());
    this.writer = new Writer();
    configuration(this.writer, { version: VERSION, ...settings, seed: randomBytes(32) });
    this.#passInput();
    const wrong = this.exports.rlock_open();
    if (wrong) {
      const { buffer, at } = this.#output();
      throw new RangeError(buffer.toString('utf8', at, at + wrong));
    }
  }

  /** The engine's memory. Once it has grown, it is another buffer. */
  #memory() {
    const { buffer } = this.exports.memory;
    if (this.#reader?.buffer.buffer !== buffer) this.#reader = new Reader(Buffer.from(buffer));
    return this.#reader;
  }

  #passInput() {
    const { writer, exports } = this;
    const at = exports.rlock_input(writer.length);
    this.#memory().buffer.set(writer.buffer.subarray(0, writer.length), at);
  }

  #output() {
    const reader = this.#memory();
    reader.at = this.exports.rlock_output();
    return reader;
  }

  /**
   * Passes an event: `write` is its function in `format.cjs`, and the rest what that takes. Returns the actions, and the next
   * deadline in nanoseconds of the clock.
   */
  handle(write, first, second) {
    this.writer.length = 0; // The last event may have failed in the middle.
    write(this.writer, first, second);
    const kind = this.writer.buffer[0];
    this.#passInput();
    const length = this.exports.rlock_handle(this.clock.now());
    if (length === -1) throw new Error(`rlock: event ${kind} is malformed`);
    return this.#output().output(length);
  }

  /** For how many milliseconds a guard is still valid. */
  remaining(guard) {
    const left = this.exports.rlock_remaining(BigInt(guard), this.clock.look());
    return Number(BigInt.asUintN(64, left) / 1_000_000n);
  }
}

module.exports = { Clock, Engine, NONE, forms };
