-- Part 4: documents and settings.

local ordersKey
local fresh = {} -- records that this call has written so far, by id

-- ofOrder gives the record of a document's order as the document leaves it; nil when there is none to change: it was
-- dropped after the retention, or is of another life of the order. The stock moves all the same: Postgres has decided.
local function ofOrder(o, place)
  if not o.order or o.asked == 0 or (o.committed == 0) then return nil end
  local record = fresh[o.order] or call('HGET', ordersKey, o.order)
  if not record then return nil end
  local was, attempt, expires, who, text = readRecord(record)
  local lines = was == 'c' and tonumber(attempt) == o.asked and readLines(text)
  if not lines then return nil end
  local at, units, done = {}, {}, {}
  for i = 1, lines.n do
    at[lines.sku[i]], units[i], done[i] = i, lines.units[i], lines.done and lines.done[i] or 0
  end
  for i = 1, o.lines.n do
    local k, moves = at[o.lines.sku[i]], o.lines.units[i]
    if moves < 0 then moves = -moves end
    if not k or units[k] < moves then return nil end
    units[k] = units[k] - moves
    if o.available == 0 then done[k] = done[k] + moves end
  end
  local left, shipped = 0, 0
  for i = 1, lines.n do left, shipped = left + units[i], shipped + done[i] end
  local state = left > 0 and 'c' or shipped > 0 and 'f' or 'x'
  local asked = lines.asked or lines.units
  return state .. place .. attempt .. '|' .. expires .. '|' .. who .. '|' .. recordLines(lines.sku, asked, units, done, lines.n)
end

function decide.M(o, who, record, time, place)
  if record then return '=' .. record end
  if time > o.deadline then return 't' end
  local lines = o.lines
  for i = 1, lines.n do
    if present[slotOf[lines.sku[i]]] ~= true then return absent(lines.sku[i]) end
  end
  for i = 1, lines.n do
    local slot, units = slotOf[lines.sku[i]], lines.units[i]
    local a, c = available[slot] + units * o.available, committed[slot] + units * o.committed
    -- A refusal is an entry, too: so a document has one outcome, whoever sends it and however often. [model]
    if a < 0 or c < 0 or a + held[slot] + c > MAX_STOCK then
      return 'm' .. standing(lines, o.committed ~= 0 and committed or available), 'n' .. place .. '0|0||' .. o.text, 'm' .. sub(o.body, 2)
    end
  end
  for i = 1, lines.n do
    local slot, units = slotOf[lines.sku[i]], lines.units[i]
    available[slot], committed[slot] = available[slot] + units * o.available, committed[slot] + units * o.committed
    changed[slot] = true
    if o.named and who ~= '' and tail[slot] ~= '' then owe(lines.sku[i], who, -units) end
  end
  return '+', 'd' .. place .. '0|0||' .. o.text, nil, ofOrder(o, place)
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

-- switched gives a flag after the changes: on, off, or as it was.
local function switched(changes, flag, was)
  if find(changes, '+' .. flag, 1, true) then return flag end
  if find(changes, '-' .. flag, 1, true) then return '' end
  return was
end

function decide.T(o)
  local sku = o.lines.sku[1]
  local slot = slotOf[sku]
  if present[slot] ~= true then return absent(sku) end
  local was = tail[slot] ~= '' and set[slot] or { '0', '', '', '0' }
  local opens = o.opens == '-' and was[1] or o.opens
  local limit = o.limit == '-' and was[4] or o.limit
  local f, c = switched(o.changes, 'f', was[2]), switched(o.changes, 'c', was[3])
  -- Without a limit nobody goes on counting, so what was counted is worth nothing from here on.
  if limit == '0' and was[4] ~= '0' then counted[sku], recount = 'drop', true end
  tail[slot] = (opens ~= '0' or f ~= '' or c ~= '' or limit ~= '0') and '|' .. opens .. '|' .. f .. c .. '|' .. limit or ''
  set[slot] = tail[slot] ~= '' and { opens, f, c, limit } or nil
  return '+', ''
end
