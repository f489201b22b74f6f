/** Whatever breaks, no hold and no place is left behind. */
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import { NotAcquired } from '../rlock.mjs';
import { suite } from './suite.mjs';
import { pairs, SOON, until } from './world.mjs';

const isPending = async promise => (await Promise.race([promise, pause(0, 'pending')])) === 'pending';

suite((test, world) => {
  for (const how of ['close', 'hang']) {
    for (const wait of [0, 5_000]) {
      test(`a grant whose reply is lost is asked for again, and counts once (${how}, wait ${wait})`, async () => {
        const proxy = await world.proxy(), key = world.key();
        const locks = await world.locks(proxy.port, { limit: 300, askEvery: 300 });
        proxy.lose = { word: 'RLOCK.ACQUIRE', how };
        await locks.using(key, { wait }, async held => {
          assert.equal(proxy.lost, 1);
          const holders = (await world.server.info(key)).holders.map(pairs);
          assert.deepEqual(holders.map(each => [each.fence, each.count]), [[held.fence, 1]]);
        });
        assert(await world.server.isFree(key));
      });
    }

    test(`a waiter whose connection breaks keeps its place (${how})`, async () => {
      const proxy = await world.proxy(), key = world.key();
      const held = await (await world.locks()).lock(key);
      const locks = await world.locks(proxy.port, { limit: 300, askEvery: 1_000 });
      if (how === 'hang') proxy.lose = { word: 'WAIT', how };
      const waiter = locks.lock(key);
      await until(async () => (await world.server.queued(key)) === 1, 'the waiter stands in the queue');
      const behind = (await world.locks()).lock(key);
      await until(async () => (await world.server.queued(key)) === 2, 'another stands behind it');
      const before = await world.server.count();
      if (how === 'close') proxy.cut();
      await until(async () => (await world.server.count()) > before, 'the waiter has asked again');
      await held.release();
      const first = await waiter;
      assert(await isPending(behind));
      await first.release();
      await (await behind).release();
    });

    test(`a release whose reply is lost is repeated (${how})`, async () => {
      const proxy = await world.proxy(), key = world.key();
      const held = await (await world.locks(proxy.port, { limit: 300 })).lock(key);
      proxy.lose = { word: 'RLOCK.RELEASE', how };
      assert.equal(await held.release(), false); // Released, but by which of the two requests is not known.
      assert.equal(proxy.lost, 1);
      assert(await world.server.isFree(key));
    });
  }

  test('a limit of the client that is shorter than the wait does not end it', async () => {
    const locks = await world.locks(undefined, { limit: 200 }), key = world.key();
    const held = await locks.lock(key);
    const waiter = locks.lock(key, { wait: SOON });
    await until(async () => (await world.server.queued(key)) === 1, 'the waiter stands in the queue');
    const before = await world.server.count();
    await pause(800);
    assert.equal(await world.server.count(), before);
    await held.release();
    await (await waiter).release();
  });

  test('waiters do not block the holder', async () => {
    const locks = await world.locks(), key = world.key();
    const held = await locks.lock(key, { lease: 600 });
    let done = 0;
    const waiters = Array.from({ length: 5 }, async () => {
      await (await locks.lock(key)).release();
      done += 1;
    });
    await until(async () => (await world.server.queued(key)) === 5, 'five wait');
    await pause(1_000);
    held.check();
    assert.equal(done, 0);
    assert.equal(await held.release(), true);
    await Promise.all(waiters);
  });

  test('connections that the server closed are replaced', async () => {
    const server = await world.ownServer(), key = world.key();
    const locks = await world.locks(server.port);
    const held = await locks.lock(key);
    await server.ask('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    assert.equal(await held.release(), true);
    await (await locks.lock(key)).release();
  });

  test('a signal that aborts ends the wait, and no place is left when it is told', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, {}, async () => {
      await assert.rejects(locks.lock(key, { signal: AbortSignal.timeout(200) }), { name: 'TimeoutError' });
      assert.equal(await world.server.queued(key), 0);
      await assert.rejects(locks.lock(key, { signal: AbortSignal.abort() }), { name: 'AbortError' });
    });
    assert(await world.server.isFree(key));
  });

  test('aborted in the moment of the grant, the lock is free', async () => {
    const locks = await world.locks(), key = world.key();
    let granted = 0;
    for (let turn = 0; turn < 150; turn++) {
      const held = await locks.lock(key);
      const aborter = new AbortController();
      const waiter = locks.lock(key, { signal: aborter.signal });
      await until(async () => (await world.server.queued(key)) === 1, 'it waits');
      const release = held.release();
      const end = performance.now() + Math.random();
      while (performance.now() < end) await new Promise(setImmediate);
      aborter.abort();
      await waiter.then(later => ((granted += 1), later.release()), () => {});
      await release;
      assert(await world.server.isFree(key));
    }
    assert(granted > 0 && granted < 150, `both endings are met: ${granted}`);
  });

  test('aborted at any step, nothing is left', async () => {
    const locks = await world.locks(), key = world.key();
    for (let turn = 0; turn < 150; turn++) {
      const aborter = new AbortController();
      const asked = locks.lock(key, { wait: turn % 2 ? 0 : 1_000, signal: aborter.signal });
      const end = performance.now() + Math.random();
      while (performance.now() < end) await new Promise(setImmediate);
      aborter.abort();
      await asked.then(held => held.release(), () => {});
      assert(await world.server.isFree(key));
    }
  });

  test('a server that is gone after a lost reply is an error of a try, at once', async () => {
    const proxy = await world.proxy(), locks = await world.locks(proxy.port, { limit: 300 });
    proxy.lose = { word: 'RLOCK.ACQUIRE', how: 'hang' };
    const asked = assert.rejects(locks.lock(world.key(), { wait: 0 }), error => !(error instanceof NotAcquired));
    await until(() => proxy.lost, 'the request meets its fate');
    proxy.refuse();
    await asked;
  });

  test('a wait through an outage is over in time', async () => {
    const server = await world.ownServer(), key = world.key();
    const locks = await world.locks(server.port);
    await locks.lock(key, { lease: 60_000 });
    const waiter = assert.rejects(locks.lock(key, { wait: 1_500 }), error => error instanceof NotAcquired && error.cause instanceof Error);
    await until(async () => (await server.queued(key)) === 1, 'the waiter stands in the queue');
    await server.kill();
    await waiter;
  });
});
