// What a client tells its listener, and locks at risk.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { inspect, promisify } from 'node:util';
import { Client, Quorum } from '../rlock.mjs';
import { ask, connect, eventually, start } from './servers.mjs';

/** What a listener has heard. */
class Heard extends Array {
  listener = it => { this.push(it); };

  of(kind) { return Array.from(this).filter(it => it.kind === kind); }
}

test('a listener hears of waits, holds and connections', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const heard = new Heard();
  const client = connect(t, url, { listener: heard.listener });
  const guard = await client.lock('secret');
  assert.equal(await client.tryLock('secret'), null);
  await assert.rejects(client.lockAll(['secret', 'b'], { wait: 50 }));
  await assert.rejects(client.lock('secret', { signal: AbortSignal.timeout(20) }));
  await assert.rejects(client.lock('k', { lease: 1 })); // This is no wait.
  await guard.release();
  const lost = await client.lock('secret');
  await ask(port, 'RLOCK.FORCE', 'secret');
  await eventually('the loss', () => lost.signal.aborted);
  await client.lock('left');
  await client.close();

  const [waits, holds] = [heard.of('wait'), heard.of('hold')];
  assert.deepEqual(waits.map(it => it.outcome), ['granted', 'refused', 'refused', 'abandoned', 'granted', 'granted']);
  assert.deepEqual(waits.map(it => it.keys.join()), ['secret', 'secret', 'b,secret', 'secret', 'secret', 'left']);
  assert.deepEqual(holds.map(it => it.outcome), ['released', 'ended_by_server', 'closed']);
  assert.ok(waits[2].duration >= 50 && holds[0].duration > waits[2].duration && holds[0].duration < 10_000);
  const [connected] = heard;
  assert.deepEqual({ ...connected }, { kind: 'connected', outcome: '', duration: 0, text: `127.0.0.1:${port}` });
  assert.deepEqual(connected.keys, []);
  for (const text of [inspect(holds[0], { showHidden: true }), `${holds[0]}`, JSON.stringify({ ...holds[0] })]) assert.doesNotMatch(text, /secret/);
  assert.throws(() => { holds[0].outcome = ''; }, TypeError);
  assert.throws(() => { holds[0].keys.push(''); }, TypeError);
});

test('each guard at risk calls back once, before the loss, and again only after a renewal', async t => {
  const { url, servers: [{ pid }] } = await start(t);
  const [heard, told] = [new Heard(), []];
  const client = connect(t, url, { listener: heard.listener });
  const options = { lease: 2000, activity: client.activity() };
  const at = name => ({ ...options, onRisk: left => { told.push([name, left]); } });
  const outer = await client.lock('k', at('outer'));
  const [inner, plain] = [await client.tryLock('k', at('inner')), await client.lock('k', options)];
  const leader = await client.election('e', { lease: 2000 }).campaign('v', at('leader'));
  for (const round of [1, 2]) {
    process.kill(pid, 'SIGSTOP');
    await eventually('they are at risk', () => told.length === 3 * round);
    assert.ok(outer.isValid && heard.of('hold').length === 0);
    process.kill(pid, 'SIGCONT');
    await eventually('they are renewed', () => outer.remaining > 1500 && leader.remaining > 1500);
  }
  assert.deepEqual(told.map(([name]) => name).sort(), ['inner', 'inner', 'leader', 'leader', 'outer', 'outer']);
  assert.ok(told.every(([, left]) => left > 0 && left <= 1000), inspect(told));
  await Promise.all([inner, leader].map(it => it.release()));
  process.kill(pid, 'SIGSTOP');
  await eventually('the loss', () => outer.signal.aborted && plain.signal.aborted);
  process.kill(pid, 'SIGCONT');
  assert.deepEqual(told.slice(6).map(([name]) => name), ['outer']);
  assert.equal(heard.of('at_risk').length, 10);
  assert.deepEqual(heard.of('hold').map(it => it.outcome).sort(), ['lease_ended', 'lease_ended', 'released', 'released']);
});

