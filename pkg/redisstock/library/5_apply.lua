-- Part 5: apply and settle: read all, check all, write the entry, then the rest.

-- Letters that settle refuses, because they take units, and letters whose lines are in the record.
local TAKES = { R = true, S = true, L = true, M = true, N = true, P = true }
local STORED = { C = true, L = true, X = true, E = true, P = true }

local function seat(lines, skus)
  for i = 1, lines.n do
    local sku = lines.sku[i]
    if not slotOf[sku] then
      slots = slots + 1
      slotOf[sku], number[slots] = slots, sku
    end
  end
  return skus + lines.n
end

-- seatAll finds the SKUs of the operations and how many of them fit into one call.
local damaged = {}
local function seatAll(n, records, alike)
  slotOf, slots, damaged = {}, 0, {}
  if alike then
    seat(alike.lines, 0)
    return n -- as many lines as operations, and those are bounded
  end
  local lines = 0
  for i = 1, n do
    local these, stored = op[i].lines, nil
    if STORED[op[i].kind] then
      local record = records[i + 1]
      local _, _, _, _, text = readRecord(record or '')
      stored = text and readLines(text)
      -- A damaged record stops its own order, not the strangers that share the call.
      damaged[i] = record and not stored
    end
    local count = (these and these.n or 0) + (stored and stored.n or 0)
    if i > 1 and lines + count > MAX_LINES then return i - 1 end
    if stored then lines = seat(stored, lines) end
    if these then lines = seat(these, lines) end
  end
  return n
end

-- takeAlike decides a call whose operations are all the same one-line reserve or sale of new orders: the load
-- of a flash sale. It answers how many were taken, always the first ones, and fills write with their records;
-- nil leaves the call to the general way, nothing being changed.
local seen = {}
local function takeAlike(n, o, records, time, place, write)
  if o.attempt > 1 or present[1] ~= true or tail[1] ~= '' then return nil end
  local new = true
  for i = 1, n do
    local name = id[i]
    if records[i + 1] or seen[name] then new = false break end
    seen[name] = true
  end
  for i = 1, n do seen[id[i]] = nil end
  if not new then return nil end
  local units, held_ = o.lines.units[1], o.kind == 'R'
  local taken = floor(available[1] / units)
  if taken > n then taken = n end
  local head = (held_ and 'h' or 'c') .. place
  local rest = '|' .. o.attemptText .. '|' .. (held_ and expiry(o, time) or '0') .. '||' .. o.text
  for i = 1, taken do
    write[2 * i - 1], write[2 * i] = id[i], head .. INDEX[i - 1] .. rest
  end
  if taken > 0 then
    local to = held_ and held or committed
    available[1], to[1], changed[1] = available[1] - taken * units, to[1] + taken * units, true
  end
  return taken
end

-- entryText writes the accepted operations as the log keeps them: told has the bodies that say more than the caller did.
local function entryText(n, lines, told)
  local out, k, last = {}, 0, nil
  for i = 1, n do
    local first = sub(lines[i], 1, 1)
    if first == '+' or first == 'm' then
      local body = told[i] or op[i].body
      if body ~= last then
        k = k + 1
        out[k] = (last and ';' or '') .. body
        last = body
      end
      k = k + 1
      out[k] = ' ' .. id[i] .. (buyer[i] ~= '' and ',' .. buyer[i] or '')
    end
  end
  return concat(out)
end

-- commitCounts writes what buyers have now. Nothing is left of a count that came back to nothing.
local function commitCounts(mine)
  local fields, k, gone, g = { '~', buyersMark(mine) }, 2, {}, 0
  for field, have in pairs(counts) do
    if have.now ~= have.was and have.now == 0 then
      g = g + 1
      gone[g] = field
    elseif have.now ~= have.was then
      fields[k + 1], fields[k + 2] = field, format('%d', have.now)
      k = k + 2
    end
  end
  for sku, is in pairs(counted) do
    if is == 'drop' then
      g = g + 1
      gone[g] = sku
    end
  end
  call('HSET', buyersKey, unpack(fields, 1, k))
  if g > 0 then call('HDEL', buyersKey, unpack(gone, 1, g)) end
end

