// Networks, servers and callers that fail.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { Client, Quorum } from '../rlock.mjs';
import { ask, collected, connect, connections, eventually, isFree, network, queued, start } from './servers.mjs';

test('a thousand holds and a thousand waits share one connection', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = connect(t, url);
  const holds = await Promise.all(Array.from({ length: 1000 }, (_, i) => client.lock(`k${i}`, { lease: 4000 })));
  const waits = holds.map(guard => client.lock(guard.key, { lease: 4000 }));
  await eventually('they wait', async () => await queued(port, 'k999') === 1);
  await pause(3500);
  assert.ok(holds.every(guard => guard.isValid));
  assert.equal(await connections(port), 1);
  await Promise.all(holds.map(guard => guard.release()));
  const granted = await Promise.all(waits);
  await Promise.all(granted.map(guard => guard.release()));
  const { losses, reconnects } = await client.metrics();
  assert.deepEqual([losses, reconnects], [0, 0]);
});

test('what is asked in one turn of the event loop leaves in one write', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = connect(t, url);
  await client.connect();
  const reads = async () => Number(/total_reads_processed:(\d+)/.exec(await ask(port, 'INFO', 'stats'))[1]);
  const before = await reads();
  for (let round = 0; round < 10; round++) {
    const guards = await Promise.all(Array.from({ length: 50 }, (_, i) => client.lock(`k${i}`)));
    await Promise.all(guards.map(guard => guard.release()));
  }
  const count = await reads() - before;
  assert.ok(count >= 20 && count < 50, `${count} reads`);
});

test('ten thousand abandoned waits leave nothing', async t => {
  const warnings = warningsDuring(t);
  const { url, servers: [{ port }] } = await start(t);
  const [holder, client] = [connect(t, url), connect(t, url)];
  const guard = await holder.lock('k');
  for (let round = 0; round < 10; round++) {
    const given = new AbortController();
    const waits = Array.from({ length: 1000 }, (_, i) => client.lock(i % 2 ? 'k' : 'l', { signal: given.signal }));
    // Some end before they are connected or sent, some at their grant, the others while they wait.
    if (round % 3) await pause(round);
    given.abort();
    const ends = await Promise.allSettled(waits);
    for (const { status, value, reason } of ends) {
      if (status === 'rejected') assert.equal(reason.name, 'AbortError');
      else await value.release();
    }
  }
  await eventually('nothing is left', async () => await queued(port, 'k') === 0 && await isFree(port, 'l'));
  assert.equal(await connections(port), 2);
  await guard.release();
  assert.deepEqual(warnings, []);
});

test('waits that are abandoned while a connection opens leave no connection', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  net.delay = 20;
  for (let i = 0; i < 30; i++) {
    const client = new Client(net.url);
    await assert.rejects(client.lock('k', { signal: AbortSignal.timeout(i) }), { name: 'TimeoutError' });
    await client.close();
  }
  await eventually('none is open', () => net.pairs.size === 0);
  await eventually('it is free', () => isFree(port, 'k'));
});

test('a release after the end of the client tells of a loss before it', async t => {
  const { servers: [{ url, port }] } = await start(t);
  const client = new Client(url);
  const [lost, held] = [await client.lock('k'), await client.lock('held')];
  await ask(port, 'RLOCK.FORCE', 'k');
  await eventually('it is lost', () => !lost.isValid);
  await client.close();
  await assert.rejects(lost.release(), { code: 'Lost' });
  await assert.rejects(held.release(), { code: 'Closed' });
});

test('lost replies and connections that end cost no lock and leave none', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const client = connect(t, net.url, { responseTimeout: 200 });
  const held = await client.lock('held', { lease: 4000 });
  let last = 0n;
  for (let round = 0; round < 12; round++) {
    const fault = setTimeout(() => {
      if (round % 2) return net.cut();
      net.mute = true;
      setTimeout(() => { net.mute = false; }, 250);
    }, round % 3);
    const guard = await client.lock('k', { lease: 4000 });
    assert.ok(guard.fence > last && guard.isValid);
    last = guard.fence;
    await guard.release();
    clearTimeout(fault);
    net.mute = false;
  }
  assert.ok(held.isValid);
  await held.release();
  await eventually('all are free', async () => await isFree(port, 'k') && await isFree(port, 'held'));
});

