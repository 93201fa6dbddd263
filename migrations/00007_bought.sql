-- What each buyer has of a SKU with a limit: held, confirmed and shipped, over all his orders. The consumer keeps it in
-- the transaction of the orders, so that an audit reads a page of it and a takeover all of it, and neither counts a
-- million orders. Nobody with nothing has a row, and no SKU without a limit.
--
-- What stands is counted here. Consumers of an earlier version go on writing orders and do not know the table; they know
-- no limit either, unless one was set already: then stop them first.

-- +goose Up
create table bought (
    shard bigint not null,
    sku   bigint not null,
    buyer text collate "C" not null check (buyer <> ''),
    units bigint not null check (units > 0),
    primary key (shard, sku, buyer)
);
insert into bought (shard, sku, buyer, units)
select s.shard, s.sku, r.buyer, sum(case when r.state in ('held', 'confirmed') then l.now else 0 end + l.fulfilled)::bigint
from stock s
    join reservation_line l on l.shard = s.shard and l.sku = s.sku and l.asked >= 0
    join reservation r on r.shard = l.shard and r.order_id = l.order_id and r.attempt = l.attempt
where s.buyer_limit > 0 and r.buyer <> ''
group by s.shard, s.sku, r.buyer
having sum(case when r.state in ('held', 'confirmed') then l.now else 0 end + l.fulfilled) > 0;

-- +goose Down
drop table bought;
