-- Invoking a function: the run is inserted under its lock key, and unique indexes decide which caller gets the key.

create or replace function jobs.run_with_lock_key(p_tenant_id uuid, p_lock_key text)
returns table (outcome text, run_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
-- A kept plan could use an index that starts with tenant_id, which looks equally good while the tenant has few runs.
set plan_cache_mode = force_custom_plan
as $$
begin
    -- Each of the two queries repeats the predicate of its unique index. The function is stable, so both see the same rows.
    return query
        select case when run.status = 'running' then 'running' else 'retry_pending' end, run.id
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.lock_key = p_lock_key
           and (run.status = 'running' or run.retry_at is not null);
    if found then
        return;
    end if;
    -- No run of this key is active, so the status is completed. A predicate that says so would make the planner search
    -- the index of completed runs.
    return query
        select run.status, run.id
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.lock_key = p_lock_key
           and not run.is_forced and (run.status in ('running', 'completed') or run.retry_at is not null);
end
$$;
comment on function jobs.run_with_lock_key(uuid, text) is
    'Returns the run that has a lock key: running, retry_pending or completed. An active run takes precedence over a '
    'completed one. Returns no row if the key is free.';
revoke all on function jobs.run_with_lock_key(uuid, text) from public;

create or replace function jobs.open_run(
    p_tenant_id uuid, p_id uuid, p_function text, p_grain text, p_at timestamptz, p_entity_hash text, p_input jsonb,
    p_schedule_id uuid, p_force boolean)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key       constant text := jobs.lock_key(p_function, p_tenant_id, p_grain, p_at, p_entity_hash);
    v_is_forced boolean := false;
begin
    for v_try in 1 .. 100 loop
        insert into jobs.job_runs (id, tenant_id, function_name, lock_key, input_params, schedule_id, scheduled_for, grain, grain_start, is_forced)
        values (p_id, p_tenant_id, p_function, v_key, p_input, p_schedule_id, case when p_schedule_id is not null then p_at end,
                p_grain, jobs.grain_start(p_grain, p_at), v_is_forced)
        on conflict do nothing;
        if found then
            outcome := 'acquired';
            run_id := p_id;
            return next;
            return;
        end if;
        select other.outcome, other.run_id
          into outcome, run_id
          from jobs.run_with_lock_key(p_tenant_id, v_key) as other;
        if outcome in ('running', 'retry_pending') or (outcome = 'completed' and not p_force) then
            return next;
            return;
        end if;
        -- Either a completed run has the key and the caller forces a new one, or the run that had the key has just
        -- ended.
        v_is_forced := coalesce(outcome = 'completed', false);
    end loop;
    raise exception 'the lock key % passes from run to run too often; try again', v_key using errcode = 'lock_not_available';
end
$$;
comment on function jobs.open_run(uuid, uuid, text, text, timestamptz, text, jsonb, uuid, boolean) is
    'Inserts a run under its lock key, or returns the run that has the key: acquired, running, retry_pending or '
    'completed. A caller that loses waits for the commit of the winner. With p_force a completed run does not '
    'count; an active one does.';
revoke all on function jobs.open_run(uuid, uuid, text, text, timestamptz, text, jsonb, uuid, boolean) from public;

create or replace function jobs.acquire_run(
    p_tenant_id uuid, p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   constant timestamptz := now();
    v_grain text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select function.grain
      into v_grain
      from jobs.functions as function
     where function.tenant_id = p_tenant_id
       and function.name = p_function;
    if not found then
        return query select 'unknown_function', null::uuid;
        return;
    end if;
    select opened.outcome, opened.run_id
      into strict outcome, run_id
      from jobs.open_run(p_tenant_id, p_id, p_function, v_grain, v_now, p_entity_hash, p_input, null, p_force) as opened;
    if p_force and outcome = 'acquired' then
        perform jobs.audit(p_tenant_id, p_actor, 'run.forced', 'job_run:' || p_id,
                           jobs.lock_key(p_function, p_tenant_id, v_grain, v_now, p_entity_hash));
    end if;
    return next;
end
$$;
comment on function jobs.acquire_run(uuid, uuid, text, text, jsonb, boolean, text) is
    'Invokes a function of a tenant, in the grain of the current database time. Returns the outcome of open_run, or '
    'unknown_function.';
revoke all on function jobs.acquire_run(uuid, uuid, text, text, jsonb, boolean, text) from public;
grant execute on function jobs.acquire_run(uuid, uuid, text, text, jsonb, boolean, text) to postrider_app;
