-- What cancels in one call share; `flush_cancelling` writes it.
local function start_cancelling()
  return {entries = {}, grants = {}, grouped = {}}
end
