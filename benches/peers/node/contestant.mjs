// Runs one lock library of Node under one workload, for `make compare`. Events and acquisitions go to standard
// output, one JSON value a line; everything else goes to standard error.

import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { awaitLine, event, eventAt, finish, now, print } from './lines.mjs'
import { find, list } from './peers.mjs'

/** A loop ends early after this many acquisitions: more would say nothing more. */
const MOST_ACQUISITIONS = 200_000
/** How long callers warm up before a loop or a crowd, in ms: in that time Node compiles what they run. */
const WARM_UP_MS = 500
/** This many warm up for that long; any further ones acquire once, so that their connections are open. */
const WARM_UP_CALLERS = 16
/** How long a caller rests after an error, in ms: one that comes at once must not become a busy loop. */
const AFTER_ERROR_MS = 10

const errors = { count: 0 }

/** Not shorter than that: a timer counts from the beginning of the event loop's turn, so it may end early. */
async function rest(ms) {
  const end = performance.now() + ms
  if (ms >= 1) await sleep(ms)
  while (performance.now() < end) await nextTurn()
}

function failed(error) {
  if (errors.count++ === 0) process.stderr.write(`contestant: the first error: ${error.message}\n`)
}

function parse() {
  const text = (value) => ({ type: 'string', default: value })
  const { values } = parseArgs({
    options: {
      list: { type: 'boolean', default: false },
      peer: text(''),
      url: text(''),
      mode: text('loop'),
      callers: text('1'),
      keys: text('shared'),
      key: text('compare'),
      seconds: text('1'),
      rounds: text('0'),
      'hold-us': text('0'),
      'settle-ms': text('200'),
      'lease-ms': text('30000'),
    },
  })
  for (const [name, least] of [['callers', 1], ['seconds', 0], ['rounds', 0], ['hold-us', 0], ['settle-ms', 0], ['lease-ms', 1]]) {
    const number = Number(values[name])
    if (!(number >= least && number < 1e9)) {
      throw new RangeError(`--${name} is ${values[name]}: it must be a number from ${least} to 999999999`)
    }
    values[name] = number
  }
  if (!(values.mode in modes)) throw new RangeError(`--mode is ${values.mode}: it must be loop, crowd, hold or wait`)
  if (!['own', 'shared'].includes(values.keys)) throw new RangeError(`--keys is ${values.keys}: it must be own or shared`)
  return values
}

/** Acquires, holds and releases; the times if all of it succeeded, else nothing. */
async function once(work, id, caller, key) {
  try {
    const asked = now()
    await caller.acquire(key)
    const granted = now()
    await rest(work['hold-us'] / 1000)
    const releasing = now()
    await caller.release()
    return [[id, asked, granted, releasing, now()]]
  } catch (error) {
    failed(error)
    await rest(AFTER_ERROR_MS)
    return []
  }
}

/** Makes the callers, and lets each of them acquire and release on a key of its own. */
async function warmUp(work, count) {
  const newCaller = await find(work.peer).open(work.url, work['lease-ms'])
  const callers = Array.from({ length: count }, newCaller)
  const long = work.mode === 'loop' || work.mode === 'crowd'
  const end = performance.now() + (long ? WARM_UP_MS : 0)
  await Promise.all(
    callers.map(async (caller, id) => {
      do {
        await caller.acquire(`${work.key}:warm:${id}`)
        await caller.release()
      } while (id < WARM_UP_CALLERS && performance.now() < end)
    }),
  )
  return callers
}

async function loop(work) {
  const callers = await warmUp(work, work.callers)
  event('ready')
  await awaitLine()
  const end = performance.now() + work.seconds * 1000
  let taken = 0
  const turns = async (caller, id) => {
    const key = work.keys === 'own' ? `${work.key}:${id}` : work.key
    const rows = []
    while (performance.now() < end && taken < MOST_ACQUISITIONS && (work.rounds === 0 || rows.length < work.rounds)) {
      rows.push(...(await once(work, id, caller, key)))
      taken++
    }
    return rows
  }
  finish((await Promise.all(callers.map(turns))).flat(), errors.count)
}

/** All others ask for what caller 0 holds, one after the other. */
async function crowd(work) {
  const [first, ...others] = await warmUp(work, work.callers + 1)
  const asked = now()
  await first.acquire(work.key)
  const granted = now()
  // One a millisecond up to a crowd of 1,000; a larger one asks within a second.
  const perMs = Math.max(1, Math.floor(work.callers / 1000))
  const all = []
  for (const [index, caller] of others.entries()) {
    all.push(once(work, index + 1, caller, work.key))
    if ((index + 1) % perMs === 0) await rest(1)
  }
  await rest(work['settle-ms'])
  event('settled')
  await awaitLine()
  const releasing = now()
  await first.release()
  const own = [0, asked, granted, releasing, now()]
  finish([own, ...(await Promise.all(all)).flat()], errors.count)
}

async function hold(work) {
  const [caller] = await warmUp(work, 1)
  await caller.acquire(work.key)
  eventAt('held')
  await awaitLine() // Until it is killed. It must not outlive the driver either.
}

async function wait(work) {
  const [caller] = await warmUp(work, 1)
  eventAt('asked')
  await caller.acquire(work.key)
  eventAt('granted')
  await caller.release()
}

const modes = { loop, crowd, hold, wait }

try {
  const work = parse()
  if (work.list) print(list())
  else await modes[work.mode](work)
  process.exit(0) // Connections that are still open would keep it alive.
} catch (error) {
  process.stderr.write(`contestant: ${error.message}\n`)
  process.exit(1)
}
