// Contends for locks during faults, and reports what it saw to crates/rlock-client/tests/chaos/program.rs.

import { setTimeout as pause } from 'node:timers/promises';
import { Client } from '../rlock.mjs';

const { RLOCK_URL, RLOCK_SEED, RLOCK_KEYS, RLOCK_COPIES } = process.env;
let seed = Number(RLOCK_SEED);
// Random numbers from a mixed Weyl sequence, which depend only on the seed.
const random = below => {
  seed = (seed + 0x6d2b79f5) | 0;
  const mixed = Math.imul(seed ^ (seed >>> 15), seed | 1);
  return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
};
const between = (least, most) => least + random(most - least);
const now = () => Number(process.hrtime.bigint() / 1000n);
const lines = [];
const note = line => lines.push(JSON.stringify(line));

let isOver = false;
const stop = new AbortController();
const client = new Client(RLOCK_URL, { responseTimeout: 1000, retryTimeout: 4000 });

async function ask(key) {
  const copies = key === 'copied' ? Number(RLOCK_COPIES) : 0;
  const shared = key === 'shared' && random(3) > 0;
  const [lease, renew] = [[600, false], [2000, true], [2000, true], [1000, true], [1000, true], [1000, true]][random(6)];
  const bound = copies === 0 && random(4) === 0 ? between(400, 1500) : undefined;
  const wait = [0, between(50, 3000), undefined, undefined][random(4)];
  const patience = AbortSignal.timeout(random(8) === 0 ? random(100) : 20_000);
  const signal = AbortSignal.any([patience, stop.signal]);
  const verb = wait === undefined ? 'wait' : wait === 0 ? 'try' : 'wait with a limit';
  const limit = wait === undefined ? null : 1000 * (wait === 0 ? 4000 : wait + 1000) + (copies ? 1_000_000 : 0);
  const call = { key, verb, asked: now(), limit };
  const options = { lease, renew, bound, replicas: copies, wait, signal };
  let guard;
  try {
    if (wait === 0) guard = shared ? await client.tryRead(key, options) : await client.tryLock(key, options);
    else guard = shared ? await client.read(key, options) : await client.lock(key, options);
    call.outcome = guard ? 'granted' : 'refused';
  } catch (error) {
    call.outcome = signal.aborted ? 'dropped' : error.code ?? String(error);
  }
  call.ended = now();
  note(call);
  return guard && { guard, hold: {
    key, owner: guard.owner, fence: Number(guard.fence), shared, lease: lease * 1000, asked: call.asked, granted: call.ended,
  } };
}

/** Whether the lock is valid, both before and after reading the clock. */
function sample(guard, hold) {
  const before = guard.isValid;
  const moment = now();
  const isBelieved = before && guard.isValid;
  if (isBelieved) [hold.first, hold.last] = [hold.first ?? moment, moment];
  else hold.doubted ??= moment;
  return isBelieved;
}

async function contend(key) {
  while (!isOver) {
    const { guard, hold } = (await ask(key)) ?? {};
    if (guard) {
      const length = [between(800, 2500), between(100, 800), between(5, 100), between(5, 100)][random(4)];
      const until = now() + length * 1000;
      let isHeld;
      while ((isHeld = sample(guard, hold)) && now() < until && !isOver) await pause(2);
      const release = { key, verb: 'release', asked: now(), limit: 4_000_000 };
      hold.ended = now();
      hold.end = isHeld ? 'released' : 'lost';
      release.outcome = await guard.release().then(() => 'released', error => error.code ?? String(error));
      release.ended = now();
      sample(guard, hold);
      note(release);
      note(hold);
    }
    await pause(between(5, 100));
  }
}

process.stdin.on('end', () => {
  isOver = true;
  stop.abort();
}).resume();
await Promise.all(RLOCK_KEYS.split(' ').map(contend));
await client.close();
console.log(lines.join('\n'));
