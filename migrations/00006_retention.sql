-- How long Redis remembers what came to rest is one value for all processes of a ledger (decision 0006): who forgets
-- earlier than another believes lets an order begin anew that the other still knows. Null until a reconciler has said it.

-- +goose Up
alter table ledger add column retention_ms bigint check (retention_ms > 0);

-- +goose Down
alter table ledger drop column retention_ms;
