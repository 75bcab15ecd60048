-- The counts of one tenant that several gateways share: the rules of quotas.py, each call in one step.
--
-- KEYS  1 window   hash: "r<slice>" requests and "t<slice>" tokens taken in that second
--       2 open     sorted set: id of a running request → milliseconds at which it is given up unless its gateway renews it
--       3 claims   hash: id → "slice day requests tokens nano_dollars" as reserved
--       4 dollars  hash: day of UTC → nano-dollars
--       5 marks    sorted set: ids of what was told after this store had been away → seconds
-- ARGV  1 what to do, then its own arguments
-- A request is known by its id, so that whatever is said twice counts once.

local WINDOW = 60
local DAY = 86400
local clock = redis.call('TIME')
local seconds = tonumber(clock[1])
local now_ms = seconds * 1000 + math.floor(tonumber(clock[2]) / 1000)
local now_day = math.floor(seconds / DAY)

local function keep()
  redis.call('EXPIRE', KEYS[1], 2 * WINDOW + 2)
  redis.call('EXPIRE', KEYS[4], 2 * DAY)
end

local function take(slice, day, requests, tokens, nanos)
  if slice >= seconds - WINDOW then
    if requests ~= 0 then redis.call('HINCRBY', KEYS[1], 'r' .. slice, requests) end
    if tokens ~= 0 then redis.call('HINCRBY', KEYS[1], 't' .. slice, tokens) end
  end
  if nanos ~= 0 and day >= now_day - 1 then redis.call('HINCRBY', KEYS[4], day, string.format('%.0f', nanos)) end
end

local function give_back(kind, slice, amount)
  local held = tonumber(redis.call('HGET', KEYS[1], kind .. slice) or '0')
  local returned = math.min(held, amount)
  if returned > 0 then redis.call('HINCRBY', KEYS[1], kind .. slice, -returned) end
end

-- When no gateway renews anything any more, nothing is left.
local function hold_on(id, lease_ms)
  redis.call('ZADD', KEYS[2], now_ms + lease_ms, id)
  redis.call('PEXPIRE', KEYS[2], 2 * lease_ms)
  redis.call('PEXPIRE', KEYS[3], 2 * lease_ms)
end

local function hold(id, lease_ms, slice, day, requests, tokens, nanos)
  redis.call('HSET', KEYS[3], id, string.format('%d %d %d %d %.0f', slice, day, requests, tokens, nanos))
  hold_on(id, lease_ms)
end

local function expire_leases()
  local dead = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now_ms)
  for _, id in ipairs(dead) do
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
  end
end

-- What is in the window of one kind: its sum, and its slices, oldest first.
local function read_window()
  local found = {r = {total = 0, slices = {}}, t = {total = 0, slices = {}}}
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local kind, slice = string.sub(fields[i], 1, 1), tonumber(string.sub(fields[i], 2))
    local amount = tonumber(fields[i + 1])
    if slice < seconds - WINDOW or slice > seconds + WINDOW then
      redis.call('HDEL', KEYS[1], fields[i])
    elseif amount ~= 0 then
      found[kind].total = found[kind].total + amount
      table.insert(found[kind].slices, {slice, amount})
    end
  end
  return found
end

local function oldest_first(a, b) return a[1] < b[1] end

local function wait_ms(window, amount, limit)
  local missing = window.total + amount - limit
  table.sort(window.slices, oldest_first)
  for _, entry in ipairs(window.slices) do
    missing = missing - entry[2]
    if missing <= 0 then return (entry[1] + WINDOW + 1) * 1000 - now_ms end
  end
  return (WINDOW + 1) * 1000
end

local function reset_ms(window)
  local newest = 0
  for _, entry in ipairs(window.slices) do newest = math.max(newest, entry[1]) end
  return newest == 0 and 0 or (newest + WINDOW + 1) * 1000 - now_ms
end

-- Whether the id is new here.
local function mark(id)
  if redis.call('ZADD', KEYS[5], 'NX', seconds, id) == 0 then return false end
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', seconds - DAY)
  redis.call('EXPIRE', KEYS[5], DAY)
  return true
end

