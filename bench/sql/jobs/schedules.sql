-- Due schedules, each with its own lock key.
insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, entities, entity_hash, next_fire_at)
select jobs.new_id(),
       $1,
       'noop',
       '0 0 1 1 *',
       'UTC',
       json_build_object('order', n),
       lpad(to_hex(n), 12, '0'),
       date_trunc('year', now(), 'UTC')
  from generate_series(1, $2) as n
