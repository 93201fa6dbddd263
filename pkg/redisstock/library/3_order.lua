-- Part 3: what each operation does to an order. A decider gets (operation, buyer, record or false, time, place), place
-- being the part of a record that names this entry and index, and answers the reply line and the new record (nil:
-- nothing was written); then, where the log must say more than the caller did, the body that stands there.
local decide = {}

local ENDED = { r = true, e = true, x = true }

-- recordLines writes the lines of a record: asked, what stands and what was shipped; without lines of which is nothing.
local function recordLines(sku, asked, now, done, n)
  local out, k = {}, 0
  for i = 1, n do
    local a, u, d = asked[i], now[i], done and done[i] or 0
    if a > 0 or u > 0 or d > 0 then
      k = k + 1
      local text = sku[i] .. '=' .. format('%d', a)
      if d > 0 then
        text = text .. format(':%d:%d', u, d)
      elseif u ~= a then
        text = text .. format(':%d', u)
      end
      out[k] = text
    end
  end
  return concat(out, ',')
end

-- spare gives the most that can be taken of each line, nil when that is nothing.
local function spare(lines)
  local units, sum = {}, 0
  for i = 1, lines.n do
    local there = available[slotOf[lines.sku[i]]]
    units[i] = there < lines.units[i] and there or lines.units[i]
    sum = sum + units[i]
  end
  return sum > 0 and { sku = lines.sku, units = units, n = lines.n } or nil
end

local function decideTaking(o, who, record, time, place, state, to, expires)
  if record then
    local was, attempt, _, whose, lines = readRecord(record)
    local had = tonumber(attempt)
    if not was then return 'x' end
    if had == 0 or o.attempt > had and not ENDED[was] then return '!' .. record end
    if o.attempt < had then return '=' .. record end
    if o.attempt == had then
      if find(lines, ':', 1, true) then
        -- Lines that only a replace brought were never asked for.
        lines = gsub(gsub(lines, ':[%d:]+', ''), '%f[%d]%d+=0,?', '')
        if sub(lines, -1) == ',' then lines = sub(lines, 1, -2) end
      end
      if whose ~= who or lines ~= o.text or (state == 'c' and was == 'h') then return '!' .. record end
      return '=' .. record
    end
  elseif o.attempt > 1 and not o.known then
    return '?'
  end
  local why = refusal(o.lines, time, who)
  if why then return why end
  local lines, text, body = o.lines, o.text, nil
  local short = shortage(lines)
  if short and o.partial then
    local there = spare(lines)
    if there then
      text, short = recordLines(lines.sku, lines.units, there.units, nil, lines.n), nil
      lines, body = there, o.head .. text .. o.flags
    end
  end
  why = overLimit(lines, who) or short
  if why then return why end
  take(lines, to, who)
  local new = state .. place .. o.attemptText .. '|' .. expires .. '|' .. who .. '|' .. text
  return body and '+' .. new or '+', new, body
end

-- expiry is when a hold of this operation taken now is due, as text; one call asks it for many orders.
local function expiry(o, time)
  if o.time ~= time then o.time, o.expires = time, format('%d', time + o.ttl) end
  return o.expires
end

function decide.R(o, who, record, time, place)
  return decideTaking(o, who, record, time, place, 'h', held, expiry(o, time))
end

function decide.S(o, who, record, time, place)
  return decideTaking(o, who, record, time, place, 'c', committed, '0')
end

-- resultsOf gives what the results make of each line, and the sum; rest is for lines that are not named: nil keeps them.
-- No answer means that a line is named of which that much does not stand.
local function resultsOf(lines, results, rest)
  local units, sum, named = {}, 0, 0
  local at = {}
  for i = 1, results.n do at[results.sku[i]] = results.units[i] end
  for i = 1, lines.n do
    local wanted = at[lines.sku[i]]
    if wanted then named = named + 1 end
    units[i] = wanted or rest or lines.units[i]
    if units[i] > lines.units[i] then return nil end
    sum = sum + units[i]
  end
  if named ~= results.n then return nil end
  return units, sum
