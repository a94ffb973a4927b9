insert into m10_recovery.outbox
       (aggregate_type, aggregate_id, event_type, payload, process_after, claimed_at, claimed_by, processed_at)
select 'order',
       'order-' || n,
       'order.placed',
       jsonb_build_object('order', n, 'customer', 'customer-' || n % 1000, 'total', n % 500 + 0.5, 'currency', 'EUR'),
       now(),
       now(),
       'bench',
       now()
  from generate_series(1, $1::bigint) as n
