/** Holders keep their lock by renewing it, and are told when it is lost. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { Lost, NotAcquired } from '../rlock.mjs';
import { suite } from './suite.mjs';
import { LIBRARIES, pairs, SOON, until } from './world.mjs';

const HOLDER = `
  import { LIBRARIES } from '${new URL('./world.mjs', import.meta.url)}';
  import { Locks } from '${new URL('../rlock.mjs', import.meta.url)}';
  const [library, port, key] = process.argv.slice(1);
  const client = await LIBRARIES[library].connect({ port: Number(port) });
  const held = await new Locks(client).lock(key, { lease: 500 });
  process.stdin.once('data', async () => {
    console.log(held.lost ? 'lost' : 'fine');
    await held.release();
    LIBRARIES[library].close(client);
    process.stdin.destroy();
  });
  console.log('held');
`;

suite((test, world) => {
  test('a lock is renewed past its lease', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, { lease: 500 }, async held => {
      for (let turn = 0; turn < 6; turn++) {
        await pause(200);
        held.check();
      }
      assert.equal((await world.server.info(key)).fence, held.fence);
    });
    assert(await world.server.isFree(key));
  });

  test('a lock that was taken away is told as lost, once', async () => {
    const locks = await world.locks(), key = world.key(), told = [];
    const held = await locks.lock(key, { lease: 600, onLoss: each => told.push(each) });
    assert.equal(held.lost, false);
    await world.server.ask('RLOCK.FORCE', key);
    await until(() => held.lost, 'the holder is told', 5_000);
    assert(held.signal.aborted && held.signal.reason instanceof Lost);
    assert.throws(() => held.check(), error => error instanceof Lost && error.message.includes(held.fence));
    await world.server.ask('RLOCK.ACQUIRE', key, 'another', '60000');
    assert.equal(await held.release(), false);
    assert.deepEqual(told, [held]);
    assert.equal(await world.server.ask('RLOCK.RELEASE', key, 'another'), 0);
  });

  test('a fence that is not ours is a loss', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, { lease: 600 }, async held => {
      await world.server.ask('RLOCK.FORCE', key);
      await world.server.ask('RLOCK.ACQUIRE', key, held.owner, '60000');
      await until(() => held.signal.aborted, 'the holder is told', 5_000);
    });
  });

  test('one of several keys lost is a loss', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using([key, `${key}2`], { lease: 600 }, async held => {
      await world.server.ask('RLOCK.FORCE', `${key}2`);
      await until(() => held.signal.aborted, 'the holder is told', 5_000);
    });
    assert(await world.server.isFree(key));
  });

  test('a holder that stood still knows at once that it is lost, and ends by itself', async () => {
    const key = world.key();
    const library = Object.keys(LIBRARIES).find(each => LIBRARIES[each] === world.library);
    const holder = spawn(process.execPath, ['--input-type=module', '-e', HOLDER, library, world.server.port, key], { stdio: ['pipe', 'pipe', 'inherit'] });
    const ended = once(holder, 'exit');
    const lines = createInterface(holder.stdout)[Symbol.asyncIterator]();
    assert.equal((await lines.next()).value, 'held');
    holder.kill('SIGSTOP');
    await until(() => world.server.ask('RLOCK.ACQUIRE', key, 'another', '60000'), 'the lease ends');
    holder.stdin.write('\n');
    holder.kill('SIGCONT');
    assert.equal((await lines.next()).value, 'lost');
    assert.deepEqual(await ended, [0, null]);
    assert.equal(await world.server.ask('RLOCK.RELEASE', key, 'another'), 0);
  });

  for (const how of ['close', 'hang']) {
    test(`a renewal whose reply is lost is sent again (${how})`, async () => {
      const proxy = await world.proxy(), key = world.key();
      const held = await (await world.locks(proxy.port, { limit: 300 })).lock(key, { lease: 1_500 });
      proxy.lose = { word: 'RLOCK.RENEW', how };
      await until(() => proxy.lost, 'a renewal meets its fate');
      await pause(1_500);
      held.check();
      assert.equal((await world.server.info(key)).fence, held.fence);
      await held.release();
    });
  }

  test('a holder is told before another can hold, even if its renewal hangs', async () => {
    const server = await world.ownServer(), key = world.key();
    const held = await (await world.locks(server.port)).lock(key, { lease: 600 });
    server.process.kill('SIGSTOP');
    await until(() => held.signal.aborted, 'the holder is told', 3_000); // The limit for a reply is 5 s.
    server.process.kill('SIGCONT');
    await held.release();
    await until(() => server.isFree(key), 'the lock is free');
  });

  test('a killed server is told as a loss', async () => {
    const server = await world.ownServer(), key = world.key();
    const held = await (await world.locks(server.port)).lock(key, { lease: 500 });
    await server.kill();
    await until(() => held.signal.aborted, 'the holder is told', 3_000);
    await assert.rejects(held.release());
  });

  test('a waiter outlives a restart, and the holder of before is told', async () => {
    const server = await world.ownServer(), key = world.key();
    const locks = await world.locks(server.port);
    const held = await locks.lock(key, { lease: 1_000 });
    const waiter = locks.lock(key, { wait: 30_000 });
    await until(async () => (await server.queued(key)) === 1, 'the waiter stands in the queue');
    await server.kill();
    await server.start();
    const later = await waiter;
    await until(() => held.lost, 'the holder is told', 5_000);
    assert(later.fence > held.fence);
    assert.equal(await held.release(), false);
    later.check();
    await later.release();
  });

  test('a waiter that is withdrawn by an operator ends', async () => {
    const locks = await world.locks(), key = world.key();
    await locks.using(key, {}, async () => {
      const waiter = assert.rejects(locks.lock(key), error => error instanceof NotAcquired && /withdrawn/.test(error));
      await until(async () => (await world.server.queued(key)) === 1, 'the waiter stands in the queue', SOON);
      const { owner } = pairs((await world.server.info(key)).waiters[0]);
      assert.equal(await world.server.ask('RLOCK.CANCEL', key, owner), 1);
      await waiter;
    });
  });
});
