// The API, on real servers.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { describe, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { inspect, promisify } from 'node:util';
import { Worker } from 'node:worker_threads';
import { Client, Quorum, RlockError } from '../rlock.mjs';
import { ask, collected, connect, eventually, isFree, queued, start } from './servers.mjs';

const code = wanted => error => error instanceof RlockError && error.code === wanted && error.name === `${wanted}Error`;

test('a release hands the lock over, under a larger fence', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const [a, b] = [connect(t, url), connect(t, url)];
  const first = await a.lock('k');
  assert.equal(await b.tryLock('k'), null);
  await assert.rejects(b.lock('k', { wait: 20 }), code('NotAcquired'));
  const waits = b.lock('k', { wait: 5000 });
  await eventually('it waits', async () => await queued(port, 'k') === 1);
  await first.release();
  const second = await waits;
  assert.ok(second.fence > first.fence);
  assert.ok(second.isValid && second.remaining > 25_000 && second.remaining <= 30_000);
  assert.equal(second.key, 'k');
  await second.release();
  assert.ok(await isFree(port, 'k'));
});

test('each kind of lock', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = connect(t, url, { name: 'kinds' });
  const [one, two] = [await client.read('r'), await client.read('r')];
  assert.equal(await client.tryLock('r'), null);
  assert.equal(await one.upgrade({ wait: 20 }), false);
  await two.release();
  assert.equal(await one.upgrade(), true);
  assert.equal(await client.tryRead('r'), null);
  await one.extend(60_000);
  assert.ok(one.remaining > 50_000);
  await one.downgrade();
  await (await client.tryRead('r')).release();
  await one.release();

  const permits = await client.acquire('p', 3, { permits: 2 });
  assert.equal(await client.tryAcquire('p', 3, { permits: 2 }), null);
  await (await client.tryAcquire('p', 3)).release();
  await permits.release();

  const all = await client.lockAll(['b', 'a']);
  assert.deepEqual(all.keys, ['b', 'a']);
  assert.equal(all.fences.a, all.fences.b);
  assert.equal(await client.tryLockAll(['c', 'a']), null);
  await all.release();

  const bytes = Buffer.from([0xff, 0]);
  const guard = await client.lock(bytes);
  assert.match(guard.owner, /^kinds:/);
  assert.equal((await client.info(bytes)).holders[0].owner, guard.owner);
  assert.equal(await client.force(bytes), 1);
  await assert.rejects(guard.release(), code('Lost'));
  assert.ok(await isFree(port, 'r'));
});

test('some permits are released, and the rest stays', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const [client, other] = [connect(t, url), connect(t, url)];
  const refuses = async (guard, permits, most) => assert.rejects(guard.release({ permits }), {
    name: 'RangeError', message: `permits is ${inspect(permits)}, it must be a whole number from 1 to ${most}`,
  });
  const three = await client.acquire('p', 3, { permits: 3 });
  for (const permits of [0, 4, -1, 1.5, NaN, '1', true, null, 1n]) await refuses(three, permits, 3);
  assert.equal(await other.tryAcquire('p', 3), null);
  await three.release({ permits: 1 });
  const one = await other.tryAcquire('p', 3);
  await refuses(three, 3, 2);
  assert.ok(one.isValid && three.isValid);
  assert.deepEqual((await client.info('p')).holders.map(({ permits }) => permits).sort(), [1, 2]);
  await one.release();
  assert.equal(await other.tryAcquire('p', 3, { permits: 2 }), null);
  await Promise.all([three.release({ permits: 1 }), three.release({ permits: 1 })]);
  assert.ok(!three.isValid && await isFree(port, 'p'));
  await three.release();
  await assert.rejects(three.release({ permits: 1 }), code('Lost'));
  const alone = await client.lock('k');
  await refuses(alone, 2, 1);
  await alone.release({ permits: 1 });
  assert.ok(await isFree(port, 'k'));
});

