-- Part 2: what each operation does to the SKUs and records of one call.

-- readRecord splits a record: state, attempt, expires, buyer, lines; attempt and expires as text.
local function readRecord(record)
  return match(record, '^(%l)|%d+%-%d+%-%d+|(%d+)|(%d+)|([^|]*)|(.*)$')
end

local function now()
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

-- markOf is the sentinel of the orders as the last call of this process left it.
local function markOf(mine) return mine.n .. '.' .. format('%d', mine.q) end

local function reply(class, seq, time) return format('%s %d %d', class, seq or 0, time or 0) end

-- guard answers the class that refuses the call, or nil. It reads nothing that a takeover of this very process
-- did not write. The values are those of HMGET state e q m n v. The sentinel of the orders carries the seq too:
-- older orders of the same epoch, put back while the process lives, would forget who bought last. [model]
local function guard(keys, token, minSeq, v, mark)
  local e, q, mode, nonce, version = v[1], tonumber(v[2] or nil), v[3], v[4], v[5]
  if not e or not q then return 'MISSING' end
  if e ~= token then return 'EPOCH' end
  if version ~= VERSION then return 'VERSION' end
  if mode ~= 'open' then return 'CLOSED' end
  local mine = fenced[keys[1]]
  if not mine then return 'FENCED' end
  if mine.e ~= e or mine.n ~= nonce or mine.q ~= q or mark ~= markOf(mine) or call('HGET', keys[3], '~') ~= nonce then
    fenced[keys[1]] = nil
    return 'TORN'
  end
  if q < minSeq then return 'REWOUND' end
  return nil
end

-- Scratch of one call: the SKUs touched, by slot. loadSKU sets what a call reads, so only slotOf begins anew.
local number, available, held, committed, tail, present, changed, opens = {}, {}, {}, {}, {}, {}, {}, {}
local slotOf, slots = {}, 0

local function loadSKU(slot, text)
  changed[slot] = false
  if not text then
    present[slot] = false
    return
  end
  local a, h, c, rest = match(text, '^(%d+)|(%d+)|(%d+)(.*)$')
  if not a then
    present[slot] = 'unreadable'
    return
  end
  present[slot], available[slot], held[slot], committed[slot], tail[slot] = true, tonumber(a), tonumber(h), tonumber(c), rest
  if rest ~= '' then
    opens[slot] = { match(rest, '^|(%d+)|(f?)(c?)|%d+$') }
    if not opens[slot][1] then present[slot] = 'unreadable' end
  end
end

-- absent answers why a SKU cannot be reckoned with at all: unknown here, or its text was damaged by hand.
local function absent(sku)
  local there = present[slotOf[sku]]
  if there ~= true then return (there and 'i' or 'u') .. sku end
end

-- refusal answers why units of these lines may not be taken now, before the shortage is looked at.
local function refusal(lines, time)
  for i = 1, lines.n do
    local slot = slotOf[lines.sku[i]]
    if present[slot] ~= true then return absent(lines.sku[i]) end
    local set = tail[slot] ~= '' and opens[slot]
    if set then
      if set[2] == 'f' then return 'f' .. lines.sku[i] end
      if set[3] == 'c' then return 'c' .. lines.sku[i] end
      if tonumber(set[1]) > time then return 'o' .. lines.sku[i] end
    end
  end
end

-- standing lists what is available of each line's SKU: the numbers of a refusal.
local function standing(lines)
  local out = {}
  for i = 1, lines.n do
    out[i] = lines.sku[i] .. '=' .. format('%d', available[slotOf[lines.sku[i]]])
  end
  return concat(out, ',')
end

local function shortage(lines)
  local short = false
  for i = 1, lines.n do
    if available[slotOf[lines.sku[i]]] < lines.units[i] then short = true break end
  end
  return short and '-' .. standing(lines) or nil
end

local function take(lines, to)
  for i = 1, lines.n do
    local slot, q = slotOf[lines.sku[i]], lines.units[i]
    available[slot] = available[slot] - q
    to[slot] = to[slot] + q
    changed[slot] = true
  end
end

-- leave moves what an order holds into the given quantity; false if the SKU's own numbers do not have it.
local function leave(lines, to)
  for i = 1, lines.n do
    local slot = slotOf[lines.sku[i]]
    if present[slot] ~= true then return absent(lines.sku[i]) end
    if held[slot] < lines.units[i] then return 'i' .. lines.sku[i] end
  end
  for i = 1, lines.n do
    local slot, q = slotOf[lines.sku[i]], lines.units[i]
    held[slot] = held[slot] - q
    to[slot] = to[slot] + q
    changed[slot] = true
  end
