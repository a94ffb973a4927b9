select count(m10_recovery.complete_outbox_event(done.id, $1, true, null))
  from unnest($2::bigint[]) as done (id)