test('only the hold with a fence is ended', async t => {
  const { url } = await start(t);
  const client = connect(t, url);
  const guard = await client.lock('k');
  assert.equal(await client.force('k', { fence: guard.fence - 1n }), 0);
  assert.ok(guard.isValid);
  const { fence } = await client.info('k');
  assert.equal(await client.force('k', { fence }), 1);
  await assert.rejects(guard.release(), code('Lost'));
  for (const fence of [0, -1, 2 ** 53, 0n, -1n, 2n ** 53n, 1.5, '7', null]) {
    await assert.rejects(client.force('k', { fence }), { name: 'RangeError', message: `fence is ${inspect(fence)}, it must be a whole number from 1 to 9007199254740991` });
  }
});

test('an activity re-enters its locks, and a cycle of two is refused', async t => {
  const { url } = await start(t);
  const client = connect(t, url);
  const [one, two] = [client.activity(), client.activity()];
  const a = await client.lock('a', { activity: one });
  const again = await client.lock('a', { activity: one });
  assert.equal(a.fence, again.fence);
  await a.release();
  assert.ok(again.isValid);
  const b = await client.lock('b', { activity: two });
  const waits = client.lock('b', { activity: one });
  await eventually('it waits', async () => (await client.info('b')).queued === 1);
  await assert.rejects(client.lock('a', { activity: two }), code('Deadlock'));
  await b.release();
  await (await waits).release();
  await again.release();
  // An activity is another owner in every other client.
  const other = connect(t, url);
  const mine = await other.lock('a', { activity: other.activity() });
  assert.equal(await other.tryLock('a', { activity: one }), null);
  await mine.release();
});

test('only what a client has made is an activity', async t => {
  const { url } = await start(t);
  const client = connect(t, url);
  for (const activity of ['worker-1', '', 5, 0, false, {}, { number: 1 }, { number: NaN }, { number: -1 }, { number: 1n }, structuredClone(client.activity())]) {
    const refused = { name: 'TypeError', message: /^activity is .*, it must be made by `activity\(\)`$/s };
    await assert.rejects(client.lock('a', { activity }), refused);
    await assert.rejects(client.election('a').tryCampaign('x', { activity }), refused);
  }
  for (const activity of [undefined, null, client.activity()]) await (await client.tryLock('a', { activity })).release();
});

test('an event that could not be written leaves nothing behind', async t => {
  const { url } = await start(t);
  const source = `
    const { Client } = require('${fileURLToPath(new URL('../rlock.cjs', import.meta.url))}');
    const client = new Client('${url}');
    const key = Object.defineProperty(new Uint8Array(1), 'length', { value: 2 ** 32 });
    const given = new AbortController();
    const refused = call => call.then(() => { throw new Error('written'); }, error => console.log(error.code));
    (async () => {
      await refused(client.lock(key, given));
      await refused(client.election(key).observe(given).next());
      await (await client.lock('k')).release();
      console.log(require('node:events').getEventListeners(given.signal, 'abort').length);
    })();`;
  const { stdout } = await promisify(execFile)(process.execPath, ['-e', source], { timeout: 10_000 });
  assert.equal(stdout, 'ERR_OUT_OF_RANGE\nERR_OUT_OF_RANGE\n0\n');
});

test('terms', async t => {
  const { url, servers: [{ port }] } = await start(t, 'replica');
  const client = connect(t, url);
  const fixed = await client.lock('fixed', { lease: 300, renew: false });
  const most = await client.lock('most', { lease: 300, maxHold: 700 });
  const bound = await client.lock('bound', { bound: 1000 });
  const known = await client.lock('known', { replicas: 1 });
  const early = await client.lock('early', { margin: 10_000 });
  assert.ok(early.remaining > 10_000 && early.remaining < 20_000);
  await pause(400);
  assert.throws(() => fixed.check(), code('Lost'));
  assert.ok(most.isValid && bound.isValid && known.isValid);
  await pause(400);
  assert.ok(!most.isValid && most.signal.aborted);
  await known.releaseAfter(900);
  assert.ok(!await isFree(port, 'known'));
  await assert.rejects(client.lock('x', { bound: 1000, replicas: 1 }), code('OutOfRange'));
  await assert.rejects(client.lock('x', { replicas: 5 }), code('NotReplicated'));
});

