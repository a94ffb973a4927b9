insert into {table} (aggregate_type, aggregate_id, event_type, payload, process_after)
select 'order',
       'order-' || n,
       'order.placed',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 1000, 'total', n % 500 + 0.5, 'currency', 'EUR'),
       now()
  from generate_series(1, $1::bigint) as n