end

-- sameResults is true when the lines of a confirmed order, shipped units included, are what the results say.
local function sameResults(lines, results)
  local stands = lines.units
  if lines.done then
    stands = {}
    for i = 1, lines.n do stands[i] = lines.units[i] + lines.done[i] end
  end
  local units = resultsOf({ sku = lines.sku, units = stands, n = lines.n }, results, 0)
  if not units then return false end
  for i = 1, lines.n do
    if units[i] ~= stands[i] then return false end
  end
  return true
end

-- withUnits is the text of lines of which so much stands now.
local function withUnits(lines, text, units)
  for i = 1, lines.n do
    if units[i] ~= lines.units[i] then return recordLines(lines.sku, lines.asked or lines.units, units, lines.done, lines.n) end
  end
  return text
end

-- standingHold reads the record for an operation on a hold: nil, lines, attempt, expires, buyer, text; or an answer.
local function standingHold(o, record)
  if not record then return '?' end
  local was, attempt, expires, who, text = readRecord(record)
  local had = tonumber(attempt)
  if not was then return 'x' end
  if o.attempt > had then return '!' .. record end
  if o.attempt < had or was ~= 'h' then return '=' .. record end
  return nil, readLines(text), attempt, expires, who, text
end

-- standingEnd reads the record of an attempt that is no hold any more: state, lines, attempt, expires, buyer, text; nil
-- when another attempt is meant.
local function standingEnd(o, record)
  local was, attempt, expires, who, text = readRecord(record or '')
  if was and was ~= 'h' and tonumber(attempt) == o.attempt then return was, readLines(text), attempt, expires, who, text end
end

local function moved(state, place, attempt, expires, who, text)
  local new = state .. place .. attempt .. '|' .. expires .. '|' .. who .. '|' .. text
  return '+' .. new, new
end

function decide.C(o, _, record, time, place)
  local answer, lines, attempt, expires, who, text = standingHold(o, record)
  if answer then
    local was, stands = standingEnd(o, record)
    if was == 'e' then return '<' .. record end
    if o.results and (was == 'c' or was == 'f') and not sameResults(stands, o.results) then return '!' .. record end
    return answer
  end
  local units, sum
  if o.results then
    units, sum = resultsOf(lines, o.results, 0)
    if not units or sum == 0 then return '!' .. record end
  end
  local why = leave(lines, committed, who, units)
  if why then return why end
  return moved('c', place, attempt, expires, who, units and withUnits(lines, text, units) or text)
end

function decide.X(o, _, record, time, place)
  local answer, lines, attempt, expires, who, text = standingHold(o, record)
  if answer then return answer end
  local units, sum
  if o.results then
    units, sum = resultsOf(lines, o.results, nil)
    if not units then return '!' .. record end
    local less = withUnits(lines, text, units)
    if less == text then return '=' .. record end
    if sum > 0 then
      local why = leave(lines, held, who, units)
      if why then return why end
      return moved('h', place, attempt, expires, who, less)
    end
  end
  local why = leave(lines, available, who)
  if why then return why end
  return moved('r', place, attempt, expires, who, text)
end

function decide.E(o, _, record, time, place)
  local answer, lines, attempt, expires, who, text = standingHold(o, record)
  if answer then return answer end
  if tonumber(expires) > time then return 'd' .. record end
  local why = leave(lines, available, who)
  if why then return why end
  return moved('e', place, attempt, expires, who, text)
end

function decide.U(o, _, record, time, place)
  local answer, lines, attempt, expires, who, text = standingHold(o, record)
  if answer then return answer end
  if not lines then return 'x' end
  if o.till <= tonumber(expires) then return '=' .. record end
  if o.till <= time or o.till > time + MAX_TTL then return 'z' end
  return moved('h', place, attempt, o.tillText, who, text)
