select windows, cardinality(idempotency_keys) - cardinality(array_remove(verdicts, null)) as reserved
  from execution.begin_windows($1, $2, array_fill(1, array[cardinality($2)]), $3, $4, $5, $6, $7,
                               array_fill(null::text, array[cardinality($5)]), array_fill(null::text, array[cardinality($5)]))
