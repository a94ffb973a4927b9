select job_id, outbox_id, item_id, idempotency_key, verdict
  from execution.begin_outbox_items($1, $2, array_fill(1, array[cardinality($2)]), $3, $4, $5, $6, $7,
                                    array_fill(null::text, array[cardinality($5)]), array_fill(null::text, array[cardinality($5)]))
