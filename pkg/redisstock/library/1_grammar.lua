#!lua name=stockpipe_1
-- stockpipe's function library, version 1: every change of a shard's stock goes through here, and each call is
-- one entry of the shard's log. The grammar of bodies, records and entries is decision 0001 (package event is
-- its Go twin); the rules and their reasons are decisions 0002 and, for how orders move, 0006.
--
-- KEYS of every function: 1 state (hash)  2 orders (hash)  3 buyers (hash)  4 log (stream)   -- one hash tag
-- fence and put have a fifth, where a log that stands in the way is kept as evidence.
--
-- stockpipe_1_apply   token, min seq, deadline ms, operations   -> reply; may take units; refused when over maxmemory
-- stockpipe_1_settle  the same; never takes units, so that confirms and releases work in a full Redis
-- stockpipe_1_forget  token, min seq, id, position, …           -> "OK <seq> <time>\n<dropped>"; no entry, nothing is counted by it
-- stockpipe_1_fence   token, nonce, version, adopt ("1" or "")   -> "OK 0 <time>\n<old token>\n<old seq>\n<old mode>"
-- stockpipe_1_put     token, nonce, seq, target, verb, arguments… -> "OK <seq> 0"
-- stockpipe_1_open    token, nonce, seq, position continued       -> "OK 1 <time>"
-- stockpipe_1_status  (read only, also on a replica)              -> eleven lines, see there
--
-- Reply of apply and settle: "<class> <seq> <time ms>" and, when the class is OK, a newline and either "*" (all
-- accepted) or one line an operation: + accepted (with the record, unless reserve or sale), = replayed with the
-- record, ! conflict with the record, ? no record, > again, < retake with the record, d not due with the record,
-- t overdue, x its record is unreadable, z out of bounds, u / f / c / o / i / b / w a SKU that is unknown, frozen, closed,
-- not open yet, inconsistent, limited while the order names no buyer, limited and not counted yet, l a limit reached with
-- "<sku>=<what the buyer has>/<limit>", - sold out and m document refused (accepted as an entry), both with "<sku>=<available>,…".
-- Other classes, in order of precedence: BAD, MISSING, EPOCH, VERSION, CLOSED, FENCED, TORN, REWOUND, LATE.

local VERSION = '1'
local FORM = '1' -- of log entries, which outlive a library: readers know it by itself
local MAX_OPS, MAX_LINES, MAX_ORDER_LINES = 256, 256, 1500
local MAX_LINE, MAX_MOVE, MAX_STOCK, MAX_ATTEMPT = 1000000, 999999999, 9007199254740991, 999999999
local MAX_TTL, MIN_TTL = 86400000, 1000
local MAX_CACHE = 8192 -- bodies and lines kept parsed between calls

-- What dies with the process: {e token, epoch, n nonce, q seq} of each shard that a takeover fenced here. A
-- restart, a full resync, a promotion, a reload of the library all lose it, and so the right to sell. [model]
local fenced = {}

-- Redis hides these while a library loads; the first call binds them.
local call, find, match, gmatch, sub, gsub, rep, format, concat, floor
local INDEX = {}
local function bind()
  find, match, gmatch, sub, gsub, rep = string.find, string.match, string.gmatch, string.sub, string.gsub, string.rep
  format, concat, floor = string.format, table.concat, math.floor
  for i = 0, MAX_OPS do INDEX[i] = format('%d', i) end
  call = redis.call
end

-- whole reads a canonical decimal; tonumber alone would also take -5, 1e3, 0x10 and nan.
local function whole(text, most, digits)
  if not text or #text > digits or not find(text, '^%d+$') or (#text > 1 and sub(text, 1, 1) == '0') then return nil end
  local n = tonumber(text)
  return n <= most and n or nil
end

local cachedLines, cachedMoves, cachedResults, cachedBodies, cacheSize = {}, {}, {}, {}, 0
local function room(lines)
  if cacheSize >= MAX_CACHE then
    cachedLines, cachedMoves, cachedResults, cachedBodies, cacheSize = {}, {}, {}, {}, 0
  end
  cacheSize = cacheSize + lines
