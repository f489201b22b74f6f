-- Releases the lock KEYS[1] of the owner ARGV[2] once, and tells the channel
-- KEYS[2] when it is free. Nil if the owner does not hold it, 1 if it is free.
local lock, channel, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if redis.call('HEXISTS', lock, owner) == 0 then
  return nil
end
if redis.call('HINCRBY', lock, owner, -1) > 0 then
  redis.call('PEXPIRE', lock, lease)
  return 0
end
redis.call('DEL', lock)
redis.call('PUBLISH', channel, '0')
return 1
