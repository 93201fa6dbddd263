-- Part 2: what stands before a call: its guard, the SKUs that it touches, and what buyers have of them.

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

-- buyersMark is that of the buyers: with the seq of the last call that counted anything for them, so that older counts
-- put back are noticed, too.
local function buyersMark(mine) return mine.b and mine.n .. '.' .. mine.b or mine.n end

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
  if mine.e ~= e or mine.n ~= nonce or mine.q ~= q or mark ~= markOf(mine) or call('HGET', keys[3], '~') ~= buyersMark(mine) then
    fenced[keys[1]] = nil
    return 'TORN'
  end
  if q < minSeq then return 'REWOUND' end
  return nil
end

-- Scratch of one call: the SKUs touched, by slot. loadSKU sets what a call reads, so only slotOf begins anew.
local number, available, held, committed, tail, present, changed, set = {}, {}, {}, {}, {}, {}, {}, {}
local slotOf, slots = {}, 0
local SETTINGS = '^|(%d+)|(f?)(c?)|(%d+)$' -- opens, frozen, closed, limit

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
    set[slot] = { match(rest, SETTINGS) }
    if not set[slot][1] then present[slot] = 'unreadable' end
  end
end

-- absent answers why a SKU cannot be reckoned with at all: unknown here, or its text was damaged by hand.
local function absent(sku)
  local there = present[slotOf[sku]]
  if there ~= true then return (there and 'i' or 'u') .. sku end
end

-- What buyers have of SKUs with a limit, by "<sku>:<buyer>", and whether it is counted in full, by "<sku>": read when a
-- call first needs it, written at its end.
local counts, counted, recount = {}, {}, false
local buyersKey

local function limitOf(slot)
  return tail[slot] ~= '' and set[slot][4] ~= '0' and tonumber(set[slot][4]) or nil
end

local function isCounted(sku)
  if counted[sku] == nil then counted[sku] = call('HEXISTS', buyersKey, sku) == 1 end
  return counted[sku] == true
end

-- countOf is how much of a SKU a buyer has; nil when somebody wrote something else there.
local function countOf(sku, who)
  local field = sku .. ':' .. who
  local have = counts[field]
  if not have then
    have = { was = whole(call('HGET', buyersKey, field) or '0', MAX_STOCK, 16) }
    have.now = have.was
    counts[field] = have
  end
  return have.now and have
end

-- owe changes what a buyer has of a SKU. More given back than counted is a difference that the audit finds; to refuse a
-- release for it would punish the buyer.
local function owe(sku, who, units)
  if units == 0 or who == '' or not limitOf(slotOf[sku]) then return end
  local have = countOf(sku, who)
  if not have then return end
  have.now = have.now + units
  if have.now < 0 then have.now = 0 end
  recount = true
end

-- refusal answers why units of these lines may not be taken now, before limit and shortage are looked at.
local function refusal(lines, time, who)
  for i = 1, lines.n do
    local sku = lines.sku[i]
    local slot = slotOf[sku]
    if present[slot] ~= true then return absent(sku) end
    local s = tail[slot] ~= '' and set[slot]
    if s then
      if s[2] == 'f' then return 'f' .. sku end
      if s[3] == 'c' then return 'c' .. sku end
      if tonumber(s[1]) > time then return 'o' .. sku end
      if s[4] ~= '0' then
        if who == '' then return 'b' .. sku end
        if not isCounted(sku) then return 'w' .. sku end
      end
    end
  end
end

-- overLimit answers which buyer limit these units would break.
local function overLimit(lines, who)
  for i = 1, lines.n do
    local sku = lines.sku[i]
    local limit = limitOf(slotOf[sku])
    if limit then
      local have = countOf(sku, who)
      if not have then return 'i' .. sku end
      if have.now + lines.units[i] > limit then return 'l' .. sku .. '=' .. format('%d', have.now) .. '/' .. set[slotOf[sku]][4] end
    end
  end
end

-- standing lists what is there of each line's SKU: the numbers of a refusal.
local function standing(lines, of)
  local out = {}
  for i = 1, lines.n do
    out[i] = lines.sku[i] .. '=' .. format('%d', (of or available)[slotOf[lines.sku[i]]])
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

-- take moves what is free into the given quantity, and counts it for the buyer.
local function take(lines, to, who)
  for i = 1, lines.n do
    local sku, q = lines.sku[i], lines.units[i]
    local slot = slotOf[sku]
    available[slot] = available[slot] - q
    to[slot] = to[slot] + q
    changed[slot] = true
    if who ~= '' and tail[slot] ~= '' then owe(sku, who, q) end
  end
end

-- leave moves what an order holds into the given quantity, or, where rest is given, so many units of each line only, and
-- what is left of them is free again. An answer means that the SKU's own numbers do not have it.
local function leave(lines, to, who, rest)
  for i = 1, lines.n do
    local slot = slotOf[lines.sku[i]]
    if present[slot] ~= true then return absent(lines.sku[i]) end
    if held[slot] < lines.units[i] then return 'i' .. lines.sku[i] end
  end
  for i = 1, lines.n do
    local sku, q = lines.sku[i], lines.units[i]
    local slot, stays = slotOf[sku], rest and rest[i] or q
    held[slot] = held[slot] - q
    to[slot] = to[slot] + stays
    available[slot] = available[slot] + q - stays
    changed[slot] = true
    if who ~= '' and tail[slot] ~= '' then owe(sku, who, (to == available and 0 or stays) - q) end
  end
end
