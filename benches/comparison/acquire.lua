-- Takes the lock KEYS[1] for the owner ARGV[2] and the lease ARGV[1] in ms.
-- Nil if it has it now, else the lease that somebody else has left.
local lock, lease, owner = KEYS[1], ARGV[1], ARGV[2]
if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, owner) == 0 then
  return redis.call('PTTL', lock)
end
redis.call('HINCRBY', lock, owner, 1)
redis.call('PEXPIRE', lock, lease)
return nil