test('bad arguments are named, and nothing is sent', async t => {
  const client = connect(t, 'redis://127.0.0.1:1');
  for (const url of ['http://x', 'redis://', 42]) assert.throws(() => new Client(url), /url|URL|string/);
  assert.throws(() => new Client(undefined, { responseTimeout: -1 }), /responseTimeout is -1/);
  await assert.rejects(async () => client.lock(42), /key is 42/);
  for (const [call, named] of [
    [() => client.lock('', {}), /^key is empty/],
    [() => client.lock('k', { lease: 2 }), /^lease is 2ms/],
    [() => client.acquire('k'), /^limit is undefined, it must be a whole number from 1 to 1000000$/],
    [() => client.tryAcquire('k', { permits: 3 }), /^limit is { permits: 3 }, it must be/],
    [() => client.acquire('k', '4'), /^limit is '4', it must be/],
    [() => client.acquire('k', 2, { permits: 1.5 }), /^permits is 1.5, it must be/],
    [() => client.acquire('k', 2, { permits: 3 }), /^permits is 3/],
    [() => client.lock('k', { margin: 10_001 }), /^margin is 10.001s, it must be at most a third of the lease/],
    [() => client.lock('k', { replicas: 65_536 }), /^replicas is 65536, it must be a whole number from 0 to 65535$/],
    [() => client.lockAll([]), /^keys is 0 keys/],
    [() => client.lockAll(['a', 'a']), /^keys is `a` more than once/],
    [() => client.using('k'), /^work must be a function/],
  ]) await assert.rejects(async () => call(), { message: named });
});

test('an empty key and text that is no Unicode are refused in each place', async t => {
  const url = 'redis://127.0.0.1:1';
  const client = connect(t, url);
  const keys = {
    lock: key => client.lock(key),
    tryLock: key => client.tryLock(key),
    lockAll: key => client.lockAll(['a', key]),
    using: key => client.using(key, () => {}),
    read: key => client.read(key),
    acquire: key => client.acquire(key, 2),
    election: key => client.election(key),
    info: key => client.info(key),
    force: key => client.force(key),
  };
  const texts = {
    value: value => client.election('k').campaign(value),
    name: name => new Client(url, { name }),
    url: text => new Client(`redis://${text}@127.0.0.1:1`),
    'members[0]': text => new Quorum([`redis://${text}@127.0.0.1:1`, url, url]),
  };
  for (const call of Object.values(keys)) {
    for (const key of ['', new Uint8Array(0)]) {
      await assert.rejects(async () => call(key), { code: 'OutOfRange', message: 'key is empty, it must be at least 1 byte' });
    }
    texts.key = call;
    for (const [name, refuses] of Object.entries(texts)) {
      for (const text of ['\ud800', 'a\udfffb']) {
        const message = `${name} has half of a surrogate pair, it must be well-formed Unicode`;
        await assert.rejects(async () => refuses(text), { name: 'RangeError', message });
      }
    }
  }
});

test('options and signals of another type are named, and nothing is sent', async t => {
  const url = 'redis://127.0.0.1:1';
  const client = connect(t, url);
  const election = client.election('k');
  const calls = {
    lock: it => client.lock('k', it),
    tryLock: it => client.tryLock('k', it),
    lockAll: it => client.lockAll(['k'], it),
    tryLockAll: it => client.tryLockAll(['k'], it),
    read: it => client.read('k', it),
    tryRead: it => client.tryRead('k', it),
    acquire: it => client.acquire('k', 2, it),
    tryAcquire: it => client.tryAcquire('k', 2, it),
    using: it => client.using('k', it, () => {}),
    connect: it => client.connect(it),
    campaign: it => election.campaign('x', it),
    tryCampaign: it => election.tryCampaign('x', it),
    leader: it => election.leader(it),
    observe: it => election.observe(it),
  };
  const others = {
    election: it => client.election('k', it),
    force: it => client.force('k', it),
    client: it => new Client(url, it),
    quorum: it => new Quorum([url, url, url], it),
  };
  const refuses = (call, message) => assert.rejects(async () => call(), { name: 'TypeError', message });
  for (const call of Object.values({ ...calls, ...others })) {
    for (const options of [5000, 'x', true, () => {}]) {
      await refuses(() => call(options), `options is ${inspect(options)}, it must be an object`);
    }
  }
  for (const call of Object.values(calls)) {
    for (const signal of [{}, 5, 'x', '', false, new EventTarget(), new AbortController()]) {
      await refuses(() => call({ signal }), `signal is ${inspect(signal)}, it must be an AbortSignal`);
    }
  }
  for (const [call, message] of [
    [() => client.lock('k', { renew: 'no' }), "renew is 'no', it must be true or false"],
    [() => client.lock('k', { onRisk: 5 }), 'onRisk is 5, it must be a function'],
    [() => client.lockAll('abc'), "keys is 'abc', it must be an array"],
    [() => client.tryLockAll(new Set('a')), "keys is Set(1) { 'a' }, it must be an array"],
    [() => client.lockAll(new Array(1)), 'key is undefined, it must be a string or a Uint8Array'],
    [() => client.info(Symbol('k')), 'key is Symbol(k), it must be a string or a Uint8Array'],
    [() => new Client(url, { name: 5 }), 'name is 5, it must be a string'],
    [() => new Client(url, { log: 5 }), 'log is 5, it must be a function'],
    [() => new Client(url, { listener: 5 }), 'listener is 5, it must be a function'],
    [() => new Quorum([url, url, url], { anyGrace: 'no' }), "anyGrace is 'no', it must be true or false"],
  ]) await refuses(call, message);
});

