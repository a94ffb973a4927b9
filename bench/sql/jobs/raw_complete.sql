update raw.job_runs
   set status = 'completed',
       completed_at = now(),
       result = input_params,
       locked_by = null,
       heartbeat_at = null
 where id = any ($2)
   and locked_by = $1