end

-- onlyUnits leaves lines out of which nothing is wanted.
local function onlyUnits(lines, units)
  local out = { sku = {}, units = {}, n = 0 }
  for i = 1, lines.n do
    if units[i] > 0 then
      out.n = out.n + 1
      out.sku[out.n], out.units[out.n] = lines.sku[i], units[i]
    end
  end
  return out
end

function decide.L(o, _, record, time, place)
  local was, lines, attempt, expires, who, text = standingEnd(o, record)
  if was ~= 'e' then return standingHold(o, record) or '=' .. record end
  local units, sum = lines.units, 1
  if o.results then
    units, sum = resultsOf(lines, o.results, 0)
    if not units or sum == 0 then return '!' .. record end
  end
  local wanted = onlyUnits(lines, units)
  local why = refusal(wanted, time, who) or overLimit(wanted, who) or shortage(wanted)
  if why then return why end
  take(wanted, committed, who)
  return moved('c', place, format('%d', tonumber(attempt) + 1), expires, who, withUnits(lines, text, units))
end

-- mergeLines puts the lines of an order and those that replace them side by side, by SKU number: asked, was and now.
local function mergeLines(old, new)
  local out = { sku = {}, asked = {}, was = {}, now = {}, n = 0 }
  local i, j = 1, 1
  while i <= old.n or j <= new.n do
    local a, b = tonumber(old.sku[i]), tonumber(new.sku[j])
    local n = out.n + 1
    out.n = n
    if not b or a and a <= b then
      out.sku[n], out.asked[n], out.was[n], out.now[n] = old.sku[i], (old.asked or old.units)[i], old.units[i], a == b and new.units[j] or 0
      if a == b then j = j + 1 end
      i = i + 1
    else
      out.sku[n], out.asked[n], out.was[n], out.now[n] = new.sku[j], 0, 0, new.units[j]
      j = j + 1
    end
  end
  return out
end

function decide.P(o, _, record, time, place)
  local answer, lines, attempt, expires, who = standingHold(o, record)
  if answer then return answer end
  local all = mergeLines(lines, o.lines)
  local more, same, kept = {}, true, 0
  for i = 1, all.n do
    more[i] = all.now[i] - all.was[i]
    if more[i] ~= 0 then same = false end
    if all.asked[i] > 0 or all.now[i] > 0 then kept = kept + 1 end
  end
  if same then return '=' .. record end
  if kept > MAX_ORDER_LINES then return 'z' end
  local wanted = onlyUnits(all, more)
  local why = refusal(wanted, time, who) or overLimit(wanted, who)
  if why then return why end
  if shortage(wanted) then
    -- What the order holds itself counts as there.
    local own, out = {}, {}
    for i = 1, lines.n do own[lines.sku[i]] = lines.units[i] end
    for i = 1, o.lines.n do
      local sku = o.lines.sku[i]
      local slot = slotOf[sku]
      if present[slot] ~= true then return absent(sku) end
      out[i] = sku .. '=' .. format('%d', available[slot] + (own[sku] or 0))
    end
    return '-' .. concat(out, ',')
  end
  for i = 1, all.n do
    local slot = slotOf[all.sku[i]]
    if present[slot] ~= true then return absent(all.sku[i]) end
    if held[slot] < all.was[i] then return 'i' .. all.sku[i] end
  end
  for i = 1, all.n do
    local sku = all.sku[i]
    local slot = slotOf[sku]
    available[slot], held[slot] = available[slot] - more[i], held[slot] + more[i]
    if more[i] ~= 0 then changed[slot] = true end
    if who ~= '' and tail[slot] ~= '' then owe(sku, who, more[i]) end
  end
  return moved('h', place, attempt, expires, who, recordLines(all.sku, all.asked, all.now, nil, all.n))
end
