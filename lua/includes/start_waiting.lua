-- The places where the tasks of one call will wait; `flush_waiting` writes them.
local function start_waiting()
  return {ready = {}, scheduled = {}, expiring = {}, asking = {}, spread = 0}
end
