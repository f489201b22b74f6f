// Locks on a majority of three servers, some of which fail.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Quorum } from '../rlock.mjs';
import { ask, eventually, isFree, start, startAgain } from './servers.mjs';

/** The startup grace of the members, which is the longest lease. */
const GRACE = 1000;
const lease = GRACE;
/** With this, a slow member is not waited for any longer than a tenth of a second. */
const brief = { responseTimeout: 400 };

/** Three servers that grant already. */
async function startMembers(test) {
  const one = () => start(test, 'one', '--module-arguments', `startup-grace-ms ${GRACE}`);
  const started = await Promise.all([one(), one(), one()]);
  const members = started.map(({ servers: [server] }) => server);
  for (const { port } of members) await eventually('it grants', async () => /grace_left_ms:0\r/.test(await ask(port, 'INFO', 'rlock')));
  return members;
}

const urls = members => members.map(({ url }) => url);

/** A quorum, which is closed with the test. */
function connect(test, members, options) {
  const quorum = new Quorum(members, options);
  test.after(() => quorum.close({ timeout: 500 }));
  return quorum;
}

const areFree = async (members, key) => (await Promise.all(members.map(({ port }) => isFree(port, key)))).every(it => it);

test('a lock is one wait and one hold, and at risk if a majority confirms no renewal', async t => {
  const members = await startMembers(t);
  const [heard, risks] = [[], []];
  const quorum = connect(t, urls(members), { listener: it => heard.push(it), anyGrace: true });
  await quorum.connect();
  await quorum.using('k', () => {});
  const guard = await quorum.lock('k', { lease: 2000, onRisk: left => risks.push(left) });
  process.kill(members[0].pid, 'SIGSTOP');
  await pause(1500);
  assert.ok(guard.isValid && risks.length === 0);
  process.kill(members[1].pid, 'SIGSTOP');
  await eventually('a risk', () => risks.length > 0);
  assert.ok(guard.isValid && risks[0] > 0 && risks[0] <= 1000, `${risks}`);
  await eventually('the loss', () => guard.signal.aborted);
  for (const { pid } of members.slice(0, 2)) process.kill(pid, 'SIGCONT');
  await assert.rejects(guard.release(), { code: 'Lost' });
  const outcomes = heard.filter(({ kind }) => kind === 'wait' || kind === 'hold').map(it => it.outcome);
  assert.deepEqual(outcomes, ['granted', 'released', 'granted', 'lease_ended']);
  assert.deepEqual(heard.filter(({ kind }) => kind === 'at_risk').map(it => it.keys.join()), ['k']);
  assert.equal(risks.length, 1);
});

test('a majority holds each lock, under a fence that rises', async t => {
  const members = await startMembers(t);
  const [a, b] = [connect(t, urls(members), { name: 'billing' }), connect(t, urls(members))];
  await a.connect();
  const first = await a.lock('k', { lease });
  assert.match(first.owner, /^billing:/);
  assert.ok(first.isValid && first.remaining > 0 && first.remaining <= lease);
  await eventually('all hold it', async () => (await Promise.all(members.map(({ port }) => isFree(port, 'k')))).every(it => !it));
  assert.equal(await b.tryLock('k', { lease }), null);
  await assert.rejects(b.lock('k', { lease, wait: 300 }), { code: 'NotAcquired' });
  await assert.rejects(b.lock('k', { lease, signal: AbortSignal.timeout(20) }), { name: 'TimeoutError' });
  const waits = b.lock('k', { lease });
  await first.release();
  const second = await waits;
  assert.ok(second.fence > first.fence && !first.isValid);
  const begun = performance.now();
  await second.releaseAfter(300);
  const fence = await a.using('k', { lease }, (signal, guard) => guard.fence);
  assert.ok(fence > second.fence && performance.now() - begun > 200, `${performance.now() - begun} ms`);

  const activity = a.activity();
  const [outer, inner] = [await a.lock('k', { lease, activity }), await a.tryLock('k', { lease, activity })];
  assert.equal(outer.fence, inner.fence);
  await outer.release();
  assert.ok(inner.isValid && await b.tryLock('k', { lease }) === null);
  await inner.extend(lease);
  await inner.release();
  await eventually('all are free', () => areFree(members, 'k'));
  for (const call of [
    () => a.using(['k', 'l'], { lease }, () => {}), () => a.lock('', { lease }),
    () => inner.upgrade(), () => inner.downgrade(),
  ]) await assert.rejects(call, { code: 'OutOfRange' });

  const [held, waiting] = [await a.lock('k', { lease }), b.lock('k', { lease })];
  await Promise.all([a.close(), b.close(), assert.rejects(waiting, { code: 'Closed' })]);
  assert.ok(!held.isValid && await areFree(members, 'k'));
  const loss = { code: 'Lost', message: 'k: the lock was lost: it was released with the client' };
  assert.throws(() => held.signal.throwIfAborted(), loss);
  assert.throws(() => held.check(), loss);
});