end

-- readNow reads what stands behind the asked units of a record's line, "<now>" or "<now>:<fulfilled>": now, fulfilled.
local function readNow(text, asked)
  local now, done = match(text, '^(%d+):?(%d*)$')
  if not now then return nil end
  local fulfilled = done == '' and 0 or whole(done, MAX_LINE, 7)
  now = whole(now, MAX_LINE, 7)
  if not now or not fulfilled or (done ~= '') ~= (fulfilled > 0) or (done == '' and find(text, ':', 1, true)) then return nil end
  if fulfilled == 0 and now == asked then return nil end -- written shorter
  return now, fulfilled
end

-- readLines parses "<sku>=<asked>[:<now>[:<fulfilled>]],…" into {sku = {…}, units = {now…}, n}, with asked = {…} and
-- done = {…} beside where a line has more than asked units. Form '~' are signed movements, form '=' results, which may be 0.
local function readLines(text, form)
  -- One cache a form: a text that is good in one may be bad in another.
  local cached = (form == '~' and cachedMoves or form and cachedResults or cachedLines)[text]
  if cached then return cached end
  local sku, units, n, length, last = {}, {}, 0, -1, 0
  local first, done
  if not form and find(text, ':', 1, true) then first, done = {}, {} end
  local at, stop, number, asked, now = 1
  while at <= #text do
    -- Anchored: a search that may begin anywhere costs the square of the length where there is no match, and a
    -- megabyte of it stopped a server for minutes. The same holds in readCall.
    at, stop, number, asked, now = find(text, '^([^=,]+)=([^,:]+):?([^,]*)', at)
    if not at then return nil end
    at = stop + 2
    local id = whole(number, MAX_STOCK, 16)
    local quantity
    if form == '~' then
      local sign, digits = match(asked, '^([+-])(%d+)$')
      quantity = sign and whole(digits, MAX_MOVE, 9)
      if quantity and sign == '-' then quantity = quantity > 0 and -quantity or nil end
      if now ~= '' then quantity = nil end
    else
      quantity = whole(asked, MAX_LINE, 7)
      if first then first[n + 1], done[n + 1] = quantity, 0 end
      if now ~= '' then
        if form then quantity = nil end
        if quantity then quantity, done[n + 1] = readNow(now, quantity) end
      elseif not form and quantity and quantity < 1 then
        quantity = nil
      end
    end
    if not id or id <= last or not quantity then return nil end
    n, last = n + 1, id
    length = length + 1 + #number + 1 + #asked + (now ~= '' and 1 + #now or 0)
    sku[n], units[n] = number, quantity
  end
  if n == 0 or n > MAX_ORDER_LINES or length ~= #text then return nil end
  cached = { sku = sku, units = units, n = n, asked = first, done = done }
  room(n)
  local cache = form == '~' and cachedMoves or form and cachedResults or cachedLines
  cache[text] = cached
  return cached
end

local readers = {}
local function taking(text)
  local ttl, attempt, lines, flags = match(text, '^.(%d*)|(%d+)|([^|]+)|?(p?k?)$')
  if not ttl or #text ~= 3 + #ttl + #attempt + #lines + (flags ~= '' and 1 + #flags or 0) then return nil end
  local op = { attempt = whole(attempt, MAX_ATTEMPT, 9), attemptText = attempt, text = lines, lines = readLines(lines), named = true }
  if not op.attempt or op.attempt < 1 or not op.lines or op.lines.asked then return nil end
  op.partial, op.known, op.flags = find(flags, 'p', 1, true), find(flags, 'k', 1, true), flags ~= '' and '|' .. flags or ''
  return op, ttl
end
function readers.R(text)
  local op, ttl = taking(text)
  if not op then return nil end
  op.ttl = whole(ttl, MAX_TTL, 8)
  op.head = 'R' .. ttl .. '|' .. op.attemptText .. '|'
  return op.ttl and op.ttl >= MIN_TTL and op or nil
