// The same for `import`.
import rlock from './rlock.cjs';

export const { Activity, Changes, Client, Election, Guard, Leadership, Quorum, RlockError } = rlock;
