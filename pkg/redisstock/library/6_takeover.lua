-- Part 6: fence, put, drop, open and status, for takeovers and audits, and forget, for retention.

-- epochOf splits "<ledger>.<epoch>".
local function epochOf(token) return match(token or '', '^(.+)%.(%d+)$') end

-- fence claims this process for a takeover: whatever calls it carries an epoch that Postgres gave out once. A
-- Redis that already has that epoch or a later one refuses, and so does one that another ledger wrote.
local function fence(keys, args)
  if not call then bind() end
  for i = 1, 3 do
    local kind = call('TYPE', keys[i]).ok
    if kind ~= 'hash' and kind ~= 'none' then call('DEL', keys[i]) end
  end
  local old = call('HMGET', keys[1], 'e', 'q', 'm')
  local ledger, epoch = epochOf(args[1])
  if not ledger or args[3] ~= VERSION then return reply('BAD') end
  local oldLedger, oldEpoch = epochOf(old[1])
  if oldLedger and oldLedger ~= ledger then
    if args[4] ~= '1' then return reply('FOREIGN') .. '\n' .. old[1] end
    -- From here on the token is ours, so the other ledger's log must not stay where ours is read from: an attempt
    -- that dies now would leave entries that look as if they continued our position.
    if call('EXISTS', keys[4]) == 1 then call('RENAME', keys[4], keys[5]) end
  end
  if oldLedger == ledger and tonumber(oldEpoch) >= tonumber(epoch) then return reply('EPOCH') .. '\n' .. old[1] end
  call('HSET', keys[1], 'e', args[1], 'q', '0', 'm', 'closed', 'n', args[2], 'v', VERSION)
  fenced[keys[1]] = { e = args[1], epoch = epoch, n = args[2], q = 0 }
  return reply('OK', 0, now()) .. '\n' .. (old[1] or '') .. '\n' .. (old[2] or '') .. '\n' .. (old[3] or '')
end

-- fencedBy checks that one attempt works on one process: its nonce, the mode closed, and the mirrored seq that
-- each put moves, so that a late copy of a put, a restart or a RESTORE in between cannot pass. [model]
local function fencedBy(keys, args)
  local mine, v = fenced[keys[1]], call('HMGET', keys[1], 'e', 'q', 'm', 'n')
  if not v[1] then return 'MISSING' end
  if v[1] ~= args[1] then return 'EPOCH' end
  if not mine then return 'FENCED' end
  if v[3] ~= 'closed' then return 'CLOSED' end
  if mine.e ~= v[1] or mine.n ~= args[2] or v[4] ~= args[2] or format('%d', mine.q) ~= v[2] then return 'TORN' end
  if v[2] ~= args[3] then return 'LATE' end
end

-- put writes or deletes fields while the shard is closed: target state, orders or buyers with verb set (field,
-- value, …) or del (field, …); target log with verb rename moves it out of the way to KEYS[5] as evidence.
local function put(keys, args)
  if not call then bind() end
  local class = fencedBy(keys, args)
  if class then return reply(class) end
  local target = ({ state = 1, orders = 2, buyers = 3, log = 4 })[args[4]]
  local command = ({ set = 'HSET', del = 'HDEL', rename = 'RENAME' })[args[5]]
  if not target or not command or (command == 'RENAME') ~= (target == 4) then return reply('BAD') end
  if target == 1 then
    for i = 6, #args, command == 'HSET' and 2 or 1 do
      if not find(args[i], '^%d+$') then return reply('BAD') end
    end
  end
  local mine = fenced[keys[1]]
  mine.q = mine.q + 1
  if command == 'RENAME' then
    if call('EXISTS', keys[4]) == 1 then call('RENAME', keys[4], keys[5]) end
  else
    call(command, keys[target], unpack(args, 6))
  end
  call('HSET', keys[1], 'q', format('%d', mine.q))
  return reply('OK', mine.q, 0)
end

-- drop is put without set. What only takes away goes through at the limit of memory, too: it is how a takeover makes
-- room for what it has to put.
local function drop(keys, args)
  if not call then bind() end
  if args[5] == 'set' then return reply('BAD') end
  return put(keys, args)
end

