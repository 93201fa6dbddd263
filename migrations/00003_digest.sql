-- What the events of each closed epoch were when somebody first read them through: a later edit of history is then
-- seen, and named by its epoch.

-- +goose Up
create table epoch_digest (
    shard    bigint not null,
    epoch    bigint not null,
    last_seq bigint not null check (last_seq >= 0),
    events   bigint not null check (events >= 0),
    digest   text   not null check (digest ~ '^[0-9a-f]{64}$'), -- SHA-256 of the events in order
    computed timestamptz not null default now(),
    primary key (shard, epoch),
    foreign key (shard, epoch) references epoch_end (shard, epoch)
);

-- +goose Down
drop table epoch_digest;