test('a release outlasts a server that is unreachable for a second', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const client = connect(t, net.url, { responseTimeout: 300 });
  const guard = await client.lock('k');
  net.mute = true;
  net.cut();
  setTimeout(() => { net.mute = false; }, 1000);
  await guard.release();
  assert.ok(await isFree(port, 'k'));
});

test('two clients behind a bad network never hold at once', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const clients = Array.from({ length: 2 }, () => connect(t, net.url, { responseTimeout: 300 }));
  const fault = setInterval(net.cut, 120);
  let [inside, grants, fence] = [0, 0, 0n];
  await Promise.all(clients.flatMap(client => Array.from({ length: 4 }, async () => {
    const until = Date.now() + 2000;
    while (Date.now() < until || grants < 20) {
      const guard = await client.lock('k', { lease: 5000 });
      assert.equal(++inside, 1);
      assert.ok(guard.fence > fence);
      fence = guard.fence;
      grants += 1;
      await pause(1);
      if (guard.isValid) inside -= 1;
      else inside = 0;
      await guard.release().catch(error => assert.equal(error.code, 'Lost'));
    }
  })));
  clearInterval(fault);
});

test('a stalled server ends no wait late, and its requests leave nothing', async t => {
  const { url, servers: [{ port, pid }] } = await start(t);
  const client = connect(t, url, { responseTimeout: 500, retryTimeout: 1000 });
  const guard = await client.lock('k', { lease: 1000 });
  process.kill(pid, 'SIGSTOP');
  const begun = Date.now();
  try {
    await assert.rejects(client.lock('l', { wait: 500 }));
    assert.ok(Date.now() - begun < 2500, `${Date.now() - begun} ms`);
    await pause(Math.max(0, 1100 - (Date.now() - begun)));
    assert.ok(!guard.isValid && guard.signal.aborted);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await eventually('nothing is left', async () => await isFree(port, 'k') && await isFree(port, 'l'), 15_000);
});

test('an event loop that was blocked beyond the lease learns of the loss at its first check', async t => {
  const { url } = await start(t);
  const guard = await connect(t, url).lock('k', { lease: 200 });
  const until = Date.now() + 400;
  while (Date.now() < until);
  assert.throws(() => guard.check(), { code: 'Lost' });
  await assert.rejects(guard.release(), { code: 'Lost' });
});

test('a fail-over behind Sentinels, and behind one address', async t => {
  const { url, servers } = await start(t, 'sentinel', '--sentinels', '1');
  const net = await network(t, servers[0].port);
  const [watched, single] = [connect(t, url), connect(t, net.url, { responseTimeout: 500 })];
  const guard = await watched.lock('k', { lease: 60_000 });
  const observers = [watched, single].map(it => it.election('e').observe());
  const leadership = await watched.election('e').campaign('before', { lease: 60_000 });
  const other = await single.lock('l', { lease: 60_000 });
  await eventually('the replica knows', async () => !await isFree(servers[1].port, 'l'));
  // The addresses lead to a replica for a while, which answers READONLY.
  await ask(servers[0].port, 'REPLICAOF', '127.0.0.1', `${servers[1].port}`);
  const goOn = [other.release(), leadership.proclaim('after')];
  await pause(50);
  await ask(servers[1].port, 'REPLICAOF', 'NO', 'ONE');
  await ask(servers[0].port, 'REPLICAOF', 'NO', 'ONE');
  await Promise.all(goOn);
  assert.ok(guard.isValid);
  for (const changes of observers) {
    for await (const { leader } of changes) {
      if (leader) assert.equal(leader.fence, leadership.fence);
      if (leader?.value.toString() === 'after') break;
    }
  }
});

test('a cluster, over all of its slots', async t => {
  const { url, servers } = await start(t, 'cluster', '--nodes', '3');
  const client = connect(t, url);
  const keys = Array.from({ length: 30 }, (_, i) => `key:${i}`);
  const guards = await Promise.all(keys.map(key => client.lock(key)));
  await assert.rejects(client.lockAll(['key:1', 'key:2'], { wait: 50 }), { code: 'NotAcquired' });
  await Promise.all(guards.map(guard => guard.release()));
  const all = await client.lockAll(keys);
  assert.equal(Object.keys(all.fences).length, 30);
  await ask(servers[0].port, 'PING');
  await all.release();
  await Promise.all(keys.map(async key => {
    const election = client.election(key);
    const changes = election.observe();
    assert.equal((await changes.next()).value.leader, null);
    const leadership = await election.campaign(key);
    assert.equal((await changes.next()).value.leader.value.toString(), key);
    assert.equal((await election.leader()).fence, leadership.fence);
    await leadership.resign();
    assert.equal((await changes.next()).value.leader, null);
    await changes.return();
  }));
});

/** The lines on standard error of a program that waits for a lock. */
async function stderrOfAWait(url) {
  const program = `import { Client } from ${JSON.stringify(new URL('../rlock.mjs', import.meta.url))};
    await new Client(${JSON.stringify(url)}).lock('invoice:7');`;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', program], { stdio: ['ignore', 'ignore', 'pipe'] });
  let printed = '';
  child.stderr.setEncoding('utf8').on('data', text => { printed += text; });
  try {
    await eventually('a warning', () => printed.includes('trying again'));
    await pause(1000); // Several attempts.
  } finally {
    child.kill('SIGKILL');
  }
  return printed.split('\n').filter(line => line.includes('trying again'));
}

test('an unreachable server is reported once', async () => {
  const listener = net.createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  await new Promise(resolve => { listener.close(resolve); });
  const [line, ...more] = await stderrOfAWait(`redis://127.0.0.1:${port}`);
  assert.match(line, new RegExp(`RlockWarning: cannot reach 127\\.0\\.0\\.1:${port} \\(.*ECONNREFUSED.*\\), trying again$`));
  assert.deepEqual(more, []);
});

test('a wrong password is reported once', async t => {
  const { servers: [{ port }] } = await start(t);
  await ask(port, 'CONFIG', 'SET', 'requirepass', 'secret');
  for (const [login, reason] of [['', 'NOAUTH'], [':wrong@', 'WRONGPASS']]) {
    const [line, ...more] = await stderrOfAWait(`redis://${login}127.0.0.1:${port}`);
    assert.match(line, new RegExp(`RlockWarning: 127\\.0\\.0\\.1:${port} refuses the connection \\(${reason} .*\\), trying again$`));
    assert.deepEqual(more, []);
  }
});

/** What Node warns of until the end of the test. */
function warningsDuring(t) {
  const warnings = [];
  const add = warning => warnings.push(warning.message);
  process.on('warning', add);
  t.after(() => process.off('warning', add));
  return warnings;
}

test('the option log gets the warnings, and nothing is printed', async t => {
  const [warnings, lines] = [warningsDuring(t), []];
  const client = connect(t, 'redis://127.0.0.1:1', { log: (level, text) => lines.push(`${level} ${text}`), retryTimeout: 500 });
  await assert.rejects(client.tryLock('k'), { code: 'Unavailable' });
  assert.equal(lines.filter(line => line.startsWith('warn cannot reach 127.0.0.1:1 (')).length, 1);
  assert.deepEqual(warnings, []);
});

test('a log that throws changes nothing else', async t => {
  const warnings = warningsDuring(t);
  const log = () => { throw new Error('no space'); };
  const client = connect(t, 'redis://127.0.0.1:1', { log, retryTimeout: 500 });
  await assert.rejects(client.tryLock('k'), { code: 'Unavailable' });
  await eventually('it is said', () => warnings.some(it => /^log has thrown: Error: no space/.test(it)));
});

test('a lack of rights names the key and the rule', async t => {
  const { servers: [{ port }] } = await start(t);
  await ask(port, 'ACL', 'SETUSER', 'few', 'on', '>p', '~other:*', '&rlock:client:*', '+@all');
  const client = connect(t, `redis://few:p@127.0.0.1:${port}`);
  await assert.rejects(client.lock('invoice:7'), { code: 'Denied', message: /'invoice:7'.* ~invoice:\*.*docs\/operating\.md/ });
  await ask(port, 'ACL', 'SETUSER', 'few', '-rlock.acquire');
  await assert.rejects(client.lock('other:7'), { code: 'Denied', message: /'rlock\.acquire'.* \+rlock\.acquire:/ });
});

test('TLS, with the certificates of the options', async t => {
  const { tls: { url, authority } } = await start(t, 'one', '--tls');
  await assert.rejects(connect(t, url).connect(), /certificate/);
  const guard = await connect(t, url, { tls: { ca: readFileSync(authority) } }).lock('k');
  await guard.release();
});

test('options of TLS that Node refuses are found when the client is made', () => {
  const url = 'rediss://127.0.0.1:1';
  for (const tls of [
    { cert: 'garbage', key: 'garbage' }, { ca: 5 }, { minVersion: 'TLSv9' }, { ciphers: 'NOPE' }, { servername: 5 },
    { session: 5 }, { ALPNProtocols: 5 }, { checkServerIdentity: 5 },
  ]) {
    for (const make of [() => new Client(url, { tls }), () => new Quorum([url, url, url], { tls })]) {
      assert.throws(make, { name: 'RangeError', message: /^tls is refused by Node: ./ });
    }
  }
  for (const tls of [5, 'secret']) assert.throws(() => new Client(url, { tls }), { name: 'TypeError', message: 'tls must be an object' });
});

test('a connection that Node refuses to begin is one that fails', async t => {
  // Only a name is looked up.
  const client = connect(t, 'rediss://localhost:1', { tls: { lookup: 5 }, retryTimeout: 300, log() {} });
  await assert.rejects(client.connect(), { code: 'Connect', message: /localhost:1: .*lookup/ });
  await assert.rejects(client.tryLock('k'), { code: 'Unavailable', transient: true });
});

test('a client that is closed ends what waits, and releases what is held', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = new Client(url);
  const guard = await client.lock('k');
  const waits = client.lock('k');
  await client.metrics();
  const closed = client.close();
  await assert.rejects(waits, { code: 'Closed' });
  await closed;
  assert.ok(!guard.isValid && await isFree(port, 'k'));
  await assert.rejects(client.lock('k'), { code: 'Closed' });
  await eventually('no connection', async () => await connections(port) === 0);
});

test('each call of close waits for the same end', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const ends = [];
  const close = async () => {
    const begun = performance.now();
    await client.close();
    assert.ok(performance.now() - begun > 90, 'the server has answered');
  };
  const client = new Client(net.url, { listener: ({ kind }) => { if (kind === 'hold') ends.push(close()); } });
  await client.lock('k');
  net.delay = 100;
  ends.push(close(), close());
  await Promise.all(ends);
  assert.equal(ends.length, 3);
  assert.ok(await isFree(port, 'k'));
  await assert.rejects(client.close({ timeout: -1 }), { name: 'RangeError' });
  await client.close();
});

test('a client that is closed does not stay in memory', async t => {
  const { url } = await start(t);
  const use = async () => {
    const log = () => {};
    const client = new Client(url, { log, responseTimeout: 60_000 });
    await client.lock('k', { lease: 600_000 });
    await client.close({ timeout: 60_000 });
    await assert.rejects(client.lock('k'), { code: 'Closed' });
    return new WeakRef(log);
  };
  await collected(await use());
});