test('options that are null are none', async t => {
  const { url } = await start(t);
  const client = new Client(url, null);
  await client.connect(null);
  await client.using('k', null, guard => guard);
  const guard = await client.read('k', null);
  assert.ok(await guard.upgrade(null));
  for (const options of [5, true]) {
    await assert.rejects(guard.release(options), { name: 'TypeError', message: `options is ${inspect(options)}, it must be an object` });
    await assert.rejects(guard.upgrade(options), { name: 'TypeError', message: `options is ${inspect(options)}, it must be an object` });
  }
  await assert.rejects(guard.upgrade({ signal: 5 }), { name: 'TypeError', message: 'signal is 5, it must be an AbortSignal' });
  assert.ok(guard.isValid);
  await guard.release('SIGTERM');
  assert.ok(!guard.isValid);
  assert.equal(await client.force('k', null), 0);
  const left = await client.lock('k');
  await Promise.resolve(5).then(client.close.bind(client));
  assert.ok(left.signal.aborted);
  const { mode } = await connect(t, url).info('k');
  assert.equal(mode, 'free');
});

test('a call that is refused does not keep the process alive', async t => {
  const { url } = await start(t);
  const source = `
    const { Client } = require('${fileURLToPath(new URL('../rlock.cjs', import.meta.url))}');
    const client = new Client('${url}');
    (async () => {
      await client.lock('k', { signal: {} }).catch(error => console.log(error.name));
      await (await client.lock('k')).release();
    })();`;
  const { stdout } = await promisify(execFile)(process.execPath, ['-e', source], { timeout: 10_000 });
  assert.equal(stdout, 'TypeError\n');
});

test('times are numbers of milliseconds in their range', async t => {
  const { url } = await start(t);
  const client = connect(t, url);
  const guard = await client.lock('k', { wait: Infinity, maxHold: Infinity });
  const calls = {
    wait: value => client.lock('l', { wait: value }),
    lease: value => client.lock('l', { lease: value }),
    maxHold: value => client.lock('l', { maxHold: value }),
    bound: value => client.lock('l', { bound: value }),
    least: value => guard.releaseAfter(value),
    'lease of extend': value => guard.extend(value),
    'wait of upgrade': value => guard.upgrade({ wait: value }),
    timeout: value => client.close({ timeout: value }),
    responseTimeout: value => new Client(url, { responseTimeout: value }),
  };
  const limit = 'it must be a number of milliseconds from 0 to 2592000000';
  for (const [name, call] of Object.entries(calls)) {
    const values = [-1, NaN, -Infinity, 2592000001, '5', true, 5n];
    if (!/wait|maxHold/.test(name)) values.push(Infinity);
    if (/lease|least/.test(name)) values.push(null);
    for (const value of values) {
      const message = `${name.split(' ')[0]} is ${inspect(value)}, ${limit}`;
      await assert.rejects(async () => call(value), { name: 'RangeError', message });
    }
  }
  await guard.extend(60_000);
  await guard.releaseAfter(0);
});

