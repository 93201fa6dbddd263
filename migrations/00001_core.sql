-- The system of record. Redis may lose its tail; what stands here is an exact past of it (decision 0003).
-- Every number is bigint: quantities, sequence numbers and epochs never meet the end of an int4.

-- +goose Up
-- The ledger's own random id is part of the token that Redis compares: another ledger's Redis is refused.
create table ledger (
    only_row boolean primary key default true check (only_row),
    id       text not null default replace(gen_random_uuid()::text, '-', ''),
    created  timestamptz not null default now()
);
insert into ledger default values;

create table shard (
    number      bigint primary key check (number >= 0),
    writer      text   not null default 'redis' check (writer in ('redis', 'postgres')),
    epoch       bigint not null default 0 check (epoch >= 0),
    applied     bigint not null default 0 check (applied >= 0),   -- seq reached within epoch
    claim       bigint not null default 0 check (claim >= 0),     -- newest epoch given to a takeover
    claim_nonce text   not null default '',                       -- random nonce of that attempt
    state       text   not null default 'new' check (state in ('new', 'rebuilding', 'open', 'halted')),
    library     bigint not null default 1,                        -- version of the function library in force
    reason      text   not null default '',                       -- why halted
    changed     timestamptz not null default now(),               -- of state
    opened      timestamptz                                       -- last time it said open
);

-- Where each closed epoch ended. A position beyond is lost; an older epoch without a row ended at 0.
create table epoch_end (
    shard    bigint not null references shard (number),
    epoch    bigint not null,
    last_seq bigint not null check (last_seq >= 0),
    closed   timestamptz not null default now(),
    primary key (shard, epoch)
);

-- SKU text to number: a SKU is data, its number is what Redis knows. A re-created SKU gets a new number.
create table sku (
    number  bigint generated always as identity primary key,
    shard   bigint not null references shard (number),
    sku     text collate "C" not null check (octet_length(sku) between 1 and 64),
    opening bigint not null check (opening >= 0),
    created timestamptz not null default now(),
    deleted timestamptz
);
create unique index sku_alive on sku (sku) where deleted is null;
create index sku_by_shard on sku (shard, number);

-- One row per SKU number, made by the entry of its opening document.
create table stock (
    sku          bigint primary key references sku (number),
    shard        bigint not null,
    available    bigint not null check (available >= 0),
    held         bigint not null check (held >= 0),
    committed    bigint not null check (committed >= 0),
    opens_ms     bigint not null default 0,     -- Redis time, ms since 1970
    frozen       boolean not null default false,
    closed       boolean not null default false,
    buyer_limit  bigint not null default 0 check (buyer_limit >= 0),
    doubt        text not null default ''        -- why frozen by the ledger: both figures
);
create index stock_by_shard on stock (shard, sku);

-- Insert-only: every operation of every entry, in the grammar of decision 0001. after_image stands on idx 0.
create table event (
    shard       bigint not null,
    epoch       bigint not null,
    seq         bigint not null,
    idx         bigint not null,
    id          text collate "C" not null,       -- order id, ~document, ~~ours
    buyer       text collate "C" not null default '',
    body        text collate "C" not null,
    at_ms       bigint not null,                  -- Redis time of the call
    after_image text collate "C" not null default '',
    primary key (shard, epoch, seq, idx)
);
-- Few operations are documents: this finds the entry of one, and proves that each was settled once.
create index event_document on event (shard, id) where starts_with(id, '~');

-- One row per attempt of an order. attempt is the key; asked is the attempt as the client numbered it (they
-- differ once a record was dropped after retention and the client began again: protocol D).
create table reservation (
    shard      bigint not null,
    order_id   text collate "C" not null,
    attempt    bigint not null check (attempt >= 1),
    asked      bigint not null check (asked >= 1),
    state      text   not null check (state in ('held', 'confirmed', 'released', 'expired', 'cancelled', 'fulfilled')),
    buyer      text collate "C" not null default '',
    expires_ms bigint not null default 0,          -- Redis time at which the hold is due, 0 = never
    due        timestamptz,                        -- persisted + ttl by Postgres' clock; null when never
    epoch      bigint not null,                    -- position of the last transition
    seq        bigint not null,
    idx        bigint not null,
    moved      timestamptz not null default now(), -- when the last transition was persisted
    primary key (shard, order_id, attempt)
);
create index reservation_due on reservation (shard, due) where state = 'held';
create index reservation_moved on reservation (shard, moved);

