// Applications of NestJS on a server of `rlock-testserver`. This file is also the program of an application, which runs a job
// each second and prints the time and the fence of each run.

import { Controller, Injectable, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Cron, ScheduleModule } from '@nestjs/schedule';
import assert from 'node:assert/strict';
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Client } from 'rlock-client';
import { currentGuard, Locked, RlockModule } from 'rlock-nestjs';

const { RLOCK_APP, RLOCK_TESTSERVER, RLOCK_NESTJS_README, SHIFT = '0', WORK = '2', LEASE = '30000', LEAST = '500' } = process.env;

@Injectable()
class Jobs {
  @Cron('* * * * * *')
  async tick() {
    await pause(Number(SHIFT)); // A late clock.
    this.run().catch(error => console.log(`failed ${error.name}`));
  }

  @Locked('lock:job', { skip: true, atLeast: Number(LEAST), lease: Number(LEASE) })
  async run() {
    console.log(`run ${Date.now()} ${currentGuard()!.fence}`);
    await pause(Number(WORK));
  }

  // The decorators in the other order, for @Cron to be found below @Locked.
  @Locked('lock:other', { skip: true, atLeast: Number(LEAST) })
  @Cron('* * * * * *')
  async other() {
    console.log(`other ${currentGuard()!.fence}`);
  }
}

@Controller()
class Service {
  end!: () => void;
  ended = new Promise<void>(it => { this.end = it; });
  calls = 0;

  @Locked((id: number) => `invoice:${id}`)
  async pay(id: number, how: string) {
    this.calls += 1;
    return `${this.constructor.name} ${id} ${how} ${currentGuard()!.key}`;
  }

  @Locked('fails')
  async fails() { throw new Error('by itself'); }

  @Locked('long')
  async long() { await this.ended; }

  @Locked('long', { wait: 20 })
  async waits() { return 'waited'; }

  @Locked('long', { skip: true })
  async skips() { return 'not skipped'; }

  @Locked('long', { skip: true, wait: 20 })
  async skipsLater() { return 'not skipped'; }

  @Locked('outer')
  async outer() {
    const before = currentGuard()!.key;
    return [before, await this.inner(), currentGuard()!.key];
  }

  @Locked('inner')
  async inner() { return currentGuard()!.key; }

  @Locked('lost')
  async lost(port: number) {
    const { signal } = currentGuard()!;
    const aborts = once(signal, 'abort');
    await ask(port, 'RLOCK.FORCE', 'lost');
    await aborts;
  }
}

const modules = (url: string, ...types: any[]) => {
  @Module({ imports: [ScheduleModule.forRoot(), RlockModule.forRoot({ url })], providers: types })
  class App {}
  return App;
};

