#!lua flags=allow-oom
-- Notes up to which revision a second storage has a chat.
-- returns: 1 or 0 (the chat has ended, or a later revision is noted)
-- repeat: returns 0
local scope  = KEYS[1]            -- key: root of the session's slot
local source = ARGV[1]            -- str: source of the chat, encoded
local upto   = tonumber(ARGV[2])  -- int: revision
local ahead  = tonumber(ARGV[3])  -- int: by how much the copy counts ahead of the chat; 0: as noted before
--@include time: integer

local meta_key = scope .. ':chat:' .. source .. ':meta'
local meta = redis.call('HMGET', meta_key, 'rev', 'saved')
if meta.rev and ahead > 0 then redis.call('HSET', meta_key, 'ahead', integer(ahead)) end
if not meta.rev or tonumber(meta.saved or 0) >= upto then return 0 end
redis.call('HSET', meta_key, 'saved', integer(upto))
-- The storage has these removals now.
local gone_key = scope .. ':chat:' .. source .. ':gone'
local gone = redis.call('HMGET', gone_key, 'cleared', 'rev')
if math.max(tonumber(gone.cleared or 0), tonumber(gone.rev or 0)) <= upto then redis.call('UNLINK', gone_key) end
return 1
