// Generated from crates/rlock-embed/src/messages.rs by `RLOCK_GENERATE=1 cargo test --package rlock-embed --test generated`.
'use strict';
// The events and actions of docs/embedding.md.

const VERSION = 3;
const action = { connect: 1, write: 2, close: 3, granted: 4, refused: 5, done: 6, failed: 7, answered: 8, over: 9, note: 10, leader: 11, occurred: 12 };
const owning = { new: 0, activity: 1, named: 2 };
const access = { exclusive: 0, shared: 1, permits: 2 };
const fault = { io: 0, time: 1, setup: 2, certificate: 3 };
const transport = { tcp: 0, tls: 1, insecure: 2, unix: 3 };
const ending = { leaseEnded: 0, endedByServer: 1, released: 2 };
const level = { debug: 0, information: 1, warning: 2 };
const together = { single: 0, quorum: 1, anyGrace: 2 };

const configuration = (to, it) => to.u32(it.version).list(it.urls).u8(it.together).text(it.name).text(it.library).text(it.libraryVersion).u64(it.response).u64(it.retry).u64(it.replication).flag(it.listens).raw(it.seed);

/** Each writes an event: the kind, the number of the call if it starts one, and the fields. */
const event = {
  connect: (to, call) => to.u8(1).u64(call),
  lock: (to, call, it) => to.u8(2).u64(call).u8(it.owner).u64(it.activity).text(it.name).list(it.keys).u8(it.mode).u32(it.permits).u32(it.limit).u64(it.wait).u64(it.lease).flag(it.renewed).u64(it.maxHold).u64(it.bound).u16(it.replicas).u64(it.margin),
  release: (to, call, it) => to.u8(3).u64(call).u64(it.guard).u64(it.least),
  upgrade: (to, call, it) => to.u8(4).u64(call).u64(it.guard).u64(it.wait),
  extend: (to, call, it) => to.u8(5).u64(call).u64(it.guard).u64(it.lease),
  downgrade: (to, call, it) => to.u8(6).u64(call).u64(it.guard),
  question: (to, call, it) => to.u8(7).u64(call).bytes(it.key).list(it.words).flag(it.changes).u64(it.limit),
  abandon: (to, it) => to.u8(8).u64(it.call),
  metrics: (to, call) => to.u8(9).u64(call),
  opened: (to, it) => to.u8(10).u64(it.connection),
  received: (to, it) => to.u8(11).u64(it.connection).bytes(it.bytes),
  ended: (to, it) => to.u8(12).u64(it.connection).u8(it.failure).text(it.text),
  flush: (to, call) => to.u8(13).u64(call),
  leaveAll: to => to.u8(14),
  closed: to => to.u8(15),
  tick: to => to.u8(16),
  leave: (to, it) => to.u8(17).u64(it.guard),
  untaken: (to, it) => to.u8(18).u64(it.guard),
  campaign: (to, call, it) => to.u8(19).u64(call).u8(it.owner).u64(it.activity).text(it.name).list(it.keys).u8(it.mode).u32(it.permits).u32(it.limit).u64(it.wait).u64(it.lease).flag(it.renewed).u64(it.maxHold).u64(it.bound).u16(it.replicas).u64(it.margin).bytes(it.value),
  proclaim: (to, call, it) => to.u8(20).u64(call).u64(it.guard).bytes(it.value),
  observe: (to, call, it) => to.u8(21).u64(call).bytes(it.key),
  leader: (to, call, it) => to.u8(22).u64(call).bytes(it.key),
  releasePermits: (to, call, it) => to.u8(23).u64(call).u64(it.guard).u32(it.permits),
};

/** Reads an action. */
const read = from => {
  const kind = from.u8();
  switch (kind) {
    case 1: return { kind, connection: from.u64(), how: from.u8(), host: from.text(), port: from.u16() };
    case 2: return { kind, connection: from.u64(), bytes: from.bytes() };
    case 3: return { kind, connection: from.u64() };
    case 4: return { kind, call: from.u64(), guard: from.u64(), owner: from.text(), fences: from.fences() };
    case 5: return { kind, call: from.u64() };
    case 6: return { kind, call: from.u64() };
    case 7: return { kind, call: from.u64(), code: from.text(), text: from.text(), transient: from.flag() };
    case 8: return { kind, call: from.u64(), answers: from.value() };
    case 9: return { kind, guard: from.u64(), why: from.u8() };
    case 10: return { kind, level: from.u8(), text: from.text() };
    case 11: return { kind, call: from.u64(), leader: from.optional(() => ({ fence: from.big(), value: from.bytes(), owner: from.text(), timeLeft: from.u64() })), missed: from.flag() };
    case 12: return { kind, guard: from.u64(), what: from.text(), outcome: from.text(), nanoseconds: from.u64(), keys: from.list(), text: from.text() };
    default: throw new Error(`rlock: unknown action ${kind}`);
  }
};

module.exports = { VERSION, action, configuration, event, read, owning, access, fault, transport, ending, level, together };