async function start(t: TestContext) {
  const child = spawn(RLOCK_TESTSERVER!, ['one'], { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  t.after(async () => {
    child.stdin.end();
    await ended;
  });
  const { value } = await createInterface(child.stdout)[Symbol.asyncIterator]().next();
  const { url, servers } = JSON.parse(value);
  return { url: url as string, port: servers[0].port as number };
}

/** The reply to a command in plain RESP2, on a separate connection. */
async function ask(port: number, ...words: string[]) {
  const socket = net.connect(port, '127.0.0.1').setEncoding('utf8');
  socket.end(`*${words.length}\r\n${words.map(it => `$${Buffer.byteLength(it)}\r\n${it}\r\n`).join('')}`);
  let reply = '';
  for await (const part of socket) reply += part;
  return reply;
}

async function eventually(what: string, condition: () => unknown) {
  for (const until = Date.now() + 60_000; !(await condition()); await pause(5)) {
    if (Date.now() > until) throw new Error(`not within a minute: ${what}`);
  }
}

class Running {
  runs: { at: number; fence: bigint }[] = [];
  lines: string[] = [];
  constructor(readonly child: ChildProcess) {
    createInterface(child.stdout!).on('line', line => {
      const [word, at, fence] = line.split(' ');
      if (word === 'run') this.runs.push({ at: Number(at), fence: BigInt(fence) });
      else this.lines.push(line);
    });
  }
  since(at: number) { return this.runs.filter(it => it.at >= at); }
  kill() {
    this.child.kill('SIGKILL');
    return Date.now();
  }
}

function application(t: TestContext, url: string, env: Record<string, string>) {
  const child = spawn(process.execPath, [process.argv[1]], {
    env: { ...process.env, NODE_TEST_CONTEXT: '', NODE_NO_WARNINGS: '1', RLOCK_APP: url, ...env }, stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(async () => {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  });
  return new Running(child);
}

/** Each second from the first run to the last one has one run. */
function oncePerTick(...applications: Running[]) {
  const seconds = applications.flatMap(it => it.runs).map(it => Math.floor(it.at / 1000)).sort();
  assert.deepEqual(seconds, Array.from(seconds, (_, n) => seconds[0] + n));
  return seconds.length;
}

function tests() {
  test('a tick runs in one of two applications, and in the other one once the first is killed', async t => {
    const { url, port } = await start(t);
    const [a, b] = ['0', '300'].map(SHIFT => application(t, url, { SHIFT }));
    await eventually('runs', () => a.runs.length + b.runs.length >= 5);
    await eventually('the least time is left, and no lease', async () => Number((await ask(port, 'PTTL', 'lock:job')).slice(1)) <= 500);
    const killed = a.kill();
    await eventually('runs of the other one', () => b.since(killed).length >= 4);
    t.diagnostic(`${oncePerTick(a, b)} ticks with one run each`);
    await eventually('the other order', () => b.lines.some(it => /^other \d{16}$/.test(it)));
  });

  test('an application is killed during a job', async t => {
    const { url } = await start(t);
    const applications = ['0', '300'].map(SHIFT => application(t, url, { SHIFT, LEASE: '1500', WORK: '3600000' }));
    await eventually('a run', () => applications.some(it => it.runs.length));
    await pause(3000); // Two leases.
    const [dies, other] = applications.sort((a, b) => b.runs.length - a.runs.length);
    assert.deepEqual([dies.runs.length, other.runs.length], [1, 0]);
    const killed = dies.kill();
    await eventually('the other one runs', () => other.runs.length);
    t.diagnostic(`killed, and the next run ${other.runs[0].at - killed} ms later`);
    assert(other.runs[0].fence > dies.runs[0].fence && other.runs[0].at - killed < 1500 + 2000);
  });

  test('methods of instances', async t => {
    const { url, port } = await start(t);
    const app = await NestFactory.createApplicationContext(modules(url, Service), { logger: ['error'] });
    const service = app.get(Service);
    assert.equal(await service.pay(7, 'cash'), 'Service 7 cash invoice:7');
    assert.equal(service.pay.name, 'pay');
    assert.deepEqual(await service.outer(), ['outer', 'inner', 'outer']);
    assert.equal(currentGuard(), undefined);
    await assert.rejects(service.fails(), /^Error: by itself$/);
    await assert.rejects(service.lost(port), { name: 'LostError' });
    for (const key of ['invoice:7', 'fails', 'outer', 'inner', 'lost']) assert.equal(await ask(port, 'EXISTS', key), ':0\r\n', key);
    const other = new Client(url);
    const guard = await other.lock('invoice:8');
    const waits = service.pay(8, 'later');
    await eventually('it waits', async () => (await ask(port, 'RLOCK.INFO', 'invoice:8')).includes('queued\r\n:1\r\n'));
    assert.equal(service.calls, 1);
    await guard.release();
    assert.match(await waits, /later/);
    // The application closes: what waits rejects, and what runs keeps its lock.
    const long = service.long();
    await eventually('it runs', async () => (await ask(port, 'EXISTS', 'long')) === ':1\r\n');
    await assert.rejects(service.waits(), { name: 'NotAcquiredError' });
    assert.equal(await service.skips(), undefined);
    assert.equal(await service.skipsLater(), undefined);
    const alsoWaits = service.long();
    await eventually('it waits', async () => (await ask(port, 'RLOCK.INFO', 'long')).includes('queued\r\n:1\r\n'));
    let isClosed = false;
    const closes = app.close().then(() => { isClosed = true; });
    await assert.rejects(alsoWaits, /the application shuts down/);
    await assert.rejects(service.pay(9, 'late'), /the application shuts down/);
    assert.equal(await service.skips(), undefined);
    await pause(50);
    assert(!isClosed && (await ask(port, 'EXISTS', 'long')) === ':1\r\n');
    service.end();
    await long;
    await closes;
    assert.equal(await ask(port, 'EXISTS', 'long'), ':0\r\n');
    await other.close();
  });

  test('two applications in one process have a client each, and options may come later', async t => {
    const servers = await Promise.all([start(t), start(t)]);
    @Module({
      imports: [RlockModule.forRootAsync({ useFactory: async () => ({ url: servers[1].url, name: 'later' }) })], providers: [Service],
    })
    class Later {}
    const logger = { logger: ['error'] as const } as any;
    const apps = [
      await NestFactory.createApplicationContext(modules(servers[0].url, Service), logger),
      await NestFactory.createApplicationContext(Later, logger),
    ];
    const running = apps.map(it => it.get(Service).long());
    for (const { port } of servers) await eventually('it runs', async () => (await ask(port, 'EXISTS', 'long')) === ':1\r\n');
    assert.match(await ask(servers[1].port, 'RLOCK.INFO', 'long'), /later:/);
    for (const app of apps) app.get(Service).end();
    await Promise.all([...running, ...apps.map(it => it.close())]);
  });

  test('mistakes are named', async () => {
    for (const atLeast of [-1, Number.NaN, Infinity, 31 * 24 * 3600 * 1000, '5' as any]) {
      assert.throws(() => Locked('k', { atLeast }), { name: 'RangeError', message: /^atLeast is .*, it must be a number from 0 to/ });
    }
    assert.throws(() => Locked('k')(Service, 'x', {} as any), /@Locked is for methods of instances, and x is none/);
    await assert.rejects(async () => new Service().pay(1, ''), /Service.pay needs an instance that Nest has created/);
    @Module({ providers: [Service] })
    class Without {}
    await assert.rejects(NestFactory.createApplicationContext(Without, { logger: false, abortOnError: false }), /RlockCalls/);
  });

  test('the program of the README runs as it is', async t => {
    const { url } = await start(t);
    const [, program] = /```ts\n([^]*?)```/.exec(readFileSync(RLOCK_NESTJS_README!, 'utf8'))!;
    const directory = mkdtempSync('readme-'); // Here, where the packages are.
    writeFileSync(`${directory}/main.ts`, program.replace('redis://127.0.0.1:6379', url));
    writeFileSync(`${directory}/tsconfig.json`, '{ "extends": "../tsconfig.json" }');
    await promisify(execFile)('npx', ['tsc', '--project', directory]);
    const child = spawn(process.execPath, [`${directory}/main.js`], { stdio: ['ignore', 'pipe', 'inherit'] });
    t.after(() => child.kill('SIGKILL'));
    let output = '';
    child.stdout.on('data', bytes => { output += bytes; });
    await eventually('it runs', () => /^runs under fence \d{16}$/m.test(output) && /^paid 7$/m.test(output));
    child.kill('SIGTERM');
    assert.deepEqual(await once(child, 'exit'), [null, 'SIGTERM']); // Nest ends with the signal.
  });
}

if (RLOCK_APP) NestFactory.createApplicationContext(modules(RLOCK_APP, Jobs), { logger: ['error'] });
else describe('NestJS', { concurrency: 8 }, tests); // At once, because they wait most of the time.
