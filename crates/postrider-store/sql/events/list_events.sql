select id,
       tenant_id,
       aggregate_type,
       aggregate_id,
       event_type,
       payload as "payload: Json<Box<RawValue>>",
       retry_count,
       created_at as "created_at: jiff_sqlx::Timestamp",
       process_after as "process_after: jiff_sqlx::Timestamp",
       processed_at as "processed_at: jiff_sqlx::Timestamp",
       claimed_by,
       last_error
  from m10_recovery.outbox
 where id > $4
   and ((cardinality($1::text[]) = 0 and $2::integer is null)
        or ('pending' = any ($1) and processed_at is null and claimed_at is null)
        or ('claimed' = any ($1) and processed_at is null and claimed_at is not null)
        or ('processed' = any ($1) and processed_at is not null)
        or (processed_at is null and retry_count > 0 and retry_count > $2))
   and ($3::uuid is null or tenant_id = $3)
 order by id
 limit $5
