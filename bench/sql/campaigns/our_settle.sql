select count(*)
  from execution.finalize_outbox_items($1, $2, array_fill('sent'::text, array[cardinality($2)]), $3,
                                       array_fill(null::text, array[cardinality($2)]))
