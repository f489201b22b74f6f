'use strict';
// The engine of rlock's clients, in WebAssembly, and the encoding of its events and actions: docs/embedding.md.

const { openSync, readFileSync, readSync } = require('node:fs');
const { join } = require('node:path');
const { randomBytes } = require('node:crypto');

const VERSION = 1;
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

  bytes(value) {
    const bytes = typeof value === 'string' ? Buffer.from(value) : value;
    this.u32(bytes.length);
    const at = this.#reserve(bytes.length);
    this.buffer.set(bytes, at);
    return this;
  }

  list(values) {
    this.u32(values.length);
    for (const value of values) this.bytes(value);
    return this;
  }
}

/** Decodes actions. */
class Reader {
  constructor(buffer) {
    this.buffer = buffer;
    this.at = 0;
  }

  u8() {
    return this.buffer[this.at++];
  }

  u16() {
    this.at += 2;
    return this.buffer.readUInt16LE(this.at - 2);
  }

  u32() {
    this.at += 4;
    return this.buffer.readUInt32LE(this.at - 4);
  }

  u64() {
    const low = this.u32();
    return low + this.u32() * 2 ** 32;
  }

  big() {
    this.at += 8;
    return this.buffer.readBigUInt64LE(this.at - 8);
  }

  bytes() {
    const length = this.u32();
    this.at += length;
    return this.buffer.subarray(this.at - length, this.at);
  }

  text() {
    return this.bytes().toString();
  }

  times(read) {
    return Array.from({ length: this.u32() }, read);
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

  action() {
    const kind = this.u8();
    switch (kind) {
      case 1: return { kind, connection: this.u64(), how: this.u8(), host: this.text(), port: this.u16() };
      case 2: return { kind, connection: this.u64(), bytes: this.bytes() };
      case 3: return { kind, connection: this.u64() };
      case 4: return {
        kind, call: this.u64(), guard: this.u64(), owner: this.text(),
        fences: this.times(() => [this.bytes(), this.big()]),
      };
      case 5: case 6: return { kind, call: this.u64() };
      case 7: return { kind, call: this.u64(), code: this.text(), text: this.text(), transient: this.u8() === 1 };
      case 8: return { kind, call: this.u64(), value: this.value() };
      case 9: return { kind, guard: this.u64(), why: this.u8() };
      case 10: return { kind, level: this.u8(), text: this.text() };
      case 11: {
        const [call, leads] = [this.u64(), this.u8() === 1];
        const leader = { fence: this.big(), value: this.bytes(), owner: this.text(), timeLeft: this.u64() };
        return { kind, call, leader: leads ? leader : null, missed: this.u8() === 1 };
      }
      default: throw new Error(`rlock: unknown action ${kind}`);
    }
  }
}

const forms = {
  /** Encodes an event from its fields, each with its name, type and value. */
  write(fields) {
    const writer = new Writer();
    for (const [, type, value] of fields) writer[type](value ?? NONE);
    return writer.buffer.subarray(0, writer.length);
  },

  /** Decodes an output: its actions, and the next deadline in nanoseconds. */
  read(output) {
    const reader = new Reader(output);
    const deadline = reader.big();
    const actions = [];
    while (reader.at < output.length) actions.push(reader.action());
    return { actions, deadline };
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

  #file;
  #text = Buffer.alloc(64);
  #lead;
  #suspended = 0n;
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
    return this.#file !== undefined && running - this.#looked >= PAUSE ? this.look() : running + this.#suspended;
  }

  /** The same, but it knows of every suspend. */
  look() {
    this.#looked = process.hrtime.bigint();
    try {
      // Rounded up, so that no guard seems valid for too long.
      const gained = this.#file === undefined ? 0n : this.#uptime() + HUNDREDTH - this.#looked - this.#lead;
      if (gained > this.#suspended) this.#suspended = gained;
    } catch {
      this.#file = undefined;
    }
    return this.#looked + this.#suspended;
  }
}

/** The engine of one client. It makes the decisions, and `rlock.cjs` carries out its actions. */
class Engine {
  constructor({ url, name, library, version, limits }) {
    compiled ??= new WebAssembly.Module(readFileSync(join(__dirname, 'rlock_engine.wasm')));
    this.exports = new WebAssembly.Instance(compiled).exports;
    if (this.exports.rlock_version() !== VERSION) throw new Error('rlock: rlock_engine.wasm is of another version');
    this.clock = (Clock.shared ??= new Clock());
    this.writer = new Writer();
    const begin = this.writer.u32(VERSION).bytes(url).bytes(name).bytes(library).bytes(version);
    for (const limit of limits) begin.u64(limit ?? NONE);
    for (const byte of randomBytes(32)) begin.u8(byte);
    this.#passInput();
    const wrong = this.exports.rlock_open();
    if (wrong) throw new RangeError(this.#output(wrong).toString());
  }

  #passInput() {
    const { writer, exports } = this;
    const at = exports.rlock_input(writer.length);
    new Uint8Array(exports.memory.buffer).set(writer.buffer.subarray(0, writer.length), at);
    writer.length = 0;
  }

  #output(length) {
    // A copy, because the next call overwrites the output.
    return Buffer.from(Buffer.from(this.exports.memory.buffer, this.exports.rlock_output(), length));
  }

  /** Passes the event that `write` writes. Returns the actions, and the next deadline in nanoseconds of the clock. */
  handle(kind, write) {
    this.writer.u8(kind);
    write?.(this.writer);
    this.#passInput();
    const length = this.exports.rlock_handle(this.clock.now());
    if (length === -1) throw new Error(`rlock: event ${kind} is malformed`);
    return forms.read(this.#output(length));
  }

  /** For how many milliseconds a guard is still valid. */
  remaining(guard) {
    const left = this.exports.rlock_remaining(BigInt(guard), this.clock.look());
    return Number(BigInt.asUintN(64, left) / 1_000_000n);
  }
}

module.exports = { Clock, Engine, NONE, forms };