end

local ENDED = { r = true, e = true, x = true }

-- Each decider gets (operation, buyer, record or false, time, place), place being the part of a record that
-- names this entry and index, and answers the reply line and the new record (nil: nothing was written).
local decide = {}

local function decideTaking(o, who, record, time, place, state, to, expires)
  if record then
    local was, attempt, _, whose, lines = readRecord(record)
    local had = tonumber(attempt)
    if not was then return 'x' end
    if had == 0 or o.attempt > had and not ENDED[was] then return '!' .. record end
    if o.attempt < had then return '=' .. record end
    if o.attempt == had then
      if find(lines, ':', 1, true) then lines = gsub(lines, ':%d+', '') end
      if whose ~= who or lines ~= o.text or (state == 'c' and was == 'h') then return '!' .. record end
      return '=' .. record
    end
  elseif o.attempt > 1 and not o.known then
    return '?'
  end
  local why = refusal(o.lines, time) or shortage(o.lines)
  if why then return why end
  take(o.lines, to)
  return '+', state .. place .. o.attemptText .. '|' .. expires .. '|' .. who .. '|' .. o.text
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

local function decideMoving(o, record, time, place, state, to)
  if not record then return '?' end
  local was, attempt, expires, who, text = readRecord(record)
  local had = tonumber(attempt)
  if not was then return 'x' end
  if o.attempt > had then return '!' .. record end
  if o.attempt < had or was ~= 'h' then
    if state == 'c' and was == 'e' and o.attempt == had then return '<' .. record end
    return '=' .. record
  end
  if state == 'e' and tonumber(expires) > time then return 'd' .. record end
  local why = leave(readLines(text), to)
  if why then return why end
  local new = state .. place .. attempt .. '|' .. expires .. '|' .. who .. '|' .. text
  return '+' .. new, new
end

function decide.C(o, _, record, time, place) return decideMoving(o, record, time, place, 'c', committed) end
function decide.X(o, _, record, time, place) return decideMoving(o, record, time, place, 'r', available) end
function decide.E(o, _, record, time, place) return decideMoving(o, record, time, place, 'e', available) end

function decide.L(o, _, record, time, place)
  if not record then return '?' end
  local was, attempt, expires, who, text = readRecord(record)
  local had = tonumber(attempt)
  if not was then return 'x' end
  if o.attempt > had then return '!' .. record end
  if o.attempt < had or was ~= 'e' then return '=' .. record end
  local lines = readLines(text)
  local why = refusal(lines, time) or shortage(lines)
  if why then return why end
  take(lines, committed)
  local new = 'c' .. place .. format('%d', had + 1) .. '|' .. expires .. '|' .. who .. '|' .. text
  return '+' .. new, new
end

function decide.M(o, _, record, time, place)
  if record then return '=' .. record end
  if time > o.deadline then return 't' end
  local lines = o.lines
  for i = 1, lines.n do
    if present[slotOf[lines.sku[i]]] ~= true then return absent(lines.sku[i]) end
  end
  for i = 1, lines.n do
    local slot = slotOf[lines.sku[i]]
    local to = available[slot] + lines.units[i]
    -- A refusal is an entry, too: so a document has one outcome, whoever sends it and however often. [model]
    if to < 0 or to + held[slot] + committed[slot] > MAX_STOCK then return 'm' .. standing(lines), 'n' .. place .. '0|0||' .. o.text end
  end
  for i = 1, lines.n do
    local slot = slotOf[lines.sku[i]]
    available[slot] = available[slot] + lines.units[i]
    changed[slot] = true
  end
  return '+', 'd' .. place .. '0|0||' .. o.text
end

function decide.N(o, _, record, time, place)
  if record then return '=' .. record end
  if time > o.deadline then return 't' end
  local slot = slotOf[o.lines.sku[1]]
  if present[slot] then return '!' end
  present[slot], available[slot], held[slot], committed[slot], tail[slot] = true, o.opening, 0, 0, ''
  changed[slot] = true
  return '+', 'd' .. place .. '0|0||' .. o.text
end

function decide.T(o)
  local slot = slotOf[o.lines.sku[1]]
  if present[slot] ~= true then return absent(o.lines.sku[1]) end
  tail[slot] = o.tail
  if o.tail ~= '' then opens[slot] = { match(o.tail, '^|(%d+)|(f?)(c?)|%d+$') } end
  return '+', ''
end

