/** What a user sees while nothing breaks. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createClientPool, createCluster, createSentinel } from 'redis';
import { Held, Locks, NotAcquired, Refused } from '../rlock.mjs';
import { suite } from './suite.mjs';
import { pairs, SOON, until } from './world.mjs';

const isPending = async promise => (await Promise.race([promise, pause(0, 'pending')])) === 'pending';

suite((test, world) => {
  test('one holder at a time, in the order of asking', async () => {
    const locks = await world.locks(), key = world.key(), waiting = [];
    let held = await locks.lock(key);
    for (let place = 1; place <= 4; place++) {
      waiting.push(locks.lock(key, { wait: SOON }));
      await until(async () => (await world.server.queued(key)) === place, 'the waiter stands in the queue');
    }
    for (const [at, each] of waiting.entries()) {
      for (const later of waiting.slice(at)) assert(await isPending(later));
      const { fence } = held;
      assert.equal(await held.release(), true);
      held = await each;
      assert(held.fence > fence);
    }
    await held.release();
    assert(await world.server.isFree(key));
  });

  test('counting under the lock loses no count', async () => {
    const locks = await world.locks(), key = world.key();
    let total = 0;
    const count = async () => {
      for (let turn = 0; turn < 20; turn++) {
        await locks.using(key, { wait: 60_000 }, async () => {
          const seen = total;
          await pause(0);
          total = seen + 1;
        });
      }
    };
    await Promise.all([count(), count(), count(), count()]);
    assert.equal(total, 80);
  });

  test('a waiter asks once, and is handed the lock', async () => {
    const locks = await world.locks(), key = world.key();
    const held = await locks.lock(key);
    const waiter = locks.lock(key, { wait: SOON });
    await until(async () => (await world.server.queued(key)) === 1, 'the waiter stands in the queue');
    const before = await world.server.count();
    await pause(500);
    assert.equal(await world.server.count(), before);
    await held.release();
    await (await waiter).release();
    assert.equal(await world.server.count(), before);
  });

  test('an uncontended lock costs two commands', async () => {
    const locks = await world.locks(), key = world.key();
    await (await locks.lock(key)).release();
    const before = await world.server.count('total_commands_processed', 'stats');
    await (await locks.lock(key)).release();
    assert.equal(await world.server.count('total_commands_processed', 'stats'), before + 3); // and INFO
  });

  test('using releases, also after an error, and returns what the work returns', async () => {
    const locks = await world.locks(), key = world.key();
    const seen = await locks.using(key, {}, async held => {
      const info = await world.server.info(key);
      assert.equal(info.fence, held.fence);
      return info.mode;
    });
    assert.equal(seen, 'exclusive');
    await assert.rejects(locks.using(key, {}, () => assert.fail('of the work')), /of the work/);
    assert(await world.server.isFree(key));
  });

  test('await using releases where the runtime has it', async () => {
    const locks = await world.locks(), key = world.key();
    const held = await locks.lock(key);
    await held[Symbol.asyncDispose]();
    assert(await world.server.isFree(key));
    assert.equal(await held.release(), false);
    assert.equal(held.lost, false);
  });

  test('a try that fails says so and leaves nothing', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, {}, async () => {
      await assert.rejects(locks.lock(key, { wait: 0 }), NotAcquired);
      assert.equal(await world.server.queued(key), 0);
    });
  });

  test('a wait that is over leaves no place', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, {}, async () => {
      const began = performance.now();
      await assert.rejects(locks.lock(key, { wait: 300 }), error => error instanceof NotAcquired && /within 300 ms/.test(error));
      assert(performance.now() - began >= 299);
      assert.equal(await world.server.queued(key), 0);
    });
    assert(await world.server.isFree(key));
  });

  test('a wait of many pieces keeps its place', async () => {
    const locks = await world.locks(undefined, { askEvery: 100 }), key = world.key();
    const held = await locks.lock(key);
    const first = locks.lock(key, { wait: SOON });
    await until(async () => (await world.server.queued(key)) === 1, 'the first stands in the queue');
    const second = locks.lock(key);
    await until(async () => (await world.server.queued(key)) === 2, 'the second stands in the queue');
    const before = await world.server.count();
    await until(async () => (await world.server.count()) >= before + 4, 'both have asked again');
    const waited = (await world.server.info(key)).waiters.map(each => pairs(each)['waited-ms']);
    assert.deepEqual(waited, waited.toSorted((a, b) => b - a));
    await held.release();
    await Promise.all([first, second].map(async each => (await each).release())); // Between two askings the second may be served.
  });

  test('a lease counts from the grant, also after a long wait', async () => {
    const locks = await world.locks(), key = world.key();
    const held = await locks.lock(key);
    const waiter = locks.lock(key, { lease: 600, wait: SOON });
    await until(async () => (await world.server.queued(key)) === 1, 'the waiter stands in the queue');
    await pause(700); // Longer than its lease.
    await held.release();
    const later = await waiter;
    assert.equal(later.lost, false);
    await later.release();
  });

  test('readers share, and a writer waits for all', async () => {
    const locks = await world.locks(), key = world.key();
    const readers = await Promise.all([1, 2, 3].map(() => locks.lock(key, { shared: true })));
    const writer = locks.lock(key, { wait: SOON });
    await until(async () => (await world.server.queued(key)) === 1, 'the writer waits');
    for (const each of readers) {
      assert(await isPending(writer));
      assert.equal(await each.release(), true);
    }
    await (await writer).release();
  });

  test('permits are counted', async () => {
    const locks = await world.locks(), key = world.key();
    const three = await locks.lock(key, { limit: 4, permits: 3 });
    await assert.rejects(locks.lock(key, { limit: 4, permits: 2, wait: 0 }), NotAcquired);
    const one = await locks.lock(key, { limit: 4, wait: 0 });
    await one.release();
    await three.release();
    assert(await world.server.isFree(key));
  });

  test('several keys are all or none', async () => {
    const locks = await world.locks(), name = world.key();
    const keys = ['a', 'b', 'c'].map(each => `{${name}}:${each}`);
    await locks.using(keys[1], {}, async () => {
      await assert.rejects(locks.lock(keys, { wait: 100 }), NotAcquired);
      for (const each of keys) assert.equal(await world.server.queued(each), 0);
    });
    await locks.using(keys, { lease: 600 }, async held => {
      await pause(1_000);
      for (const each of keys) assert.equal((await world.server.info(each)).fence, held.fence);
      held.check();
      await assert.rejects(locks.lock(keys[2], { wait: 0 }), NotAcquired);
    });
    for (const each of keys) assert(await world.server.isFree(each));
  });

  test('the owner names host and process, or is the user\'s', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, {}, async held => {
      assert.equal(await world.server.ask('HEXISTS', key, held.owner), 1);
      assert.equal(held.owner.split(':')[1], String(process.pid));
    });
    await locks.using(key, { owner: 'worker-1' }, async held => {
      assert.equal(held.owner, 'worker-1');
      await assert.rejects(locks.lock(key, { owner: 'worker-1' }), /it holds or awaits/);
    });
    await (await locks.lock(key, { owner: 'worker-1' })).release();
  });

  test('the options of the user\'s client carry over', async () => {
    const server = await world.ownServer([], { password: 'secret' });
    const locks = await world.locks(server.port, { password: 'secret', database: 3, name: 'billing', prefix: 'app:' });
    const key = world.key();
    await server.ask('SELECT', '3');
    await locks.using([key, Buffer.from('binary\xff', 'latin1')], {}, async held => {
      assert.equal(await server.ask('EXISTS', `app:${key}`), 1);
      assert.equal(await server.ask('EXISTS', Buffer.from('app:binary\xff', 'latin1')), 1);
      assert.equal(held.key, key);
      assert.equal((await server.ask('CLIENT', 'LIST')).split('name=billing').length - 1, 2);
    });
  });

  test('the connections end with the client', async () => {
    const server = await world.ownServer();
    const locks = await world.locks(server.port), key = world.key();
    const held = await locks.lock(key);
    const waiter = locks.lock(key);
    await until(async () => (await server.queued(key)) === 1, 'a waiter has a connection of its own');
    await held.release();
    const last = await waiter;
    await world.library.close(locks.client);
    assert.equal(await last.release(), true);
    await until(async () => (await server.ask('CLIENT', 'LIST')).trim().split('\n').length === 1, 'all are closed');
  });

  const BAD = [
    [{ lease: 0 }, 'lease is 0, must be a whole number, 1 to 86400000 ms'],
    [{ lease: 86_400_001 }, 'lease is 86400001, must be'],
    [{ lease: 1.5 }, 'lease is 1.5, must be'],
    [{ lease: '30' }, "lease is '30', must be"],
    [{ wait: -1 }, 'wait is -1, must be undefined or a whole number, 0 to 86400000 ms'],
    [{ wait: Infinity }, 'wait is Infinity, must be'],
    [{ limit: 0 }, 'limit is 0, must be a whole number, 1 to 1000000'],
    [{ limit: 1_000_001 }, 'limit is 1000001, must be'],
    [{ permits: 1 }, 'permits is 1, must be given together with limit'],
    [{ limit: 2, permits: 3 }, 'permits is 3, must be a whole number, 1 to limit, 2'],
    [{ key: [] }, 'key is [], must be 1 to 1024 keys'],
    [{ key: 7 }, 'key is 7, must be a string or Buffer'],
    [{ key: ['a', 'a'] }, 'key is [a,a], must be each key once'],
    [{ key: ['a', 'b'], shared: true }, 'shared is true, must be left out with several keys'],
    [{ key: ['a', 'b'], limit: 2 }, 'must be left out with several keys, as limit is'],
    [{ owner: '' }, "owner is '', must be 1 to 256 bytes"],
    [{ owner: 'é'.repeat(129) }, 'must be 1 to 256 bytes'],
    [{ owner: 'a b' }, "owner is 'a b', must be without bytes"],
    [{ owner: 'rlock:1' }, "owner is 'rlock:1', must be a name that does not begin with 'rlock:'"],
    [{ owner: 7 }, 'owner is 7, must be a string'],
  ];

  test('bad arguments are named with value and limit before anything is sent', async () => {
    const locks = await world.locks();
    const before = await world.server.count('total_commands_processed', 'stats');
    for (const [{ key = 'k', ...options }, words] of BAD) {
      await assert.rejects(locks.lock(key, options), error => error.message.includes(words), words);
    }
    assert.equal(await world.server.count('total_commands_processed', 'stats'), before + 1);
  });

  test('the arguments at their limits are good', async () => {
    const locks = await world.locks(), key = world.key();
    for (const options of [{ lease: 86_400_000 }, { wait: 86_400_000 }, { limit: 1e6, permits: 1e6 }, { owner: 'é'.repeat(128) }]) {
      await (await locks.lock(key, options)).release();
    }
    await (await locks.lock(Array.from({ length: 1024 }, (_, at) => `${key}:${at}`))).release();
  });

  test('a client that cannot be served is refused', async () => {
    await assert.rejects(world.locks(undefined, { askEvery: 99 }), /askEvery is 99, must be 100 to 600000 ms/);
    const refused = [
      new Redis.Cluster([{ port: 1 }], { lazyConnect: true }),
      createCluster({ rootNodes: [{ socket: { port: 1 } }] }),
      createSentinel({ name: 'a', sentinelRootNodes: [{ host: '127.0.0.1', port: 1 }] }),
      createClientPool(),
      undefined,
      'redis://127.0.0.1',
    ];
    for (const each of refused) assert.throws(() => new Locks(each), /client must be a client of ioredis/);
  });

  test('the refusals of the server can be told apart', async () => {
    const server = await world.ownServer();
    const locks = await world.locks(server.port), key = world.key();
    const code = async (...what) => {
      const [error] = await Promise.all([(what[2] ?? locks).lock(what[0], what[1]).then(() => assert.fail('granted'), error => error)]);
      assert(error instanceof Refused, String(error));
      return error.code;
    };
    await server.ask('SET', 'text', '1');
    assert.equal(await code('text'), 'WRONGTYPE');

    const a = await locks.lock('a', { owner: 'one' }), b = await locks.lock('b', { owner: 'two' });
    let waiter = locks.lock('b', { owner: 'one' });
    await until(async () => (await server.queued('b')) === 1, 'the first waits for the second');
    assert.equal(await code('a', { owner: 'two' }), 'DEADLOCK');
    await a.release();
    await b.release();
    await (await waiter).release();

    await server.ask('CONFIG', 'SET', 'rlock.max-waiters', '1');
    await locks.using(key, {}, async () => {
      waiter = locks.lock(key);
      await until(async () => (await server.queued(key)) === 1, 'the queue is full');
      assert.equal(await code(key), 'QUEUEFULL');
    });
    await (await waiter).release();

    await server.ask('CONFIG', 'SET', 'rlock.max-lease-ms', '1000');
    assert.equal(await code(key), 'ERR');
    await server.ask('CONFIG', 'SET', 'rlock.max-lease-ms', '86400000');
    await server.ask('CONFIG', 'SET', 'maxmemory', '1');
    assert.equal(await code(key), 'OOM');
    await server.ask('CONFIG', 'SET', 'maxmemory', '0');
    await server.ask('REPLICAOF', '127.0.0.1', '1');
    assert.equal(await code(key), 'READONLY');
    await server.ask('REPLICAOF', 'NO', 'ONE');
    await server.ask('ACL', 'SETUSER', 'mere', 'on', '>p', '~other', '+@all');
    assert.equal(await code(key, {}, await world.locks(server.port, { username: 'mere', password: 'p' })), 'NOPERM');
  });

  test('a server without the module is named as such', async () => {
    const locks = await world.locks((await world.ownServer([], { module: null })).port);
    await assert.rejects(locks.lock('k'), error => error.code === 'NOMODULE' && /has not loaded the rlock module/.test(error));
  });

  test('a server that cannot be reached is an error at once', async () => {
    const server = await world.ownServer();
    const locks = await world.locks(server.port);
    await server.kill();
    await assert.rejects(locks.lock('k'), error => !(error instanceof Held) && !(error instanceof NotAcquired));
  });

  test('the rights of an application are enough', async () => {
    const pages = process.env.RLOCK_DOCS ?? new URL('../../../docs', import.meta.url).pathname;
    const page = readFileSync(`${pages}/operating.md`, 'utf8');
    const [, rule] = /`user (application on >a-password [^`]*)`/.exec(page);
    const server = await world.ownServer();
    await server.ask('ACL', 'SETUSER', ...rule.split(' '));
    const user = { username: 'application', password: 'a-password', enableReadyCheck: false };
    const locks = await world.locks(server.port, user);
    const held = await locks.lock('lock:a', { lease: 1500 });
    const waiting = locks.lock('lock:a', { wait: SOON });
    await until(async () => (await server.queued('lock:a')) === 1, 'the waiter stands in the queue');
    await assert.rejects(locks.lock('lock:a', { wait: 2000 }), NotAcquired);
    held.check(); // It was renewed.
    await held.release();
    await (await waiting).release();
    await (await locks.lock('lock:a', { shared: true })).release();
    await (await locks.lock('lock:u', { limit: 4, permits: 3 })).release();
    await (await locks.lock(['lock:a', 'lock:b'])).release();
    assert.deepEqual(await server.ask('ACL', 'LOG'), []);
    await assert.rejects(locks.lock('other'), Refused);
  });
});
