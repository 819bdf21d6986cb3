-- Failures and deaths that count no more, because the task was revived since; 0 and 0 of one that never was.
local function forgiven_failures(revived)
  local fails, deaths = string.match(revived or '', '^%d+ (%d+) (%d+) ')
  return tonumber(fails or 0), tonumber(deaths or 0)
end
