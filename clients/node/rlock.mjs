// The same for `import`.
import rlock from './rlock.cjs';

export const { Changes, Client, Election, Guard, Leadership, Quorum, RlockError } = rlock;
