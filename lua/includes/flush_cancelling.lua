-- Take the tasks out of their inboxes that were cancelled unread in one call; their rate-limit slots return.
--@include remove_entries
--@include return_slots
local function flush_cancelling(pool, cancelling)
  for agent, entries in pairs(cancelling.entries) do remove_entries(pool, agent, entries) end
  for i = 1, #cancelling.grants do
    return_slots(pool, cancelling.grants[i][1], cancelling.grants[i][2], cancelling.grants[i][3])
  end
end
