-- Due replies, spread over the accounts. Sending needs no rows of their messages.
insert into {table} (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id)
select ('01980000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       $1,
       ('01980000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ($2::uuid[])[1 + n % cardinality($2::uuid[])],
       'null',
       'C' || n % 1000,
       jsonb_build_object('text', 'Your order number ' || n || ' is on its way and arrives on Tuesday.', 'thread', n::text),
       ('01980000-0000-7000-a000-' || lpad(to_hex(n), 12, '0'))::uuid
  from generate_series(1, $3) as n