end
function readers.S(text)
  local op, ttl = taking(text)
  if not op or ttl ~= '' then return nil end
  op.head = 'S|' .. op.attemptText .. '|'
  return op
end
-- moving reads "<letter><attempt>[|<rest>]".
local function moving(text)
  local attempt, rest = match(text, '^.(%d+)|?([^|]*)$')
  local n = whole(attempt, MAX_ATTEMPT, 9)
  if not n or n < 1 or #text ~= 1 + #attempt + (rest ~= '' and 1 + #rest or 0) then return nil end
  return { attempt = n }, rest
end
local function resulting(text)
  local op, results = moving(text)
  if not op or results == '' then return op end
  op.results = readLines(results, '=')
  return op.results and op
end
readers.C, readers.X = resulting, resulting
function readers.L(text)
  local op = resulting(text)
  return op and op.attempt < MAX_ATTEMPT and op or nil -- it becomes the next attempt
end
function readers.E(text)
  local op, rest = moving(text)
  return rest == '' and op or nil
end
function readers.U(text)
  local op, till = moving(text)
  if not op then return nil end
  op.till, op.tillText = whole(till, MAX_STOCK, 16), till
  return op.till and op or nil
end
function readers.P(text)
  local op, lines = moving(text)
  if not op or lines == '' then return nil end
  op.lines = readLines(lines)
  return op.lines and not op.lines.asked and op or nil
end
-- The kinds of documents: what their movements do to available and to committed, and whether they name an order.
local DOCUMENTS = {
  receive = { 1, 0 }, adjust = { 1, 0 }, count = { 1, 0 }, ['return'] = { 1, 0, 'may' }, fulfil = { 0, 1, 'must' }, cancel = { 1, -1, 'must' },
}
function readers.M(text)
  local deadline, document, reason, lines, rest = match(text, '^M(%d+)|([%w._-]+)|([%w._-]+)|([^|]+)(.*)$')
  local op = { deadline = whole(deadline, MAX_STOCK, 16), text = lines, lines = lines and readLines(lines, '~') }
  local kind = DOCUMENTS[document]
  if not op.deadline or not op.lines or not kind or #reason > 32 then return nil end
  op.available, op.committed, op.named = kind[1], kind[2], document == 'cancel'
  if rest ~= '' then
    local order, key, asked = match(rest, '^|([%w._:-]+)|(%d+)|(%d+)$')
    key, op.asked = whole(key, MAX_ATTEMPT, 9), whole(asked, MAX_ATTEMPT, 9)
    if not key or key < 1 or not op.asked or #order > 64 then return nil end
    op.order = order
  end
  if (op.order and not kind[3]) or (kind[3] == 'must' and not op.order) then return nil end
  for i = 1, op.lines.n do
    local units = op.lines.units[i]
    if document == 'fulfil' and units >= 0 or document == 'cancel' and units <= 0 or document == 'return' and units < 0 then return nil end
  end
  return op
end
-- Well-formed UTF-8 by lead byte. A name that Postgres cannot store must not get into the log.
local UTF8 = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}
-- isName accepts the one escaped writing of 1 to 64 bytes of UTF-8 without a NUL.
local function isName(name)
  local text = gsub(name, '%%([0-9A-F][0-9A-F])', function(hex)
    local byte = string.char(tonumber(hex, 16))
    return find(byte, '[%w._%z-]') and '%' or byte -- what needs no escape has none
  end)
  -- An escaped percent sign is now like a loose one: count them.
  local loose, escaped = #gsub(text, '[^%%]', ''), select(2, gsub(name, '%%25', ''))
  if #text > 64 or loose ~= escaped then return false end
  for i = 1, #UTF8 do text = gsub(text, UTF8[i], 'x') end
  return not find(text, '[\128-\255]')