-- commit writes the entry first and the rest after it: Redis does not roll back a script that fails half-way,
-- and in this order a half-run can only under-sell. The mirrored seq moves before XADD, so that an id which
-- XADD refuses, or any error after it, is TORN on the next call. [model]
local function commit(keys, seq, time, text, records, count)
  local mine = fenced[keys[1]]
  local fields, after, k, a = { 'q', format('%d', seq) }, {}, 2, 0
  for slot = 1, slots do
    local mark = changed[slot]
    if mark then
      local numbers = format('%d|%d|%d', available[slot], held[slot], committed[slot])
      fields[k + 1], fields[k + 2] = number[slot], numbers .. tail[slot]
      k = k + 2
      if mark == true then
        a = a + 1
        after[a] = number[slot] .. '=' .. numbers
      end
    end
  end
  mine.q = seq
  if recount then mine.b = fields[2] end
  if not call('XADD', keys[4], 'NOMKSTREAM', mine.epoch .. '-' .. fields[2], 'v', FORM, 't', format('%d', time), 'o', text, 'a', concat(after, ' ')) then
    return false
  end
  call('HSET', keys[1], unpack(fields, 1, k))
  records[count + 1], records[count + 2] = '~', markOf(mine)
  call('HSET', keys[2], unpack(records, 1, count + 2))
  if recount then commitCounts(mine) end
  return true
end

-- decideAll decides the first m of n operations one after the other, each on what the ones before it left. It
-- answers how many were accepted, the length of write, the reply's lines (nil: all accepted, nothing to tell)
-- and the entry's text: the caller's own when all of it was accepted, so the common case builds nothing.
local function decideAll(n, m, records, time, place, write, mayTake, text)
  local lines, accepted, count, all, told, more = {}, 0, 0, m == n, {}, false
  fresh = {}
  for i = 1, m do
    local o, name = op[i], id[i]
    if TAKES[o.kind] and not mayTake then
      lines[i], all = '<', false
    elseif damaged[i] then
      lines[i], all = 'x', false
    else
      local line, new, body, other = decide[o.kind](o, buyer[i], fresh[name] or records[i + 1], time, place .. INDEX[accepted] .. '|')
      lines[i] = line
      if new then
        accepted = accepted + 1
        if new ~= '' then
          write[count + 1], write[count + 2] = name, new
          count = count + 2
          fresh[name] = new
        else
          local slot = slotOf[o.lines.sku[1]]
          changed[slot] = changed[slot] or 'settings'
        end
        if other then
          write[count + 1], write[count + 2] = o.order, other
          count = count + 2
          fresh[o.order] = other
        end
        if line ~= '+' then all = false end
        if body then told[i], more = body, true end
      else
        all = false
      end
    end
  end
  for i = m + 1, n do lines[i] = '>' end
  local entry = accepted > 0 and (accepted == n and not more and text or entryText(m, lines, told))
  return accepted, count, not all and concat(lines, '\n') or nil, entry
end

local function run(keys, args, mayTake)
  if not call then bind() end
  local minSeq, deadline, text = whole(args[2], MAX_STOCK, 16), whole(args[3], MAX_STOCK, 16), args[4]
  if not minSeq or not deadline or not text then return reply('BAD') end
  local n, alike = readCall(text)
  if not n then return reply('BAD') end
  local records = call('HMGET', keys[2], '~', unpack(id, 1, n))
  local m = seatAll(n, records, alike)
  local values = call('HMGET', keys[1], 'e', 'q', 'm', 'n', 'v', unpack(number, 1, slots))
  local class = guard(keys, args[1], minSeq, values, records[1])
  local seq, time = tonumber(values[2] or 0), now()
  if not class and time > deadline then class = 'LATE' end
  if class then return reply(class, seq, time) end
  for slot = 1, slots do loadSKU(slot, values[slot + 5]) end
  counts, counted, recount, buyersKey, ordersKey = {}, {}, false, keys[3], keys[2]

  local place = '|' .. fenced[keys[1]].epoch .. '-' .. format('%d', seq + 1) .. '-'
  local write = {}
  local taken = alike and mayTake and takeAlike(n, alike, records, time, place, write)
  if alike and not taken then spread(alike, 1, n) end
  local accepted, count, lines, entry
  if taken then
    accepted, count = taken, 2 * taken
    entry = taken == n and text or alike.body .. ' ' .. concat(id, ' ', 1, taken)
    lines = taken < n and rep('+\n', taken) .. rep('-' .. standing(alike.lines) .. '\n', n - taken - 1) .. '-' .. standing(alike.lines)
  else
    accepted, count, lines, entry = decideAll(n, m, records, time, place, write, mayTake, text)
  end
  if accepted > 0 then
    seq = seq + 1
    if not commit(keys, seq, time, entry, write, count) then return reply('MISSING', seq - 1, time) end
  end
  return reply('OK', seq, time) .. '\n' .. (lines or '*')
end

local function apply(keys, args) return run(keys, args, true) end
local function settle(keys, args) return run(keys, args, false) end

