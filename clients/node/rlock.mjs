// The same for `import`.
import rlock from './rlock.cjs';

export const { Client, Guard, RlockError } = rlock;
