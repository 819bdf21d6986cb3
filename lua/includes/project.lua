-- Write a path of the optional JSON document beside the workspace; before everything else, as the module may refuse.
local function project(scope, path, text)
  local json_key, place = scope .. ':ws:json', '$["' .. path .. '"]'
  redis.call('JSON.SET', json_key, '$', '{}', 'NX')
  if text then
    redis.call('JSON.SET', json_key, place, text)
  else
    redis.call('JSON.DEL', json_key, place)
  end
end