create table reservation_line (
    shard    bigint not null,
    order_id text collate "C" not null,
    attempt  bigint not null,
    sku      bigint not null,
    asked    bigint not null check (asked >= 1),
    now      bigint not null check (now >= 0),
    primary key (shard, order_id, attempt, sku)
);

-- Documents are written here first, under ids that are unique for ever; only the consumer says applied or
-- refused, in the transaction of the entry (protocol F).
create table stock_document (
    id          text collate "C" primary key,      -- as the client wrote it; ~open:<number> is ours
    shard       bigint not null,
    kind        text   not null,                   -- opening, receive, adjust
    reason      text   not null default '',
    note        text   not null default '',        -- free text, never leaves Postgres
    lines       jsonb  not null,                   -- [{"sku": number, "units": signed}]
    state       text   not null default 'written' check (state in ('written', 'applied', 'refused')),
    deadline_ms bigint not null,                   -- Redis time after which apply refuses it as late
    epoch       bigint, seq bigint, idx bigint,    -- of its entry
    written     timestamptz not null default now(),
    settled     timestamptz
);
create index stock_document_written on stock_document (shard, written) where state = 'written';
create index stock_document_settled on stock_document (shard, settled) where state <> 'written';

-- Entries of a closed epoch beyond its end: never stock, reported lost.
create table orphan (
    shard    bigint not null,
    epoch    bigint not null,
    seq      bigint not null,
    raw      jsonb  not null,
    recorded timestamptz not null default now(),
    primary key (shard, epoch, seq)
);

-- Entries that cannot be applied; the shard halts on them.
create table dead_event (
    id       bigint generated always as identity primary key,
    shard    bigint not null,
    epoch    bigint not null,
    seq      bigint not null,
    raw      jsonb  not null,
    reason   text   not null,
    recorded timestamptz not null default now()
);

-- What must be told but leaves no entry: lost, shortfall, rejected.
create table outcome (
    id       bigint generated always as identity primary key,
    shard    bigint,
    order_id text collate "C" not null,
    attempt  bigint not null default 1,
    code     text   not null,
    detail   jsonb  not null default '{}',
    recorded timestamptz not null default now()
);
-- Told again it is the same row, whatever the figures of the moment in its detail.
create unique index outcome_once on outcome (order_id, attempt, code, coalesce(shard, -1));

-- Every repair, with its evidence before and after.
create table repair (
    id     bigint generated always as identity primary key,
    shard  bigint not null,
    class  text   not null,
    verb   text   not null,
    by     text   not null,
    before jsonb  not null default '{}',
    after  jsonb  not null default '{}',
    began  timestamptz not null default now(),
    ended  timestamptz
);

-- shard → consumer, renewed while it lives. Correctness needs only the row lock on shard; this shares the work.
create table assignment (
    shard    bigint primary key references shard (number),
    consumer text not null,
    until    timestamptz not null
);
create table consumer (
    id   text primary key,
    seen timestamptz not null default now()
);

-- Who may repair a shard now.
create table turn (
    shard  bigint primary key references shard (number),
    holder text not null,
    until  timestamptz not null
);

-- Which producers live, and which library versions they carry.
create table producer (
    id        text primary key,
    libraries bigint[] not null,
    seen      timestamptz not null default now()
);

-- +goose Down
drop table producer, turn, consumer, assignment, repair, outcome, dead_event, orphan, stock_document,
    reservation_line, reservation, event, stock, sku, epoch_end, shard, ledger;