test('servers that protect nothing together are refused', async t => {
  const members = await startMembers(t);
  const [one, two, three] = urls(members);
  for (const [wrong, name, message] of [
    [[], 'RangeError', /^members is 0 servers, it must be 3, 5, 7 or 9/],
    [[one, two], 'RangeError', /^members is 2 servers/],
    [[one, two, three, one], 'RangeError', /^members is 4 servers/],
    [[one, 'redis+sentinel://h/m', two], 'RangeError', /^members\[1\] is not of one server/],
    [[one, two, 'nothing'], 'RangeError', /^members\[2\] is without a scheme/],
    [[one, 7, two], 'TypeError', /^members\[1\] is 7, it must be a string$/],
    [one, 'TypeError', /^members is 'redis:.*', it must be an array of strings$/],
  ]) assert.throws(() => new Quorum(wrong), { name, message });
  assert.throws(() => new Quorum([one, two, three], { responseTimeout: -1 }), { message: /^responseTimeout is -1/ });

  const again = one.replace('127.0.0.1', 'localhost');
  await assert.rejects(connect(t, [one, again, two]).connect(), { code: 'Member', name: 'MemberError', message: /is the same server as/ });
  const bare = await start(t, 'one', '--without-module');
  await assert.rejects(connect(t, [one, bare.url, two]).lock('k', { lease }), { code: 'Member', message: /does not have the rlock module/ });
  const nobody = 'redis://127.0.0.1:1';
  await assert.rejects(connect(t, [one, nobody, nobody]).connect(), { code: 'Connect', transient: true });
  await ask(members[2].port, 'CONFIG', 'SET', 'requirepass', 'secret');
  await assert.rejects(connect(t, [one, two, three]).connect(), { code: 'Connect', message: /NOAUTH/ });
  const known = three.replace('redis://', 'redis://:secret@');
  const quorum = connect(t, [one, two, known]);
  await quorum.connect();

  await assert.rejects(quorum.lock('k'), { code: 'Member', message: /startup-grace-ms` is 1000, below the lease of 30000 ms/ });
  const guard = await quorum.lock('k', { lease });
  await assert.rejects(guard.extend(lease + 1), { code: 'Member', message: /below the lease of 1001 ms/ });
  assert.ok(guard.isValid);
  await guard.release();
  const any = await connect(t, [one, two, known], { anyGrace: true }).lock('k');
  assert.ok(any.remaining > 25_000);
  await any.release();
});

test('a holder outlasts a minority that fails in any way, and learns that a majority is gone', async t => {
  const members = await startMembers(t);
  const [first, second, third] = members;
  const quorum = connect(t, urls(members), brief);
  const guard = await quorum.lock('k', { lease });
  const holds = ({ port }) => eventually('it holds', async () => !await isFree(port, 'k'));
  const outlasts = async () => {
    const until = performance.now() + 2 * lease;
    while (performance.now() < until) {
      guard.check();
      await pause(10);
    }
    await (await quorum.lock('other', { lease })).release();
    assert.equal(await quorum.tryLock('k', { lease }), null);
  };
  await Promise.all(members.map(holds));
  process.kill(third.pid, 'SIGSTOP');
  await outlasts();
  process.kill(third.pid, 'SIGCONT');
  await holds(third);
  process.kill(first.pid, 'SIGKILL');
  startAgain(t, first.port, 'startup-grace-ms', `${GRACE}`);
  await eventually('it is back, and empty', async () => isFree(first.port, 'k').catch(() => false));
  await holds(first); // After its grace.
  process.kill(second.pid, 'SIGKILL');
  await outlasts();
  assert.ok(!guard.signal.aborted);
  const begun = performance.now();
  process.kill(third.pid, 'SIGKILL');
  await eventually('the loss is known', () => guard.signal.aborted);
  assert.ok(performance.now() - begun < lease + 100, `${performance.now() - begun} ms`);
  assert.equal(guard.signal.reason.code, 'Lost');
  assert.throws(() => guard.check(), { code: 'Lost' });
  await assert.rejects(guard.release(), { code: 'Lost' });
  await assert.rejects(quorum.lock('k', { lease, wait: 100 }), { code: 'Unavailable', transient: true });
});

test('processes never hold a lock at once while a member is killed', async t => {
  const members = await startMembers(t);
  const [keys, rounds] = [['a', 'b', 'c'], 40]; // Their gates differ.
  const contender = `
    import { setTimeout as pause } from 'node:timers/promises';
    import { Quorum } from ${JSON.stringify(new URL('../rlock.mjs', import.meta.url))};
    const quorum = new Quorum(${JSON.stringify(urls(members))}, { ...${JSON.stringify(brief)}, log() {} });
    const now = () => Number(process.hrtime.bigint() / 1000n);
    await Promise.all(${JSON.stringify(keys)}.map(async key => {
      for (let round = 0; round < ${rounds}; round++) {
        const guard = await quorum.lock(key, { lease: ${lease} });
        const begun = now();
        await pause(2);
        if (guard.isValid) console.log(JSON.stringify({ key, begun, ended: now(), fence: Number(guard.fence) }));
        // It may be lost, or be held at the killed member and only one more.
        await guard.release().catch(error => { if (!['Lost', 'Unavailable'].includes(error.code)) throw error; });
      }
    }));
    await quorum.close();`;
  const holds = [];
  const contenders = [1, 2, 3].map(() => {
    const running = promisify(execFile)(process.execPath, ['--input-type=module', '--eval', contender], { timeout: 40_000 });
    running.child.stdout.on('data', text => holds.push(...text.trim().split('\n').map(JSON.parse)));
    return running;
  });
  await eventually('each lock is contended for', () => keys.every(key => holds.filter(it => it.key === key).length > 20));
  process.kill(members[Math.floor(Math.random() * 3)].pid, 'SIGKILL');
  await Promise.all(contenders);
  assert.ok(holds.length >= 0.98 * contenders.length * keys.length * rounds, `${holds.length}`);
  for (const key of keys) {
    const inTurn = holds.filter(it => it.key === key).sort((one, other) => one.begun - other.begun);
    for (const [place, { begun, fence }] of inTurn.slice(1).entries()) {
      assert.ok(inTurn[place].ended <= begun, 'two held at once');
      assert.ok(inTurn[place].fence < fence, 'fences rise in the order of holding');
    }
  }
});