describe('a loss', () => {
  const cases = [
    ['by an operator', (port, key) => ask(port, 'RLOCK.FORCE', key)],
    ['by DEL', (port, key) => ask(port, 'DEL', key)],
    ['by FLUSHALL', port => ask(port, 'FLUSHALL')],
  ];
  for (const [how, end] of cases) {
    test(`${how} is reported at once, and by the end of the block`, async t => {
      const { url, servers: [{ port }] } = await start(t);
      const client = connect(t, url);
      const told = [];
      await assert.rejects(client.using('k', async (signal, guard) => {
        const begun = performance.now();
        signal.addEventListener('abort', () => told.push(performance.now() - begun));
        await end(port, 'k');
        await eventually('the loss is known', () => signal.aborted);
        assert.throws(() => guard.check(), code('Lost'));
        assert.ok(code('Lost')(signal.reason));
      }), code('Lost'));
      assert.ok(told[0] < 1000, `${told}`);
    });
  }

  test('after the release nothing counts any more', async t => {
    const { url } = await start(t);
    const guard = await connect(t, url).lock('k');
    await guard.release();
    assert.ok(!guard.isValid && !guard.signal.aborted);
    assert.throws(() => guard.check(), code('Lost'));
  });

  test('of a guard that nobody has any more leaves nothing behind', async t => {
    const { url, servers: [{ port }] } = await start(t);
    const client = connect(t, url);
    const lease = 700;
    const lose = async key => {
      const guard = await client.lockAll([key, `${key}:rest`], { lease, renew: false });
      await ask(port, 'DEL', key);
      await eventually('it is lost', () => guard.signal.aborted);
      return guard;
    };
    const begun = performance.now();
    const [kept, dropped] = [await lose('kept'), new WeakRef(await lose('dropped'))];
    await collected(dropped);
    const releases = async () => Number(/rlock\.mrelease:calls=(\d+)/.exec(await ask(port, 'INFO', 'commandstats'))?.[1] ?? 0);
    assert.ok(!await isFree(port, 'dropped:rest') || performance.now() - begun > lease, 'its lease ends before');
    await eventually('the engine lets it go', async () => await releases() === 1);
    assert.throws(() => kept.check(), code('Lost'));
    await assert.rejects(kept.extend(1000), code('Lost'));
    await assert.rejects(kept.release(), code('Lost'));
    await eventually('the engine lets this one go, too', async () => await releases() === 2);
  });

  test('an error of the work is reported, not the loss', async t => {
    const { url, servers: [{ port }] } = await start(t);
    const client = connect(t, url);
    const work = client.using(['k', 'l'], { lease: 5000 }, async () => {
      await ask(port, 'DEL', 'k');
      throw new Error('of the work');
    });
    await assert.rejects(work, /of the work/);
    assert.ok(await isFree(port, 'l'));
  });
});

test('a process ends with its work, even with holds and connections', async t => {
  const { url } = await start(t);
  const source = `
    const { Client } = require('${fileURLToPath(new URL('../rlock.cjs', import.meta.url))}');
    const client = new Client('${url}');
    client.lock('k', { bound: 0 }).then(guard => console.log(guard.isValid));`;
  const { stdout } = await promisify(execFile)(process.execPath, ['-e', source], { timeout: 10_000 });
  assert.equal(stdout, 'true\n');
  await eventually('the hold is gone', async () => (await connect(t, url).info('k')).mode === 'free');
});

test('worker threads have their own clients', async t => {
  const { url } = await start(t);
  const source = `
    const { Client } = require('${fileURLToPath(new URL('../rlock.cjs', import.meta.url))}');
    const { parentPort } = require('node:worker_threads');
    const client = new Client('${url}');
    (async () => {
      for (let i = 0; i < 50; i++) await client.using('k', () => parentPort.postMessage('in'));
      await client.close();
    })();`;
  const workers = Array.from({ length: 3 }, () => new Worker(source, { eval: true }));
  const counts = await Promise.all(workers.map(worker => new Promise((resolve, reject) => {
    let count = 0;
    worker.on('message', () => { count += 1; });
    worker.on('error', reject);
    worker.on('exit', () => resolve(count));
  })));
  assert.deepEqual(counts, [50, 50, 50]);
});

