select m10_recovery.publish_outbox(event.aggregate_type, event.aggregate_id, event.event_type, event.payload::jsonb) as id
  from unnest($1::text[], $2::text[], $3::text[], $4::text[])
       as event (aggregate_type, aggregate_id, event_type, payload)
