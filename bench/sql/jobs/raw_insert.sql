insert into raw.job_runs (id, tenant_id, function_name, lock_key, input_params, grain, grain_start)
values ($1, $2, 'noop', $3, $4, '5min', date_trunc('hour', now()))
