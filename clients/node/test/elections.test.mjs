// Leaders and their observers, on real servers.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Changes, Client, Leadership } from '../rlock.mjs';
import { ask, connect, connections, eventually, isFree, network, queued, start } from './servers.mjs';

const next = async changes => {
  const { value: { leader, missed } } = await changes.next();
  return [leader && leader.value.toString(), missed];
};

test('leaders follow one another, and each observer sees each', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const [a, b, other] = [connect(t, url), connect(t, url), connect(t, url)];
  const observers = [a, b, other, other].map(client => client.election('orders').observe());
  for (const it of observers) assert.deepEqual(await next(it), [null, false]);
  const first = await a.election('orders').campaign('a:1');
  assert.ok(first instanceof Leadership && observers[0] instanceof Changes);
  const waits = b.election('orders').campaign(Buffer.from('b:1'));
  assert.equal(await other.election('orders').tryCampaign('c'), null);
  await assert.rejects(other.election('orders').campaign('c', { wait: 20 }), { code: 'NotAcquired' });
  await eventually('it waits', async () => await queued(port, 'orders') === 1);
  await first.proclaim('a:2');
  const { fence, value, owner, timeLeft } = await other.election('orders').leader();
  assert.deepEqual([fence, value.toString(), owner], [first.fence, 'a:2', first.owner]);
  assert.ok(timeLeft > 25_000 && timeLeft <= 30_000);
  await first.resign();
  const second = await waits;
  await second.release();
  for (const it of observers) {
    const seen = [await next(it), await next(it), await next(it), await next(it)];
    assert.deepEqual(seen, [['a:1', false], ['a:2', false], ['b:1', false], [null, false]]);
  }
  assert.ok(second.fence > first.fence);
  assert.equal(await other.election('orders').leader(), null);
  assert.equal(await connections(port), 3);
});

test('an election has the options that it was created with', async t => {
  const { url } = await start(t);
  const client = connect(t, url);
  const options = Object.freeze({ lease: 500, renew: false });
  const leadership = await client.election('k', options).campaign('', { bound: 400 });
  assert.ok(leadership.remaining <= 500);
  await eventually('it is lost', () => leadership.signal.aborted);
  await assert.rejects(leadership.proclaim('x'), { code: 'Lost' });
});

test('an observer starts again after a broken connection and after a restart', async t => {
  const { servers: [{ port }] } = await start(t);
  const net = await network(t, port);
  const [client, leader] = [connect(t, net.url), connect(t, `redis://127.0.0.1:${port}`)];
  const changes = client.election('k').observe();
  assert.deepEqual(await next(changes), [null, false]);
  net.cut();
  assert.deepEqual(await next(changes), [null, true]);
  const leadership = await leader.election('k').campaign(Buffer.from([0xff, 0, 0x20]));
  const { value: { leader: { value, fence } } } = await changes.next();
  assert.deepEqual([[...value], fence], [[0xff, 0, 0x20], leadership.fence]);
  await ask(port, 'RLOCK.FORCE', 'k');
  assert.deepEqual(await next(changes), [null, false]);
  await eventually('the loss is known', () => leadership.signal.aborted);
});

test('an observer that ends leaves nothing', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = connect(t, url);
  const subscribed = async () => Number((await ask(port, 'PUBSUB', 'NUMSUB', 'rlock:value:{k}')).split(':').at(-1));
  for await (const { leader } of client.election('k').observe()) {
    assert.equal(leader, null);
    assert.equal(await subscribed(), 1);
    break;
  }
  await eventually('it has left', async () => await subscribed() === 0);
  const given = new AbortController();
  const changes = client.election('k').observe({ signal: given.signal });
  await changes.next();
  const waits = changes.next();
  given.abort(new Error('enough'));
  await assert.rejects(waits, /enough/);
  assert.deepEqual(await changes.next(), { value: undefined, done: true });
  await eventually('it has left', async () => await subscribed() === 0);
  await assert.rejects(client.election('k').observe({ signal: given.signal }).next(), /enough/);
  const aborted = client.election('k').observe({ signal: AbortSignal.abort(null) });
  assert.equal(await aborted.next().catch(reason => reason), null, 'whatever the reason is');
  const campaign = new AbortController();
  await ask(port, 'RLOCK.ACQUIRE', 'k', 'other', '60000');
  const candidate = client.election('k').campaign('x', { signal: campaign.signal });
  await eventually('it waits', async () => await queued(port, 'k') === 1);
  campaign.abort();
  await assert.rejects(candidate, { name: 'AbortError' });
  await eventually('it has left', async () => await queued(port, 'k') === 0);
});

test('an observer ends with its client', async t => {
  const { url } = await start(t);
  const client = new Client(url);
  const [changes, untaken] = [client.election('k').observe(), client.election('k').observe()];
  await changes.next();
  const waits = changes.next();
  await client.close();
  await assert.rejects(waits, { code: 'Closed' });
  assert.deepEqual(await changes.next(), { value: undefined, done: true });
  assert.deepEqual(await next(untaken), [null, false]);
  await assert.rejects(untaken.next(), { code: 'Closed' });
  await assert.rejects(client.election('k').observe().next(), { code: 'Closed' });
});

test('untaken changes have a limit, and the next change says so', async t => {
  const { url, servers: [{ port }] } = await start(t);
  const client = connect(t, url);
  const changes = client.election('k').observe();
  const leadership = await client.election('k').campaign('0');
  for (let i = 1; i <= 1100; i++) leadership.proclaim(`${i}`);
  await leadership.proclaim('last');
  await eventually('the loss is known', async () => (await client.election('k').leader()).value.toString() === 'last');
  const [first, missed] = await next(changes);
  assert.ok(missed && Number(first) > 50, first);
  let [count, last] = [1, first];
  while (last !== 'last') [last, count] = [(await next(changes))[0], count + 1];
  assert.ok(count <= 1024, `${count}`);
  await leadership.release();
  assert.ok(await isFree(port, 'k'));
});

test('a refusal of the server is an error', async t => {
  const { url, servers: [{ port }] } = await start(t);
  await ask(port, 'ACL', 'SETUSER', 'app', 'on', '>secret', '~*', '&rlock:client:*', '+@all');
  const client = connect(t, url.replace('redis://', 'redis://app:secret@'));
  const changes = client.election('k').observe();
  await assert.rejects(changes.next(), { code: 'Denied', message: /channel/ });
  assert.deepEqual(await changes.next(), { value: undefined, done: true });
  await assert.rejects(client.election('k').campaign('x'.repeat(1025)), { code: 'OutOfRange', message: /1025 bytes.*1024/ });
  await assert.rejects(client.election('k').campaign(7), { name: 'TypeError', message: /value is 7/ });
  const leadership = await client.election('k').campaign('x');
  await assert.rejects(leadership.proclaim('x'.repeat(1025)), { code: 'OutOfRange' });
  assert.ok(leadership.isValid);
  await leadership.release();
});
