// What users write, for the compiler to check.
import { Client, RlockError, type Guard } from '../rlock.js';

export async function use(): Promise<number> {
  await using client = new Client('redis://127.0.0.1', { name: 'use', log: (level, text) => console.log(level, text) });
  const guard: Guard | null = await client.tryLock('k', { lease: 1000, bound: 500 });
  if (guard === null) return 0;
  const fence: bigint = guard.fence;
  await guard.release();
  try {
    return await client.using(['a', Buffer.from('b')], { wait: 100 }, (signal: AbortSignal, held) => {
      held.check();
      return signal.aborted ? 0 : Number(fence);
    });
  } catch (error) {
    if (error instanceof RlockError && error.code === 'NotAcquired') return -1;
    throw error;
  }
}
