-- Failures and deaths that count no more, because the task was requeued since; 0 and 0 of one that never was.
local function forgiven_failures(requeued)
  local fails, deaths = string.match(requeued or '', '^%d+ (%d+) (%d+) ')
  return tonumber(fails or 0), tonumber(deaths or 0)
end
