insert into raw.outbox (aggregate_type, aggregate_id, event_type, payload, process_after)
select event.aggregate_type, event.aggregate_id, event.event_type, event.payload::jsonb, now()
  from unnest($1::text[], $2::text[], $3::text[], $4::text[])
       as event (aggregate_type, aggregate_id, event_type, payload)
returning id