end
function readers.N(text)
  local deadline, number, opening, name = match(text, '^N(%d+)|(%d+)=(%d+)|([%w._%%-]+)$')
  local op = { deadline = whole(deadline, MAX_STOCK, 16), opening = whole(opening, MAX_MOVE, 9) }
  local id = whole(number, MAX_STOCK, 16)
  if not op.deadline or not op.opening or not id or id < 1 or #name > 192 or not isName(name) then return nil end
  op.text = number .. '=+' .. opening
  op.lines = readLines(op.text, '~')
  return op
end
-- Changes of the two flags, f and c.
local CHANGES = { [''] = true, ['+f'] = true, ['-f'] = true, ['+c'] = true, ['-c'] = true, ['+f+c'] = true, ['+f-c'] = true, ['-f+c'] = true, ['-f-c'] = true }
function readers.T(text)
  local number, opens, changes, limit = match(text, '^T(%d+)|([%d-]+)|([fc+-]*)|([%d-]+)$')
  local id = whole(number, MAX_STOCK, 16)
  if not id or id < 1 or not CHANGES[changes] then return nil end
  if opens ~= '-' and not whole(opens, MAX_STOCK, 16) or limit ~= '-' and not whole(limit, MAX_MOVE, 9) then return nil end
  return { opens = opens, changes = changes, limit = limit, lines = { sku = { number }, units = { 0 }, n = 1 } }
end

local function readBody(text)
  local cached = cachedBodies[text]
  if cached then return cached end
  local reader = readers[sub(text, 1, 1)]
  local op = reader and reader(text)
  if not op then return nil end
  op.kind, op.body = sub(text, 1, 1), text
  room(1)
  cachedBodies[text] = op
  return op
end

-- readNames reads order ids without buyers into id, the hot case: what a foreign byte would skip is missing from
-- the sum of the lengths.
local op, id, buyer = {}, {}, {}
local function readNames(items, n)
  local left, gap = #items, ' '
  for name, space in gmatch(items, '([%w._:-]+)( ?)') do
    n = n + 1
    if n > MAX_OPS or #name > 64 then return nil end
    id[n] = name
    left, gap = left - #name - #space, space
  end
  return left == 0 and gap == '' and n or nil
end

-- readItems reads "<id>[,<buyer>] …" of one group behind the n operations that stand already.
local function readItems(items, parsed, n)
  local left = #items
  for item, space in gmatch(items, '([^ ]+)( ?)') do
    local who, comma = '', find(item, ',', 1, true)
    left = left - #item - #space
    if (space == '') ~= (left == 0) then return nil end
    if comma then
      item, who = sub(item, 1, comma - 1), sub(item, comma + 1)
      if who == '' or #who > 64 or find(who, '[^%w._:@+-]') or not parsed.named then return nil end
    end
    local name = match(item, '^~?~?([%w._:-]+)$')
    n = n + 1
    if not name or #name > 64 or n > MAX_OPS then return nil end
    op[n], id[n], buyer[n] = parsed, item, who
  end
  return left == 0 and n or nil
end

-- spread notes for the operations from one to another that they are the same and have no buyer.
local function spread(parsed, from, to)
  for i = from, to do op[i], buyer[i] = parsed, '' end
end

-- readCall parses the operations into op, id, buyer and answers their number; nil means something is out of
-- bounds. When all of them are the same one-line reserve or sale without a buyer it answers that operation,
-- too, and leaves op and buyer for spread to fill if they are needed.
local function readCall(text)
  local n, length, previous = 0, -1, nil
  local at, stop, body, items = 1
  while at <= #text do
    at, stop, body, items = find(text, '^([^ ;]+) ([^;]+)', at)
    if not at then return nil end
    at = stop + 2
    local parsed, before = readBody(body), n
    length = length + 2 + #body + #items
    if not parsed or parsed == previous then return nil end
    if find(items, ',', 1, true) or find(items, '~', 1, true) then
      n = readItems(items, parsed, n)
    else
      n = readNames(items, n)
      if n and not previous and length == #text and parsed.attemptText and parsed.lines.n == 1 and not parsed.partial then return n, parsed end
      if n then spread(parsed, before + 1, n) end
    end
    if not n then return nil end
    previous = parsed
  end
  return n > 0 and length == #text and n or nil
end

