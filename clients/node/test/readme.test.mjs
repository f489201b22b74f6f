/** The examples of README run as they stand, but for the port. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { after, before, it } from 'node:test';
import { promisify } from 'node:util';
import { Server, until } from './world.mjs';

const top = new URL('..', import.meta.url).pathname;
const examples = [...readFileSync(`${top}/README.md`, 'utf8').matchAll(/^```js\n(.*?)^```/gms)].map(match => match[1]);
let server;
before(async () => (server = await Server.start()));
after(() => server.end());

for (const [at, example] of examples.entries()) {
  it(`example ${at + 1} of README waits for the holder, takes its lock and leaves nothing`, async () => {
    await server.ask('RLOCK.ACQUIRE', 'invoice:7', 'another', '60000');
    const code = example.replaceAll('6379', String(server.port));
    const running = promisify(execFile)(process.execPath, ['--input-type=module', '-e', code], { cwd: top, timeout: 30_000 });
    await until(async () => (await server.queued('invoice:7')) === 1, 'the example waits');
    await server.ask('RLOCK.RELEASE', 'invoice:7', 'another');
    assert.match((await running).stdout, /held under fence/);
    assert.equal(await server.ask('DBSIZE'), 0);
    assert.equal(await server.count('rlock_waiters'), 0);
  });
}

it('README has its examples', () => assert.equal(examples.length, 4));
