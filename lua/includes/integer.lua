-- A whole number as text: Lua's own conversion keeps 14 digits only.
local function integer(number)
  return string.format('%.0f', number)
end