test('a lock at risk calls back without a listener, and what a callback throws is logged', async t => {
  const { url, servers: [{ pid }] } = await start(t);
  const lines = [];
  const log = (level, text) => lines.push(`${level} ${text.split('\n')[0]}`);
  const client = connect(t, url, { log });
  const guards = await Promise.all([
    client.lock('k', { lease: 1000, onRisk: () => { throw new Error('sync'); } }),
    client.read('l', { lease: 1000, onRisk: async () => { throw new Error('async'); } }),
  ]);
  process.kill(pid, 'SIGSTOP');
  await eventually('the loss', () => guards.every(it => it.signal.aborted));
  process.kill(pid, 'SIGCONT');
  assert.deepEqual(lines.filter(it => it.includes('onRisk')).sort(), ['warn onRisk has thrown: Error: async', 'warn onRisk has thrown: Error: sync']);

  lines.length = 0;
  const mistaken = connect(t, url, { log, listener: () => { throw undefined; } });
  for (let round = 0; round < 3; round++) await (await mistaken.lock('m')).release();
  assert.equal(lines.filter(it => it === 'warn listener has thrown: undefined').length, 7); // A connection, three waits, three holds.
});

test('a listener may call the client', async t => {
  const { url } = await start(t);
  const inside = [];
  const client = connect(t, url, {
    listener: ({ kind, keys: [key] }) => {
      if (kind === 'hold' && key === 'k') inside.push(client.using('l', () => client.metrics()));
    },
  });
  await client.using('k', () => {});
  const [{ grants }] = await Promise.all(inside);
  assert.equal(grants, 2);
});

test('a listener that closes the client hears of all in order', async t => {
  const { url } = await start(t);
  const [heard, closes] = [[], []];
  const client = connect(t, url, {
    listener: ({ kind, outcome }) => {
      if (kind === 'connected') return;
      heard.push(outcome);
      closes.push(client.close());
    },
  });
  // Some of their grants come together, and the others too late.
  const calls = await Promise.allSettled(Array.from({ length: 64 }, (_, at) => client.lock(`k${at}`)));
  await Promise.all(closes);
  const granted = calls.filter(it => it.status === 'fulfilled').length;
  assert.ok(granted > 1, `${granted}`);
  // First the ends of holds, and then those of waits.
  const closed = [...Array(granted).fill('closed'), ...Array(64 - granted).fill('Closed')];
  assert.deepEqual(heard, [...Array(granted).fill('granted'), ...closed]);
});

test('callbacks are functions', async t => {
  const { url } = await start(t);
  const message = 'it must be a function';
  for (const value of ['print', 7, true, {}]) {
    for (const create of [listener => new Client(url, { listener }), listener => new Quorum([url, url, url], { listener })]) {
      assert.throws(() => create(value), { name: 'TypeError', message: `listener is ${inspect(value)}, ${message}` });
    }
  }
  const client = connect(t, url);
  const wrong = { onRisk: 'print' };
  for (const call of [
    () => client.lock('k', wrong), () => client.tryRead('k', wrong), () => client.acquire('k', 2, wrong),
    () => client.lockAll(['k'], wrong), () => client.using('k', wrong, () => {}), () => client.election('k', wrong).campaign('v'),
  ]) await assert.rejects(async () => call(), { name: 'TypeError', message: `onRisk is 'print', ${message}` });
});

test('the program of the document', async t => {
  const { url } = await start(t);
  const docs = process.env.RLOCK_DOCS ?? fileURLToPath(new URL('../../../docs', import.meta.url));
  const [, program] = /```js\n([^]*?)```/.exec(await readFile(`${docs}/telemetry.md`, 'utf8'));
  const here = fileURLToPath(new URL('..', import.meta.url));
  const addressed = ['--input-type=module', '-e', program.replace('redis://127.0.0.1:6379', url)];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, addressed, { cwd: here, timeout: 10_000 });
  assert.equal(stderr, '');
  for (const [name, attribute] of [
    ['wait.duration', "'rlock.outcome': 'granted'"], ['hold.duration', "'rlock.outcome': 'released'"], ['occurrences', "'rlock.kind': 'connected'"],
  ]) assert.match(stdout, new RegExp(`name: 'rlock\\.client\\.${name.replace('.', '\\.')}'[^]*?attributes: { ${attribute} }`));
});
