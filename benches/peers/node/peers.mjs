// The lock libraries. `open` connects once for the whole program; it resolves to a function that makes a caller: one
// user of a lock, who acquires and releases one lock at a time.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import Redis from 'ioredis'
import Redlock from 'redlock'
import { Client } from '#rlock'

/** Its package.json: not every library lets itself be asked for it. */
const versionOf = (file) => JSON.parse(readFileSync(file, 'utf8')).version.replace(/^v/, '')
const library = (name) => versionOf(join(import.meta.dirname, 'node_modules', name, 'package.json'))

async function connect(url) {
  const client = new Redis(url, { lazyConnect: true })
  client.on('error', (error) => process.stderr.write(`contestant: ioredis: ${error.message}\n`))
  await client.connect()
  return client
}

const redlock = {
  name: 'node-redlock',
  title: 'redlock',
  version: library('redlock'),
  waits: 'polls, every 100 to 300 ms at random',
  settings:
    'one ioredis client; retryCount -1 (10), so that nobody gives up; the beta, as its documentation describes only that; duration from the workload',
  async open(url, leaseMs) {
    const locks = new Redlock([await connect(url)], { retryCount: -1 })
    return () => {
      let held
      return {
        acquire: async (key) => (held = await locks.acquire([key], leaseMs)),
        release: () => held.release(),
      }
    }
  },
}

const rlock = {
  name: 'rlock-node',
  title: 'rlock, clients/node',
  version: versionOf(join(import.meta.dirname, 'rlock', 'package.json')),
  waits: 'server queue',
  settings: 'one Client for all callers; lease from the workload (30 s), renewed',
  async open(url, leaseMs) {
    const client = new Client(url)
    await client.connect()
    return () => {
      let held
      return {
        acquire: async (key) => (held = await client.lock(key, { lease: leaseMs })),
        release: () => held.release(),
      }
    }
  },
}

const setNx = {
  name: 'set-nx-px',
  title: 'SET NX PX, DEL',
  version: library('ioredis'),
  waits: 'does not wait',
  settings: 'a yardstick: the two plain commands, all callers on one connection of ioredis; a lock that is held is an error',
  async open(url, leaseMs) {
    const client = await connect(url)
    return () => {
      let held
      return {
        async acquire(key) {
          if ((await client.set(key, 'holder', 'PX', leaseMs, 'NX')) === null) throw new Error(`${key} is held`)
          held = key
        },
        release: () => client.del(held),
      }
    }
  },
}

export const peers = [redlock, rlock, setNx]

export function list() {
  return peers.map(({ name, title, version, waits, settings }) => ({
    name,
    title,
    version,
    language: 'Node',
    waits,
    settings,
  }))
}

export function find(name) {
  const found = peers.find((peer) => peer.name === name)
  if (found) return found
  throw new RangeError(`--peer is ${name}: it must be one of ${peers.map((peer) => peer.name).join(', ')}`)
}
