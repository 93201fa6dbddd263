-- How orders move after they were taken: shipped, cancelled and returned in parts, counted, forgotten by Redis
-- (decision 0006). Existing tables may be long: every new column has a constant default, which rewrites nothing, and a
-- new check holds for what is written from here on, so that nothing is read through. The old rows satisfy each of them:
-- what was asked was at least 1, and the new columns are 0.

-- +goose Up
alter table reservation_line
    add column fulfilled bigint not null default 0,  -- units shipped
    add column returned  bigint not null default 0,  -- of these, units that came back, to stock or to scrap
    drop constraint reservation_line_asked_check;    -- 0 for a line that only a replace brought
alter table reservation_line
    add constraint reservation_line_asked_check check (asked >= 0) not valid,
    add constraint reservation_line_fulfilled_check check (fulfilled >= 0) not valid,
    add constraint reservation_line_returned_check check (returned >= 0 and returned <= fulfilled) not valid;

alter table stock_document
    add column order_id    text collate "C",                 -- of the order that it is about
    add column order_key   bigint,                           -- its attempt as the ledger numbers it
    add column order_asked bigint,                           -- the attempt in Redis' record of it, 0: no record is of it
    add column buyer       text collate "C" not null default '', -- of a cancellation: who gets room under a limit back
    add column whole       boolean not null default false,   -- asked for the whole order, whatever that was
    add column units       jsonb,                            -- as lines: what was counted, or scrapped, where nothing moves by it
    add column as_asked    text not null default '',         -- of a count: the moment as it was named; empty: when it was written
    add column as_of_epoch bigint,                           -- of a count: the position that it is as of
    add column as_of_seq   bigint,
    add column pruned      boolean not null default false;   -- the order's row was deleted, its key may come again
create index stock_document_order on stock_document (shard, order_id, order_key) where order_id is not null;
create index stock_document_applied on stock_document (shard, epoch, seq) where state = 'applied';

-- The position that the newest applied count of a SKU is as of: none older is taken.
alter table stock
    add column counted_epoch bigint not null default 0,
    add column counted_seq   bigint not null default 0;

-- Which records Redis has dropped. A row of its own, for the shard's own row is the hot one: who writes a document of an
-- order reads the fence under a lock, and so knows whether Redis still has that order's record.
create table forgetting (
    shard    bigint primary key references shard (number),
    fence    timestamptz not null default 'epoch', -- what last moved at or before it may be dropped already
    reached  timestamptz not null default 'epoch', -- what last moved before it is dropped
    reached_id text collate "C" not null default ''    -- and of what moved at it, ids up to this one
);
insert into forgetting (shard) select number from shard;

-- +goose Down
drop table forgetting;
alter table stock drop column counted_epoch, drop column counted_seq;
drop index stock_document_order, stock_document_applied;
alter table stock_document drop column order_id, drop column order_key, drop column order_asked, drop column buyer,
    drop column whole, drop column units, drop column as_asked, drop column as_of_epoch, drop column as_of_seq,
    drop column pruned;
alter table reservation_line drop constraint reservation_line_asked_check;
alter table reservation_line drop column fulfilled, drop column returned,
    add constraint reservation_line_asked_check check (asked >= 1) not valid;
