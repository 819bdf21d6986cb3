-- Tell those who follow a task that its output stream has grown. A hint: they also look by themselves, so a user who may
-- not publish loses time, never a script in the middle.
local function hint(out_key, entry)
  if redis.acl_check_cmd('SPUBLISH', out_key, entry) then redis.call('SPUBLISH', out_key, entry) end
end
