-- Ends of job runs: completed, failed with a retry, or failed for good with a dead letter; and recovery of runs whose
-- runner died.

create or replace function jobs.note_failure(p_tenant_id uuid, p_id uuid, p_error text, p_is_retryable boolean)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now      constant timestamptz := now();
    v_run      jobs.job_runs;
    v_policy   record;
    v_retry_at timestamptz;
begin
    select * into strict v_run from jobs.job_runs as run where run.tenant_id = p_tenant_id and run.id = p_id;
    select coalesce(max(function.max_retries), 3) as max_retries,
           coalesce(max(function.initial_delay_ms), 1000) as initial_delay_ms,
           coalesce(max(function.backoff_multiplier), 5) as backoff_multiplier,
           coalesce(max(function.max_delay_ms), 30000) as max_delay_ms
      into strict v_policy
      from jobs.functions as function
     where function.tenant_id = p_tenant_id
       and function.name = v_run.function_name;
    if p_is_retryable and v_run.retry_count < v_policy.max_retries then
        v_retry_at := v_now + interval '1 millisecond'
            * least(v_policy.initial_delay_ms * power(v_policy.backoff_multiplier, least(v_run.retry_count, 20)), v_policy.max_delay_ms);
    end if;
    update jobs.job_runs as run
       set status = 'failed',
           completed_at = v_now,
           error_message = p_error,
           retry_at = v_retry_at,
           locked_by = null,
           heartbeat_at = null
     where run.tenant_id = p_tenant_id
       and run.id = p_id;
    if v_retry_at is null then
        insert into jobs.sync_errors as known
            (tenant_id, error_type, error_code, error_message, error_details, source_entity_type, source_entity_id)
        values (p_tenant_id, 'job_failure',
                case when p_is_retryable then 'MAX_RETRIES_EXCEEDED' else 'EXECUTION_ERROR' end,
                p_error,
                jsonb_build_object('function_name', v_run.function_name,
                                   'lock_key', v_run.lock_key,
                                   'input_params', v_run.input_params,
                                   'retry_count', v_run.retry_count,
                                   'last_attempt_at', to_char(v_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
                'job_run', v_run.id)
        on conflict (tenant_id, source_entity_type, source_entity_id) where not is_resolved do update
           set error_code = excluded.error_code,
               error_message = excluded.error_message,
               error_details = excluded.error_details,
               updated_at = v_now;
    end if;
    return v_retry_at;
end
$$;
comment on function jobs.note_failure(uuid, uuid, text, boolean) is
    'Records a failed attempt: sets retry_at by the retry policy of the function, or writes a dead letter. Returns '
    'retry_at, which is null when the run failed for good. The caller has locked the run.';
revoke all on function jobs.note_failure(uuid, uuid, text, boolean) from public;

create or replace function jobs.resolve_source(
    p_tenant_id uuid, p_source_type text, p_source_id uuid, p_by text, p_note text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    update jobs.sync_errors as error
       set is_resolved = true,
           resolved_at = now(),
           resolved_by = p_by,
           resolution_note = p_note,
           updated_at = now()
     where error.tenant_id = p_tenant_id
       and error.source_entity_type = p_source_type
       and error.source_entity_id = p_source_id
       and not error.is_resolved
$$;
comment on function jobs.resolve_source(uuid, text, uuid, text, text) is
    'Resolves the open dead letter about a source, such as a job run. A source has at most one.';
revoke all on function jobs.resolve_source(uuid, text, uuid, text, text) from public;

create or replace function jobs.end_runs(
    p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text, p_results jsonb[], p_errors text[],
    p_are_retryable boolean[])
returns table (tenant_id uuid, id uuid, status text, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now  constant timestamptz := now();
    v_held record;
begin
    perform tenancy.limit_idle_time('15s');
    -- Lock in the order of keys, so that two runners cannot deadlock.
    perform
       from unnest(p_tenant_ids, p_ids) as given (tenant_id, id)
       join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
      order by given.tenant_id, given.id
        for update of run;
    -- locked_by implies status 'running'. A predicate on status would make the planner search the index of running
    -- runs.
    for v_held in
        select run.tenant_id, run.id, given.error, given.is_retryable
          from unnest(p_tenant_ids, p_ids, p_claims, p_errors, p_are_retryable) as given (tenant_id, id, claim, error, is_retryable)
          join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
         where given.error is not null
           and run.locked_by = p_worker
           and run.claims = given.claim
    loop
        return query
            select v_held.tenant_id, v_held.id, 'failed',
                   jobs.note_failure(v_held.tenant_id, v_held.id, v_held.error, v_held.is_retryable);
    end loop;

    for v_held in
        update jobs.job_runs as run
           set status = 'completed',
               completed_at = v_now,
               result = given.result,
               error_message = null,
               locked_by = null,
               heartbeat_at = null
          from unnest(p_tenant_ids, p_ids, p_claims, p_results, p_errors) as given (tenant_id, id, claim, result, error)
         where run.tenant_id = given.tenant_id
           and run.id = given.id
           and given.error is null
           and run.locked_by = p_worker
           and run.claims = given.claim
        returning run.tenant_id, run.id, run.retry_count
    loop
        -- Only a run that was retried can have a dead letter.
        if v_held.retry_count > 0 then
            perform jobs.resolve_source(v_held.tenant_id, 'job_run', v_held.id, 'postrider', 'a later attempt completed the run');
        end if;
        return query select v_held.tenant_id, v_held.id, 'completed', null::timestamptz;
    end loop;
end
$$;
comment on function jobs.end_runs(uuid[], uuid[], integer[], text, jsonb[], text[], boolean[]) is
    'Records the results of runs, of any number of tenants, that the runner holds under these claims: completed where the '
    'error is null, otherwise failed. A run that is missing from the answer is no longer held under its claim and did '
    'not change.';
revoke all on function jobs.end_runs(uuid[], uuid[], integer[], text, jsonb[], text[], boolean[]) from public;
grant execute on function jobs.end_runs(uuid[], uuid[], integer[], text, jsonb[], text[], boolean[]) to postrider_worker;

create or replace function jobs.tenants_with_stale_runs(p_lease interval)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select run.tenant_id
      from jobs.job_runs as run
     where run.heartbeat_at < now() - p_lease
     group by run.tenant_id
     order by min(run.heartbeat_at)
$$;
comment on function jobs.tenants_with_stale_runs(interval) is
    'Returns the tenants with runs whose last heartbeat is older than p_lease, oldest heartbeat first. Locks nothing; '
    'recover_runs then recovers per tenant.';
revoke all on function jobs.tenants_with_stale_runs(interval) from public;
grant execute on function jobs.tenants_with_stale_runs(interval) to postrider_worker;

create or replace function jobs.recover_runs(p_tenant_id uuid, p_lease interval, p_limit integer default 100)
returns table (id uuid, function_name text, worker text, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- A kept plan could use an index that starts with tenant_id, which looks equally good while the tenant has few runs.
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now   constant timestamptz := now();
    v_stale record;
begin
    perform tenancy.limit_idle_time('15s');
    for v_stale in
        select run.id, run.function_name, run.locked_by
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.heartbeat_at < v_now - p_lease
         order by run.heartbeat_at
         limit p_limit
           for update skip locked
    loop
        return query
            select v_stale.id, v_stale.function_name, v_stale.locked_by,
                   jobs.note_failure(p_tenant_id, v_stale.id, 'the process that ran it went away', true);
    end loop;
end
$$;
comment on function jobs.recover_runs(uuid, interval, integer) is
    'Fails up to p_limit runs of a tenant whose last heartbeat is older than p_lease. They are retried like other failed '
    'runs.';
revoke all on function jobs.recover_runs(uuid, interval, integer) from public;
grant execute on function jobs.recover_runs(uuid, interval, integer) to postrider_worker;
