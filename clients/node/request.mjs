/** The arguments of `lock`, checked, and the commands that they make. */
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';

const LONGEST = 86_400_000; // ms, of a lease and of a wait
const KEEP = 10_000; // ms, how long a place in the queue outlives a connection that breaks

export class Request {
  constructor(key, prefix, { lease = 30_000, wait, shared = false, limit, permits, owner }) {
    const keys = Array.isArray(key) ? key : [key];
    const isKey = each => typeof each === 'string' || Buffer.isBuffer(each);
    check('key', key, keys.length >= 1 && keys.length <= 1024, '1 to 1024 keys');
    check('key', key, keys.every(isKey), 'a string or Buffer, or an array of them', TypeError);
    check('key', key, new Set(keys.map(String)).size === keys.length, 'each key once');
    check('lease', lease, isCount(lease) && lease >= 1 && lease <= LONGEST, `a whole number, 1 to ${LONGEST} ms`);
    const isWait = wait === undefined || (isCount(wait) && wait <= LONGEST);
    check('wait', wait, isWait, `undefined or a whole number, 0 to ${LONGEST} ms`);
    if (limit !== undefined) check('limit', limit, isCount(limit) && limit >= 1 && limit <= 1e6, 'a whole number, 1 to 1000000');
    if (permits !== undefined) {
      check('permits', permits, limit !== undefined, 'given together with limit');
      check('permits', permits, isCount(permits) && permits >= 1 && permits <= limit, `a whole number, 1 to limit, ${limit}`);
    }
    check('shared', shared, keys.length === 1 || !(shared || limit), 'left out with several keys, as limit is');
    this.named = Object.freeze([...keys]);
    this.keys = keys.map(each => (typeof each === 'string' ? prefix + each : Buffer.concat([Buffer.from(prefix), each])));
    this.lease = lease;
    this.wait = wait ?? Infinity;
    this.owner = checkOwner(owner);
    this.options = [...(shared || limit ? ['SHARED'] : []), ...(limit ? ['LIMIT', limit, 'PERMITS', permits ?? 1] : [])];
  }

  /** `wait` 0: one try. */
  acquire(wait) {
    const tail = [...this.options, ...(wait ? ['WAIT', wait, 'KEEP', KEEP] : [])];
    return this.#isSeveral
      ? ['RLOCK.MACQUIRE', this.owner, this.lease, this.keys.length, ...this.keys, ...tail]
      : ['RLOCK.ACQUIRE', this.keys[0], this.owner, this.lease, ...tail];
  }

  renew() {
    return this.#isSeveral
      ? ['RLOCK.MRENEW', this.owner, this.lease, this.keys.length, ...this.keys]
      : ['RLOCK.RENEW', this.keys[0], this.owner, this.lease];
  }

  release() {
    return this.#isSeveral
      ? ['RLOCK.MRELEASE', this.owner, this.keys.length, ...this.keys]
      : ['RLOCK.RELEASE', this.keys[0], this.owner];
  }

  cancel() {
    return ['RLOCK.CANCEL', this.keys[0], this.owner];
  }

  isRenewed(reply, fence) {
    return reply === (this.#isSeveral ? this.keys.length : fence);
  }

  isReleased(reply) {
    return reply === (this.#isSeveral ? this.keys.length : 0);
  }

  claims() {
    return this.keys.map(key => `${this.owner} ${key}`);
  }

  get #isSeveral() {
    return this.keys.length > 1;
  }
}

/** Throws a RangeError, or another `kind`, that names the argument, its value and the limit. */
export function check(name, value, isGood, must, kind = RangeError) {
  if (isGood) return;
  const shown = typeof value === 'string' ? `'${value}'` : Array.isArray(value) ? `[${value}]` : String(value);
  throw new kind(`${name} is ${shown}, must be ${must}`);
}

function isCount(value) {
  return Number.isSafeInteger(value) && value >= 0;
}

/** The owner; where it is left out a new one, by which an operator finds the host and the process. */
function checkOwner(owner) {
  if (owner === undefined) {
    const host = hostname().replace(/[^A-Za-z0-9._-]/g, '').slice(0, 64);
    return `${host}:${process.pid}:${randomBytes(8).toString('hex')}`;
  }
  check('owner', owner, typeof owner === 'string', 'a string', TypeError);
  const length = Buffer.byteLength(owner);
  check('owner', owner, length >= 1 && length <= 256, '1 to 256 bytes');
  check('owner', owner, !/[\x00-\x20\x7f]/.test(owner), 'without bytes 0x00 to 0x20 and 0x7f');
  check('owner', owner, !owner.startsWith('rlock:'), "a name that does not begin with 'rlock:'");
  return owner;
}
