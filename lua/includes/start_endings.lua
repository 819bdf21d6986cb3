-- What the tasks that end in one call share.
--@include integer
local function start_endings(now)
  return {now = now, now_text = integer(math.floor(now / 1000)), counts = {}, replies = {}, events = {}, inline_bytes = 0,
    turns = {}}
end