-- open lets the shard sell: the first entry of the epoch, the sentinels and the mode. Sent once per epoch.
local function open(keys, args)
  if not call then bind() end
  local class = fencedBy(keys, args)
  if class then return reply(class) end
  if not find(args[4] or '', '^%d+%-%d+$') then return reply('BAD') end
  local mine, time = fenced[keys[1]], now()
  mine.q = 1
  call('XADD', keys[4], mine.epoch .. '-1', 'v', FORM, 't', format('%d', time), 'o', 'O' .. args[4] .. ' ~~open', 'a', '')
  call('HSET', keys[2], '~', markOf(mine))
  call('HSET', keys[3], '~', args[2])
  call('HSET', keys[1], 'q', '1', 'm', 'open')
  return reply('OK', 1, time)
end

-- status answers, a line each: token, seq, mode, nonce, version, sentinel of orders, sentinel of buyers, fence (absent,
-- same, differs), time ms, first and last id of the log ("" when there is none).
local function status(keys)
  if not call then bind() end
  local function hash(i) return call('TYPE', keys[i]).ok == 'hash' end
  local v = hash(1) and call('HMGET', keys[1], 'e', 'q', 'm', 'n', 'v') or {}
  local out = {}
  for i = 1, 5 do out[i] = v[i] or '' end
  for i = 2, 3 do out[i + 4] = hash(i) and call('HGET', keys[i], '~') or '' end
  local mine = fenced[keys[1]]
  out[8] = 'absent'
  if mine then
    local same = mine.e == out[1] and mine.n == out[4] and format('%d', mine.q) == out[2]
    same = same and (out[3] ~= 'open' or out[6] == markOf(mine) and out[7] == buyersMark(mine))
    out[8] = same and 'same' or 'differs'
  end
  out[9], out[10], out[11] = format('%d', now()), '', ''
  if call('TYPE', keys[4]).ok == 'stream' then
    local first = call('XRANGE', keys[4], '-', '+', 'COUNT', 1)
    local last = call('XREVRANGE', keys[4], '+', '-', 'COUNT', 1)
    out[10], out[11] = first[1] and first[1][1] or '', last[1] and last[1][1] or ''
  end
  return concat(out, '\n')
end

local MAX_FORGET = 256 -- records of one call

-- forget drops records of orders and documents that ended or were confirmed, each only while it stands at the position
-- that Postgres knows. No entry: nothing that anybody counts changes, and the sentinel stays as it is.
local function forget(keys, args)
  if not call then bind() end
  local minSeq, pairs_ = whole(args[2], MAX_STOCK, 16), (#args - 2) / 2
  if not minSeq or pairs_ < 1 or pairs_ > MAX_FORGET or pairs_ ~= floor(pairs_) then return reply('BAD') end
  local names = {}
  for i = 1, pairs_ do names[i] = args[2 * i + 1] end
  local records = call('HMGET', keys[2], '~', unpack(names))
  local values = call('HMGET', keys[1], 'e', 'q', 'm', 'n', 'v')
  local class = guard(keys, args[1], minSeq, values, records[1])
  local seq, time = tonumber(values[2] or 0), now()
  if class then return reply(class, seq, time) end
  local gone, n = {}, 0
  for i = 1, pairs_ do
    local state, place = match(records[i + 1] or '', '^(%l)|(%d+%-%d+%-%d+)|')
    if state and state ~= 'h' and place == args[2 * i + 2] and names[i] ~= '~' then
      n = n + 1
      gone[n] = names[i]
    end
  end
  if n > 0 then call('HDEL', keys[2], unpack(gone)) end
  return reply('OK', seq, time) .. '\n' .. format('%d', n)
end

redis.register_function { function_name = 'stockpipe_1_forget', callback = forget, flags = { 'allow-oom' } }
redis.register_function { function_name = 'stockpipe_1_apply', callback = apply, flags = {} }
redis.register_function { function_name = 'stockpipe_1_settle', callback = settle, flags = { 'allow-oom' } }
redis.register_function { function_name = 'stockpipe_1_fence', callback = fence, flags = { 'allow-oom' } }
redis.register_function { function_name = 'stockpipe_1_put', callback = put, flags = {} }
redis.register_function { function_name = 'stockpipe_1_drop', callback = drop, flags = { 'allow-oom' } }
redis.register_function { function_name = 'stockpipe_1_open', callback = open, flags = { 'allow-oom' } }
redis.register_function { function_name = 'stockpipe_1_status', callback = status, flags = { 'no-writes', 'allow-stale' } }
