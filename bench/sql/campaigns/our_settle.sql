select count(*)
  from execution.finalize_outbox_items($1, $2, $3, array_fill('sent'::text, array[cardinality($3)]), $4,
                                       array_fill(null::text, array[cardinality($3)]))
