/** Real servers with the module, both libraries, and a proxy that loses replies. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { Locks } from '../rlock.mjs';

export const SOON = 10_000; // ms: the bound of every wait for something that takes milliseconds
const here = new URL('../../../target/release/librlock.so', import.meta.url).pathname;
const MODULE = process.env.RLOCK_MODULE ?? here;
if (!existsSync(MODULE)) throw new Error(`RLOCK_MODULE: there is no module ${MODULE}: make build`);

export async function until(condition, what, bound = SOON) {
  const end = performance.now() + bound;
  for (let found; ; await pause(5)) {
    if ((found = await condition())) return found;
    assert(performance.now() < end, `not within ${bound} ms: ${what}`);
  }
}

const freePort = () =>
  new Promise(resolve => {
    const probe = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });

export class Server {
  static async start(options = [], { module = MODULE, password } = {}) {
    const server = new Server();
    server.directory = mkdtempSync(`${tmpdir()}/rlock-`);
    server.port = await freePort();
    server.password = password;
    server.options = [...options, ...(password ? ['--requirepass', password] : []), ...(module ? ['--loadmodule', module] : [])];
    await server.start();
    return server;
  }

  async start() {
    const log = openSync(`${this.directory}/log`, 'a');
    const line = ['--port', this.port, '--bind', '127.0.0.1', '--dir', this.directory, '--save', '', '--maxmemory-policy', 'noeviction'];
    this.process = spawn(process.env.RLOCK_SERVER ?? 'redis-server', [...line, ...this.options], { stdio: ['ignore', log, log] });
    this.ended = new Promise(resolve => this.process.once('exit', resolve));
    await until(() => {
      const text = readFileSync(`${this.directory}/log`, 'utf8');
      assert.equal(this.process.exitCode, null, text);
      return text.split('Ready to accept connections').length > (this.starts ?? 0) + 1;
    }, 'a server');
    this.starts = (this.starts ?? 0) + 1;
    this.client = new Redis({ port: this.port, password: this.password, replyMapping: 'legacy', protocol: 2, retryStrategy: null });
    this.client.on('error', () => {});
  }

  ask(...words) {
    return this.client.call(...words);
  }

  async info(key) {
    const flat = await this.ask('RLOCK.INFO', key);
    return pairs(flat);
  }

  async queued(key) {
    return (await this.info(key)).queued;
  }

  async isFree(key) {
    return !(await this.ask('EXISTS', key)) && !(await this.queued(key));
  }

  async count(name = 'rlock_acquires', section = 'rlock') {
    return Number(new RegExp(`${name}:(\\d+)`).exec(await this.ask('INFO', section))[1]);
  }

  async kill() {
    this.client.disconnect();
    this.process.kill('SIGKILL');
    await this.ended;
  }

  async end() {
    await this.kill();
    rmSync(this.directory, { recursive: true });
  }
}

export function pairs(flat) {
  return Object.fromEntries(Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at], flat[2 * at + 1]]));
}

/** How each library's client is made: host, port and what else the test names. */
export const LIBRARIES = {
  ioredis: {
    async connect({ port, limit, username, password, database = 0, name, prefix, enableReadyCheck = true }) {
      const client = new Redis({ enableReadyCheck, port, username, password, db: database, connectionName: name, keyPrefix: prefix, commandTimeout: limit, lazyConnect: true });
      client.on('error', () => {});
      await client.connect();
      return client;
    },
    close: client => client.disconnect(),
  },
  'node-redis': {
    async connect({ port, limit, username, password, database = 0, name, prefix }) {
      const client = createClient({ socket: { port }, username, password, database, name, keyPrefix: prefix, commandOptions: limit ? { timeout: limit } : undefined });
      client.on('error', () => {});
      await client.connect();
      return client;
    },
    close: client => client.isOpen && client.destroy(),
  },
};

/** What a test needs, for one library; `end` closes all that it has made. */
export class World {
  #closing = [];
  #keys = 0;

  constructor(library, server) {
    this.library = LIBRARIES[library];
    this.server = server;
  }

  key() {
    return `key:${process.pid}:${performance.now()}:${this.#keys++}`;
  }

  async locks(port = this.server.port, { askEvery, ...options } = {}) {
    const client = await this.library.connect({ port, ...options });
    this.#closing.push(() => this.library.close(client));
    return Object.assign(new Locks(client, { askEvery }), { client });
  }

  async ownServer(options, more) {
    const server = await Server.start(options, more);
    this.#closing.push(() => server.end());
    return server;
  }

  async proxy() {
    const proxy = await Proxy.start(this.server.port);
    this.#closing.push(() => proxy.end());
    return proxy;
  }

  async end() {
    for (const each of this.#closing.splice(0)) await each();
  }
}

/**
 * Passes bytes to a server. From the next request with `lose.word` on, the reply on that connection is lost:
 * `close` ends the connection instead, `hang` stays silent.
 */
export class Proxy {
  lost = 0;
  #sockets = new Set();

  static async start(target) {
    const proxy = new Proxy();
    proxy.listener = net.createServer(near => proxy.#pass(near, net.connect(target, '127.0.0.1')));
    await new Promise(resolve => proxy.listener.listen(0, '127.0.0.1', resolve));
    proxy.port = proxy.listener.address().port;
    return proxy;
  }

  #pass(near, far) {
    let fate;
    for (const each of [near, far]) {
      this.#sockets.add(each);
      each.on('error', () => {}).on('close', () => (near.destroy(), far.destroy()));
    }
    near.on('data', data => {
      if (this.lose && data.includes(this.lose.word)) {
        fate = this.lose.how;
        this.lose = undefined;
        this.lost += 1;
      }
      far.write(data);
    });
    far.on('data', data => {
      if (fate === 'close') near.destroy();
      else if (!fate) near.write(data);
    });
  }

  refuse() {
    this.listener.close();
  }

  cut() {
    for (const each of this.#sockets) each.destroy();
  }

  end() {
    this.cut();
    return new Promise(resolve => this.listener.close(() => resolve()));
  }
}
