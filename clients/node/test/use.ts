// A program of a user, for the compiler to check.
import { Client, Quorum, RlockError, type Guard, type Leader, type Leadership, type Occurrence } from '../rlock.js';

export async function use(): Promise<number> {
  const listener = ({ kind, duration, keys }: Occurrence) => console.log(kind === 'wait', duration / 1000, keys.length);
  await using client = new Client('redis://127.0.0.1', { name: 'use', listener, log: (level, text) => console.log(level, text) });
  const guard: Guard | null = await client.tryLock('k', { lease: 1000, bound: 500, onRisk: left => console.log(left / 1000) });
  if (guard === null) return 0;
  const election = client.election('orders', { bound: 0 });
  const leadership: Leadership = await election.campaign(Buffer.from('10.0.0.1:80'), { wait: 100 });
  await leadership.proclaim('10.0.0.1:81');
  const leader: Leader | null = await election.leader();
  for await (const { leader: proclaimed, missed } of election.observe({ signal: leadership.signal })) {
    if (missed || proclaimed?.value.toString() === '10.0.0.1:81') break;
  }
  await leadership.resign();
  if (leader && leader.fence !== leadership.fence) return leader.timeLeft;
  await using quorum = new Quorum(['redis://a', 'redis://b', 'redis://c'], { name: 'use', anyGrace: true, listener });
  const byMajority: Guard = await quorum.lock('k', { lease: 1000, activity: quorum.activity() });
  await quorum.using('k', (signal: AbortSignal, held) => held.check());
  // @ts-expect-error Only a client makes an activity.
  await quorum.lock('k', { activity: { number: 1 } });
  // @ts-expect-error A quorum takes one key.
  await quorum.using(['a', 'b'], () => {});
  // @ts-expect-error What both have in common is no class of its own.
  type Hidden = import('../rlock.js').Locks;
  const fence: bigint = byMajority.fence;
  await guard.release({ permits: 1 });
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