-- id, lease_ms, limits (requests, tokens, concurrency, nano-dollars; -1: none), claim (requests, tokens, nano-dollars)
local function reserve()
  local id, lease_ms = ARGV[2], tonumber(ARGV[3])
  local most_requests, most_tokens = tonumber(ARGV[4]), tonumber(ARGV[5])
  local most_open, most_nanos = tonumber(ARGV[6]), tonumber(ARGV[7])
  local requests, tokens, nanos = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
  expire_leases()
  local window = read_window()
  local open = redis.call('ZCARD', KEYS[2])
  local spent = tonumber(redis.call('HGET', KEYS[4], now_day) or '0')
  local refused, longest = '-', 0
  if most_open >= 0 and open >= most_open then refused, longest = 'concurrency', 1000 end
  if most_requests >= 0 and window.r.total + requests > most_requests then
    local ms = wait_ms(window.r, requests, most_requests)
    if refused == '-' or ms > longest then refused, longest = 'requests', ms end
  end
  if most_tokens >= 0 and window.t.total + tokens > most_tokens then
    local ms = wait_ms(window.t, tokens, most_tokens)
    if refused == '-' or ms > longest then refused, longest = 'tokens', ms end
  end
  if most_nanos >= 0 and spent + nanos > most_nanos then
    refused, longest = 'dollars', (now_day + 1) * DAY * 1000 - now_ms
  end
  local reset_requests, reset_tokens = reset_ms(window.r), reset_ms(window.t)
  if refused == '-' then
    take(seconds, now_day, requests, tokens, nanos)
    hold(id, lease_ms, seconds, now_day, requests, tokens, nanos)
    keep()
    open, spent = open + 1, spent + nanos
    window.r.total, window.t.total = window.r.total + requests, window.t.total + tokens
    local whole = (seconds + WINDOW + 1) * 1000 - now_ms
    if requests > 0 then reset_requests = math.max(reset_requests, whole) end
    if tokens > 0 then reset_tokens = math.max(reset_tokens, whole) end
  end
  return string.format('%s %d %d %d %d %d %d %.0f', refused, longest, window.r.total, reset_requests, window.t.total,
    reset_tokens, open, spent)
end

-- id, used (requests, tokens, nano-dollars)
local function settle()
  local id = ARGV[2]
  local claim = redis.call('HGET', KEYS[3], id)
  redis.call('ZREM', KEYS[2], id)
  if not claim then return '0' end
  redis.call('HDEL', KEYS[3], id)
  local fields = {}
  for field in string.gmatch(claim, '%-?%d+') do table.insert(fields, tonumber(field)) end
  local slice, day = fields[1], fields[2]
  local requests, tokens = tonumber(ARGV[3]) - fields[3], tonumber(ARGV[4]) - fields[4]
  if requests < 0 then give_back('r', slice, -requests) end
  if tokens < 0 then give_back('t', slice, -tokens) end
  take(seconds, day, math.max(requests, 0), math.max(tokens, 0), tonumber(ARGV[5]) - fields[5])
  keep()
  return '1'
end

-- lease_ms, then ids of requests that still run
local function renew()
  for i = 3, #ARGV do hold_on(ARGV[i], tonumber(ARGV[2])) end
  expire_leases()
  return '1'
end

-- id, lease_ms, age in seconds, claim: a request that began while this store was away
local function adopt()
  local id, lease_ms = ARGV[2], tonumber(ARGV[3])
  if not mark(id) then
    if redis.call('HEXISTS', KEYS[3], id) == 1 then hold_on(id, lease_ms) end
    return '0'
  end
  local began = seconds - tonumber(ARGV[4])
  local day = math.floor(began / DAY)
  local requests, tokens, nanos = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
  take(began, day, requests, tokens, nanos)
  hold(id, lease_ms, began, day, requests, tokens, nanos)
  keep()
  return '1'
end

-- id of the payment, day, nano-dollars, then age in seconds, requests, tokens of each second: what ended meanwhile
local function pay()
  if not mark(ARGV[2]) then return '0' end
  take(seconds, tonumber(ARGV[3]), 0, 0, tonumber(ARGV[4]))
  for i = 5, #ARGV, 3 do take(seconds - tonumber(ARGV[i]), now_day, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), 0) end
  keep()
  return '1'
end

-- What is used, for the case that this store is lost: open, day, nano-dollars, then kind, age and amount of each slice
local function peek()
  expire_leases()
  local window = read_window()
  local spent = tonumber(redis.call('HGET', KEYS[4], now_day) or '0')
  local told = {string.format('%d %d %.0f', redis.call('ZCARD', KEYS[2]), now_day, spent)}
  for _, kind in ipairs({'r', 't'}) do
    for _, entry in ipairs(window[kind].slices) do
      table.insert(told, string.format('%s %d %.0f', kind, seconds - entry[1], entry[2]))
    end
  end
  return table.concat(told, ' ')
end

local operations = {reserve = reserve, settle = settle, renew = renew, adopt = adopt, pay = pay, peek = peek}
return operations[ARGV[1]]()
