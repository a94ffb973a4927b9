select id, aggregate_type, aggregate_id, event_type, payload, retry_count
  from m10_recovery.claim_outbox_events($1, $2)
