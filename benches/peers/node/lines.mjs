// What is printed, and what is read: one line each.

import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

/** Wall clock, in microseconds since 1970; `Date` has whole milliseconds only. */
export const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000)

export function print(line) {
  printAll(`${JSON.stringify(line)}\n`)
}

export const event = (name) => print({ event: name })

export const eventAt = (name) => print({ event: name, at: now() })

/** Rows are `[caller, asked, granted, releasing, released]`. */
export function finish(rows, errors) {
  printAll(rows.map((row) => `${JSON.stringify(row)}\n`).join(''))
  print({ event: 'done', errors })
}

/** Writes all before it returns: a pipe may take a part at a time, or nothing for now. */
function printAll(text) {
  let rest = Buffer.from(text)
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest))
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error
    }
  }
}

/** Waits for the driver's word. */
export async function awaitLine() {
  const lines = createInterface({ input: process.stdin })
  for await (const _ of lines) return
  throw new Error('standard input has ended: nobody says when to go on')
}
