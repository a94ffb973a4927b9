select events.complete_outbox_events($1, $2::bigint[], array_fill(null::text, array[cardinality($2::bigint[])]))