test('import and require load the same package, and it is typed', async () => {
  const require = createRequire(import.meta.url);
  assert.equal(require('../rlock.cjs').Client, Client);
  const here = fileURLToPath(new URL('..', import.meta.url));
  const tsc = require.resolve('typescript/bin/tsc');
  const use = fileURLToPath(new URL('use.ts', import.meta.url));
  const checks = ['--noEmit', '--strict', '--target', 'esnext', '--lib', 'esnext,dom', '--module', 'nodenext', '--types', 'node', use];
  await promisify(execFile)(process.execPath, [tsc, ...checks], { cwd: here });
});

test('events are encoded and actions are decoded as recorded', async () => {
  const require = createRequire(import.meta.url);
  const [{ NONE, forms }, { action, event: events }] = [require('../engine.cjs'), require('../format.cjs')];
  const names = Object.fromEntries(Object.entries(action).map(([name, kind]) => [kind, name]));
  const camel = name => name.replace(/ (.)/g, (_, letter) => letter.toUpperCase());
  const encoded = fields => {
    const values = fields.map(([name, , value]) => [camel(name), value ?? NONE]);
    const { kind, ...it } = Object.fromEntries(values);
    const write = Object.values(events)[kind - 1];
    return forms.write(write, ...('call' in it && write !== events.abandon ? [it.call, it] : [it])).toString('hex');
  };
  const record = JSON.parse(await readFile(process.env.RLOCK_RUN
    ?? new URL('../../../crates/rlock-embed/tests/host/run.json', import.meta.url)));
  for (const { fields, event, output, actions, deadline } of record.steps) {
    assert.equal(encoded(fields), event);
    const read = forms.read(Buffer.from(output, 'hex'));
    assert.equal(read.actions.length, actions.length);
    assert.equal(read.deadline, deadline === null ? 2n ** 64n - 1n : BigInt(deadline));
    for (const [index, shown] of actions.entries()) {
      const it = read.actions[index];
      const name = names[it.kind];
      if (name === 'leader') {
        const leader = it.leader && [Number(it.leader.fence), it.leader.value.toString(), it.leader.owner];
        assert.deepEqual([it.call, leader, it.missed], [shown.call, shown.leader?.slice(0, 3) ?? null, shown.missed]);
        continue;
      }
      const number = it.connection ?? it.call ?? it.guard ?? it.text;
      assert.equal(number, name === 'note' ? shown.text : shown[name], name);
      if (name === 'granted') assert.deepEqual(it.fences.map(([key]) => key.toString()), shown.fences.map(([key]) => key));
      if (name === 'failed') assert.equal(it.code, shown.code);
      if (name === 'occurred') {
        const { kind, guard, ...rest } = it;
        assert.deepEqual({ ...rest, occurred: guard, keys: it.keys.map(String) }, shown);
      }
      if (name === 'write') assert.equal(it.bytes.toString(), shown.bytes);
    }
  }
});

test('the examples of the documents run as they are', async t => {
  // Members that forget nothing, so they need no grace.
  const durable = ['--set', 'appendonly yes', '--set', 'appendfsync always'];
  const started = await Promise.all([1, 2, 3].map(() => start(t, 'one', ...durable)));
  const docs = process.env.RLOCK_DOCS ?? fileURLToPath(new URL('../../../docs', import.meta.url));
  const files = [fileURLToPath(new URL('../README.md', import.meta.url)), `${docs}/../README.md`, `${docs}/migration.md`];
  const text = (await Promise.all(files.map(file => readFile(file, 'utf8')))).join('');
  const addressed = text.replace(/redis:\/\/127.0.0.1:63(79|8[01])/g, (_, port) => started[['79', '80', '81'].indexOf(port)].url);
  const examples = [...addressed.matchAll(/```js\n([^]*?)```/g)].map(([, example]) => example);
  assert.equal(examples.length, 7);
  const here = fileURLToPath(new URL('..', import.meta.url));
  for (const example of examples) {
    const type = example.startsWith('import') ? 'module' : 'commonjs';
    // A package can import itself by its name.
    const { stdout } = await promisify(execFile)(process.execPath, [`--input-type=${type}`, '-e', example], { cwd: here, timeout: 10_000 });
    if (/using/.test(example)) assert.match(stdout, /^held/);
  }
});
