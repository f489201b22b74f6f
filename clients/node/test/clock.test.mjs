// The clock, and what a suspend of the machine does to a hold. A file stands for the uptime.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { connect, eventually, network, start } from './servers.mjs';

const { Clock } = createRequire(import.meta.url)('../engine.cjs');
const seconds = nanos => Number(nanos) / 1e9;

/** A machine that has been running for 100 s: a function that sets its uptime, and the file. */
function machine(test) {
  const directory = mkdtempSync(join(tmpdir(), 'rlock-'));
  test.after(() => rmSync(directory, { recursive: true }));
  const file = join(directory, 'uptime');
  const runsSince = time => writeFileSync(file, `${time}.00 0.00\n`);
  runsSince(100);
  return { directory, file, runsSince };
}

test('it runs as the monotonic clock does', async t => {
  const { directory } = machine(t);
  for (const file of [undefined, join(directory, 'none'), directory]) {
    const clock = new Clock(file);
    const [begun, monotonic] = [clock.look(), process.hrtime.bigint()];
    await pause(100);
    const difference = clock.look() - begun - (process.hrtime.bigint() - monotonic);
    assert.ok(Math.abs(seconds(difference)) < 0.05, `${file}: ${difference}`);
  }
});

test('it counts a suspend and never goes back', async t => {
  const { file, runsSince } = machine(t);
  const clock = new Clock(file);
  const begun = clock.look();
  runsSince(160);
  const woken = clock.look() - begun;
  assert.ok(seconds(woken) > 59 && seconds(woken) < 70, `${woken}`);
  runsSince(10);
  assert.ok(clock.look() - begun >= woken);
  runsSince(220);
  await pause(11);
  const again = clock.now() - begun;
  assert.ok(seconds(again) > 119 && seconds(again) < 130, `${again}`);
});

test('a guard is invalid after a suspend that is longer than its lease', async t => {
  const { file, runsSince } = machine(t);
  Clock.shared = new Clock(file);
  t.after(() => { Clock.shared = undefined; });
  const { url } = await start(t);
  const client = connect(t, url);
  const guard = await client.lock('k', { lease: 6000 });
  guard.check();
  runsSince(160);
  assert.ok(!guard.isValid);
  assert.equal(guard.remaining, 0);
  assert.throws(() => guard.check(), { code: 'Lost' });
  await eventually('the loss is reported', () => guard.signal.aborted);
  await assert.rejects(guard.release(), { code: 'Lost' });
  await (await client.lock('k', { lease: 6000 })).release();
});

test('a suspend delays nothing that is due later', async t => {
  const { file, runsSince } = machine(t);
  Clock.shared = new Clock(file);
  t.after(() => { Clock.shared = undefined; });
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const client = connect(t, net.url, { responseTimeout: 300 });
  await client.lock('k', { lease: 30_000 });
  await pause(400); // From now on, only the renewal is due: ten seconds after the grant.
  runsSince(160);
  net.mute = true;
  const begun = performance.now();
  await assert.rejects(client.lock('l', { wait: 300 }));
  assert.ok(performance.now() - begun < 4000, `${performance.now() - begun} ms`);
});
