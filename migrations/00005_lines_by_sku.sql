-- What buyers have of a SKU with a limit is counted from the lines of its orders. The table is long and written to all
-- the time: the index is built beside the writers, and one that was left half built is thrown away first. Its condition
-- always holds, and only who states it gets the index: while statistics are missing, Postgres would else find one line of
-- one order among all lines of its SKU.

-- +goose NO TRANSACTION
-- +goose Up
drop index concurrently if exists reservation_line_sku;
create index concurrently reservation_line_sku on reservation_line (shard, sku) where asked >= 0;

-- +goose Down
drop index concurrently if exists reservation_line_sku;
