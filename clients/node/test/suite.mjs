import { after, afterEach, before, describe, it } from 'node:test';
import { LIBRARIES, Server, World } from './world.mjs';

/** Runs each test for both libraries: `define(test, world)`, with `test(name, work)`. A file has one server. */
export function suite(define) {
  let server;
  const made = [];
  before(async () => {
    server = await Server.start();
    for (const world of made) world.server = server;
  });
  after(() => server.end());
  for (const library of Object.keys(LIBRARIES)) {
    describe(library, () => {
      const world = new World(library);
      made.push(world);
      afterEach(() => world.end());
      define(it, world);
    });
  }
}
