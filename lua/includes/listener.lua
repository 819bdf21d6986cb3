-- Who hears of the end of a task: the maker of its id, the last group of digits, if that says that it listens
-- (`TaskIds` in orchestrator/core/ids.py); else nil.
local function listener(id)
  -- 56 is '8', and a to f come behind it.
  if (string.byte(id, 25) or 0) >= 56 then return string.sub(id, 25) end
  return nil
end
