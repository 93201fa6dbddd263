-- The roles of the processes, each with what it needs and no more. Run it with psql as a superuser, or as whoever owns
-- the database and may make roles:
--
--   psql -v owner_password=… -v producer_password=… -v consumer_password=… -v reconciler_password=… \
--        -f deploy/access/postgres.sql postgres://…/stockpipe
--
-- Once before `stockpipe-reconciler migrate`, which makes the tables as stockpipe_owner, and once after it, which
-- grants them; and again after each migrate. It may be repeated at any time: passwords become what they are given as.
\set ON_ERROR_STOP on

begin;
select format('create role %I login', name)
from unnest(array['stockpipe_owner', 'stockpipe_producer', 'stockpipe_consumer', 'stockpipe_reconciler']) name
where not exists (select from pg_roles where rolname = name)
\gexec
alter role stockpipe_owner      password :'owner_password';
alter role stockpipe_producer   password :'producer_password';
alter role stockpipe_consumer   password :'consumer_password';
alter role stockpipe_reconciler password :'reconciler_password';

select format('revoke all on database %I from public', current_database()),
       format('grant connect on database %I to stockpipe_owner, stockpipe_producer, stockpipe_consumer, stockpipe_reconciler', current_database())
\gexec
revoke create on schema public from public;
grant usage, create on schema public to stockpipe_owner;
grant usage on schema public to stockpipe_producer, stockpipe_consumer, stockpipe_reconciler;

-- A reconciler does what a consumer does where none does it, and ends sessions of consumers that were stopped.
grant stockpipe_consumer to stockpipe_reconciler;

select to_regclass('goose_db_version') is not null as migrated
\gset
\if :migrated

-- A grant that an earlier version made and this one does not ends here.
revoke all on all tables in schema public from stockpipe_producer, stockpipe_consumer, stockpipe_reconciler;
revoke all on all sequences in schema public from stockpipe_producer, stockpipe_consumer, stockpipe_reconciler;

grant select on goose_db_version, ledger, shard, epoch_end, sku, stock, reservation, reservation_line, stock_document
    to stockpipe_producer, stockpipe_consumer, stockpipe_reconciler;

-- The producer writes SKUs and documents, shortfalls and its own heartbeat. Stock and orders it changes in Redis only.
grant insert, update (deleted) on sku to stockpipe_producer; -- update: to lock the rows of a document's SKUs, and to delete one
grant select, update (shard) on forgetting to stockpipe_producer; -- to lock, as the row of a document's order: nothing is changed
grant update (shard) on reservation to stockpipe_producer;
grant select, update on sequence sku_number_seq to stockpipe_producer, stockpipe_consumer;
grant insert on stock_document, outcome to stockpipe_producer;
grant select, insert, update, delete on producer to stockpipe_producer;

-- The consumer applies the log. History it can add to, and not change.
grant update (applied, state, reason, changed, claim, claim_nonce) on shard to stockpipe_consumer;
grant select, insert on event, orphan to stockpipe_consumer;
grant insert, update on stock, reservation to stockpipe_consumer;
grant insert, update (now, fulfilled, returned), delete on reservation_line to stockpipe_consumer; -- delete: what a replace brought and took
grant select, insert, update (units), delete on bought to stockpipe_consumer; -- delete: who has nothing has no row
grant insert on sku, dead_event to stockpipe_consumer; -- sku: rebuilt from the log
grant insert, update (state, epoch, seq, idx, settled) on stock_document to stockpipe_consumer;
grant select, insert, update on assignment to stockpipe_consumer;
grant select, insert, update, delete on consumer to stockpipe_consumer;

-- The reconciler opens shards, finishes documents and reads everything.
grant select on all tables in schema public to stockpipe_reconciler;
grant insert, update on shard to stockpipe_reconciler;
grant insert on epoch_end, epoch_digest to stockpipe_reconciler;
grant update (deadline_ms, pruned) on stock_document to stockpipe_reconciler;
grant insert, update on forgetting to stockpipe_reconciler;
grant delete on reservation, reservation_line to stockpipe_reconciler; -- prune
grant insert, update on turn, repair to stockpipe_reconciler;
grant update (retention_ms) on ledger to stockpipe_reconciler;
grant delete on producer to stockpipe_reconciler;

\endif
commit;
