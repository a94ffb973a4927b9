select run.id,
       run.function_name,
       run.lock_key,
       run.status,
       run.input_params,
       run.result,
       run.error_message,
       run.retry_count,
       run.retry_at as "retry_at: jiff_sqlx::Timestamp",
       run.started_at as "started_at: jiff_sqlx::Timestamp",
       run.completed_at as "completed_at: jiff_sqlx::Timestamp",
       run.duration_ms,
       run.heartbeat_at as "heartbeat_at: jiff_sqlx::Timestamp",
       run.locked_by,
       run.schedule_id,
       run.scheduled_for as "scheduled_for: jiff_sqlx::Timestamp",
       run.grain,
       run.grain_start as "grain_start: jiff_sqlx::Timestamp",
       run.is_forced,
       run.created_at as "created_at: jiff_sqlx::Timestamp"
  from jobs.job_runs as run
 where run.tenant_id = $1
   and ($2::uuid is null or run.id = $2)
   and ($3::text is null or run.function_name = $3)
   and ($4::text is null or run.status = $4)
   and ($5::uuid is null or run.schedule_id = $5)
   and ($6::uuid is null or run.id < $6)
 order by run.id desc
 limit $7
