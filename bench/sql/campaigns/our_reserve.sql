select windows, cardinality(idempotency_keys) - cardinality(array_remove(verdicts, null)) as reserved
  from execution.begin_windows($1, $2, $3, array_fill(1, array[cardinality($3)]), $4, $5, $6, $7, $8,
                               array_fill(null::text, array[cardinality($6)]), array_fill(null::text, array[cardinality($6)]))
