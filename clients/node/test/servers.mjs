// Servers of `rlock-testserver`, and a network that fails on demand.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Client } from '../rlock.mjs';

const program = process.env.RLOCK_TESTSERVER
  ?? fileURLToPath(new URL('../../../target/debug/rlock-testserver', import.meta.url));

/** Starts servers, which end with the test. */
export async function start(test, ...args) {
  const child = spawn(program, args.length ? args : ['one'], { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  test.after(async () => {
    child.stdin.end();
    await ended;
  });
  const { value } = await createInterface(child.stdout)[Symbol.asyncIterator]().next();
  return JSON.parse(value);
}

/** Starts an empty server with the module at the port of one that was killed. It ends with the test. */
export function startAgain(test, port, ...moduleArguments) {
  const module = process.env.RLOCK_MODULE ?? fileURLToPath(new URL('../../../target/release/librlock.so', import.meta.url));
  const settings = ['--port', `${port}`, '--save', '', '--loadmodule', module, ...moduleArguments];
  const child = spawn(process.env.RLOCK_SERVER ?? 'redis-server', settings, { stdio: 'ignore' });
  test.after(() => child.kill('SIGKILL'));
}

/** A client, which is closed with the test. */
export function connect(test, url, options) {
  const client = new Client(url, options);
  test.after(() => client.close({ timeout: 500 }));
  return client;
}

/** The reply to a command in plain RESP2, on a separate connection. */
export async function ask(port, ...words) {
  const socket = net.connect(port, '127.0.0.1').setEncoding('utf8');
  socket.end(`*${words.length}\r\n${words.map(it => `$${Buffer.byteLength(it)}\r\n${it}\r\n`).join('')}`);
  let reply = '';
  for await (const part of socket) reply += part;
  return reply;
}

export async function eventually(what, condition, ms = 10_000) {
  const until = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > until) throw new Error(`not within ${ms} ms: ${what}`);
    await pause(5);
  }
}

/** Waits until garbage is collected and this is part of it. */
export async function collected(reference) {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  await eventually('it is collected', () => {
    collect();
    return reference.deref() === undefined;
  });
}

export const queued = async (port, key) => {
  const [, count] = /queued\r\n:(\d+)/.exec(await ask(port, 'RLOCK.INFO', key));
  return Number(count);
};

export const isFree = async (port, key) => (await ask(port, 'EXISTS', key)) === ':0\r\n';

/** The connections of clients of this library. */
export const connections = async port =>
  (await ask(port, 'CLIENT', 'LIST')).split('\n').filter(it => it.includes('lib-name=rlock-node') || / sub=[1-9]/.test(it)).length;

/** A proxy in front of a server: `delay` delays replies, `mute` loses them, `cut` ends connections. */
export async function network(test, port) {
  const state = { delay: 0, mute: false, pairs: new Set(), made: 0 };
  const server = net.createServer(near => {
    const far = net.connect(port, '127.0.0.1');
    const pair = [near, far];
    state.pairs.add(pair);
    state.made += 1;
    near.on('data', bytes => far.write(bytes));
    far.on('data', bytes => {
      if (state.mute) return;
      if (state.delay) setTimeout(() => near.write(bytes), state.delay);
      else near.write(bytes);
    });
    for (const [one, other] of [pair, [far, near]]) {
      one.on('error', () => {});
      one.on('close', () => {
        state.pairs.delete(pair);
        other.destroy();
      });
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  state.cut = () => { for (const pair of state.pairs) pair.forEach(it => it.destroy()); };
  test.after(() => {
    state.cut();
    server.close();
  });
  state.url = `redis://127.0.0.1:${server.address().port}`;
  return state;
}
