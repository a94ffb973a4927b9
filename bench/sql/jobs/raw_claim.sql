update raw.job_runs as run
   set started_at = now(),
       locked_by = $1,
       heartbeat_at = now(),
       claims = run.claims + 1
 where run.id = any (array(
           select due.id
             from raw.job_runs as due
            where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
              and due.tenant_id = $3
              and coalesce(due.retry_at, due.started_at) <= now()
            order by coalesce(due.retry_at, due.started_at)
            limit $2
              for update skip locked))
returning run.id, run.function_name, run.lock_key, run.input_params, run.claims
