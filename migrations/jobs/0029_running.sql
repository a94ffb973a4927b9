-- The life of a run: acquired under its lock key, claimed by a runner, ended, retried by itself, recovered.
-- Safe beside running workers: it adds functions and touches no table.

-- Makes a run under a lock key, or says who has the key: `acquired`, `running`, `retry_pending`, `completed`. The unique indexes
-- decide; whoever loses waits for the winner's commit and then looks. Forced, a completed run does not count; an active one does.
create function jobs.open_run(
    p_tenant_id uuid, p_id uuid, p_function text, p_grain text, p_at timestamptz, p_entity_hash text, p_input jsonb,
    p_schedule_id uuid, p_force boolean)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_key       constant text := jobs.lock_key(p_function, p_tenant_id, p_grain, p_at, p_entity_hash);
    v_is_forced boolean := false;
    v_id        uuid;
    v_status    text;
begin
    for v_try in 1 .. 100 loop
        insert into jobs.job_runs (id, tenant_id, function_name, lock_key, input_params, schedule_id, scheduled_for, grain, grain_start, is_forced)
        values (p_id, p_tenant_id, p_function, v_key, p_input, p_schedule_id, case when p_schedule_id is not null then p_at end,
                p_grain, jobs.grain_start(p_grain, p_at), v_is_forced)
        on conflict do nothing;
        if found then
            return query select 'acquired', p_id;
            return;
        end if;

        -- Who is active counts more than who was. Each of the two is asked for in the words of the index that decided, and the tenant
        -- so that no other index fits: an index of all runs of a tenant looks just as good while there are few.
        return query
            select case when run.status = 'running' then 'running' else 'retry_pending' end, run.id
              from jobs.job_runs as run
             where run.tenant_id is not distinct from p_tenant_id
               and run.lock_key = v_key
               and (run.status = 'running' or run.retry_at is not null);
        if found then
            return;
        end if;
        select run.id, run.status
          into v_id, v_status
          from jobs.job_runs as run
         where run.tenant_id is not distinct from p_tenant_id
           and run.lock_key = v_key
           and not run.is_forced and (run.status in ('running', 'completed') or run.retry_at is not null);
        if v_status = 'completed' and not p_force then
            return query select 'completed', v_id;
            return;
        end if;
        -- Either a completed run has the key, and it is to be run all the same; or who had it has just ended.
        v_is_forced := coalesce(v_status = 'completed', false);
    end loop;
    raise exception 'the lock key % changes hands too often; try again', v_key using errcode = 'lock_not_available';
end
$$;

-- Acquires a lock key in the grain of this moment, by the database's clock.
create function jobs.acquire_run(p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_grain     text;
begin
    perform jobs.keep_moving();
    select function.grain
      into v_grain
      from jobs.functions as function
     where function.tenant_id = v_tenant_id
       and function.name = p_function;
    if not found then
        return query select 'unknown_function', null::uuid;
        return;
    end if;
    return query
        select opened.outcome, opened.run_id
          from jobs.open_run(v_tenant_id, p_id, p_function, v_grain, now(), p_entity_hash, p_input, null, p_force) as opened;
    if p_force then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        select v_tenant_id, p_actor, 'run.forced', 'job_run:' || run.id, run.lock_key
          from jobs.job_runs as run
         where run.id = p_id
           and run.tenant_id is not distinct from v_tenant_id;
    end if;
end
$$;

-- Takes up to `p_limit` runs that are due and that nobody holds, tenant by tenant, beginning behind `p_after`, and of no tenant
-- more than there is room for: `p_rooms` says it for `p_tenants`, `p_room` for all others. Only functions that the caller can run:
-- of these kinds, and of what comes with Postrider these. A run whose function is gone is taken, so that it ends.
create function jobs.claim_runs(
    p_worker text, p_limit integer, p_room integer, p_tenants uuid[], p_rooms integer[], p_kinds text[], p_builtins text[], p_after uuid)
returns table (id uuid, tenant_id uuid, function_name text, lock_key text, input_params jsonb, retry_count integer, claims integer,
               scheduled_for timestamptz, function_id uuid, kind text, target text, timeout_seconds integer, sealed_secret bytea)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_tenant          uuid := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
    -- Once around, and no further.
    v_is_second_round boolean := p_after is null;
    v_room            integer;
    v_left            integer := p_limit;
    v_found           uuid[];
    v_ids             uuid[] := '{}';
begin
    perform jobs.keep_moving();
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'say who claims' using errcode = 'invalid_parameter_value';
    end if;
    while v_left > 0 loop
        select waiting.tenant_id
          into v_tenant
          from jobs.job_runs as waiting
         where ((waiting.status = 'running' and waiting.locked_by is null) or waiting.retry_at is not null)
           and waiting.tenant_id > v_tenant
           and (not v_is_second_round or p_after is null or waiting.tenant_id <= p_after)
         order by waiting.tenant_id, coalesce(waiting.retry_at, waiting.started_at)
         limit 1;
        if not found then
            exit when v_is_second_round;
            v_is_second_round := true;
            v_tenant := '00000000-0000-0000-0000-000000000000';
            continue;
        end if;
        v_room := least(v_left, coalesce(p_rooms[array_position(p_tenants, v_tenant)], p_room));
        continue when v_room < 1;
        select array_agg(due.id)
          into v_found
          from (select due.id
                  from jobs.job_runs as due
                  left join jobs.functions as function on function.tenant_id = due.tenant_id and function.name = due.function_name
                 where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
                   and due.tenant_id = v_tenant
                   and coalesce(due.retry_at, due.started_at) <= now()
                   and (function.id is null
                        or (function.kind = any (p_kinds) and (function.kind <> 'builtin' or function.target = any (p_builtins))))
                 order by coalesce(due.retry_at, due.started_at)
                 limit v_room
                   for update of due skip locked) as due;
        v_ids := v_ids || coalesce(v_found, '{}');
        v_left := v_left - coalesce(cardinality(v_found), 0);
    end loop;

    return query
        with claimed as (
            update jobs.job_runs as run
               set status = 'running',
                   retry_count = run.retry_count + (run.status = 'failed')::integer,
                   retry_at = null,
                   started_at = now(),
                   completed_at = null,
                   locked_by = p_worker,
                   -- Not the time at which the claim began, which may have waited.
                   heartbeat_at = clock_timestamp(),
                   claims = run.claims + 1
             where run.id = any (v_ids)
            returning run.*
        )
        select run.id, run.tenant_id, run.function_name, run.lock_key, run.input_params, run.retry_count, run.claims,
               run.scheduled_for, function.id, function.kind, function.target, function.timeout_seconds, function.sealed_secret
          from claimed as run
          left join jobs.functions as function on function.tenant_id = run.tenant_id and function.name = run.function_name;
end
$$;

-- Ends an attempt that failed: again at its time, or for good, with a letter to people. The caller holds the row.
create function jobs.note_failure(p_id uuid, p_error text, p_is_retryable boolean)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run      jobs.job_runs;
    v_policy   record;
    v_retry_at timestamptz;
begin
    select * into strict v_run from jobs.job_runs as run where run.id = p_id;
    select coalesce(max(function.max_retries), 3) as max_retries,
           coalesce(max(function.initial_delay_ms), 1000) as initial_delay_ms,
           coalesce(max(function.backoff_multiplier), 5) as backoff_multiplier,
           coalesce(max(function.max_delay_ms), 30000) as max_delay_ms
      into strict v_policy
      from jobs.functions as function
     where function.tenant_id = v_run.tenant_id
       and function.name = v_run.function_name;
    if p_is_retryable and v_run.retry_count < v_policy.max_retries then
        v_retry_at := now() + interval '1 millisecond'
            * least(v_policy.initial_delay_ms * power(v_policy.backoff_multiplier, least(v_run.retry_count, 20)), v_policy.max_delay_ms);
    end if;
    update jobs.job_runs as run
       set status = 'failed',
           completed_at = now(),
           error_message = p_error,
           retry_at = v_retry_at,
           locked_by = null,
           heartbeat_at = null
     where run.id = p_id;
    if v_retry_at is null then
        insert into jobs.sync_errors as known
            (tenant_id, error_type, error_code, error_message, error_details, source_entity_type, source_entity_id)
        values (v_run.tenant_id, 'job_failure',
                case when p_is_retryable then 'MAX_RETRIES_EXCEEDED' else 'EXECUTION_ERROR' end,
                p_error,
                jsonb_build_object('function_name', v_run.function_name,
                                   'lock_key', v_run.lock_key,
                                   'input_params', v_run.input_params,
                                   'retry_count', v_run.retry_count,
                                   'last_attempt_at', to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
                'job_run', v_run.id)
        on conflict (tenant_id, source_entity_type, source_entity_id) where not is_resolved do update
           set error_code = excluded.error_code,
               error_message = excluded.error_message,
               error_details = excluded.error_details,
               updated_at = now();
    end if;
    return v_retry_at;
end
$$;

-- Closes the letter about a run, if there is an open one.
create function jobs.resolve_source(p_tenant_id uuid, p_source_ids uuid[], p_by text, p_note text)
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
       and error.source_entity_type = 'job_run'
       and error.source_entity_id = any (p_source_ids)
       and not error.is_resolved
$$;

-- Writes down what became of runs, each under its claim: completed where there is no error. Those that are not in the answer
-- are not the caller's any more, and did not change.
create function jobs.end_runs(
    p_worker text, p_ids uuid[], p_claims integer[], p_results jsonb[], p_errors text[], p_are_retryable boolean[])
returns table (id uuid, status text, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_held record;
begin
    perform jobs.keep_moving();
    -- In the order of the ids, so that nobody waits for somebody who waits for us.
    perform
       from jobs.job_runs as run
      where run.id = any (p_ids)
      order by run.id
        for update;
    -- Only what is running is held by somebody. Asked for by its status, it would be looked for among all that wait.
    for v_held in
        select run.id, given.error, given.is_retryable
          from unnest(p_ids, p_claims, p_errors, p_are_retryable) as given (id, claim, error, is_retryable)
          join jobs.job_runs as run on run.id = given.id
         where given.error is not null
           and run.locked_by = p_worker
           and run.claims = given.claim
    loop
        return query select v_held.id, 'failed', jobs.note_failure(v_held.id, v_held.error, v_held.is_retryable);
    end loop;

    for v_held in
        update jobs.job_runs as run
           set status = 'completed',
               completed_at = now(),
               result = given.result,
               error_message = null,
               locked_by = null,
               heartbeat_at = null
          from unnest(p_ids, p_claims, p_results, p_errors) as given (id, claim, result, error)
         where run.id = given.id
           and given.error is null
           and run.locked_by = p_worker
           and run.claims = given.claim
        returning run.id, run.tenant_id, run.retry_count
    loop
        -- Most runs were never given up: only those that were tried again can have a letter.
        if v_held.retry_count > 0 then
            perform jobs.resolve_source(v_held.tenant_id, array[v_held.id], 'postrider', 'a later attempt completed the run');
        end if;
        return query select v_held.id, 'completed', null::timestamptz;
    end loop;
end
$$;

-- Says that the caller lives. Answers with the runs that it still holds. It waits for nobody: a row that somebody has locked keeps the
-- heartbeat it has, or one run would stop those of all others.
create function jobs.heartbeat_runs(p_worker text, p_ids uuid[], p_claims integer[])
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform jobs.keep_moving();
    return query
        with held as materialized (
            select run.id
              from unnest(p_ids, p_claims) as given (id, claim)
              join jobs.job_runs as run on run.id = given.id and run.claims = given.claim
             where run.status = 'running'
               and run.locked_by = p_worker
        ), free as materialized (
            select run.id
              from jobs.job_runs as run
             where run.id in (select held.id from held)
               and run.status = 'running'
               and run.locked_by = p_worker
               for update skip locked
        ), beaten as (
            update jobs.job_runs as run
               set heartbeat_at = clock_timestamp()
              from free
             where run.id = free.id
        )
        select held.id from held;
end
$$;

-- Fails runs whose process has not been heard of for so long. They are retried like any other.
create function jobs.recover_runs(p_lease interval, p_limit integer default 100)
returns table (id uuid, tenant_id uuid, function_name text, worker text, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_stale record;
begin
    perform jobs.keep_moving();
    for v_stale in
        select run.id, run.tenant_id, run.function_name, run.locked_by
          from jobs.job_runs as run
         where run.heartbeat_at < now() - p_lease
         order by run.heartbeat_at
         limit p_limit
           for update skip locked
    loop
        return query
            select v_stale.id, v_stale.tenant_id, v_stale.function_name, v_stale.locked_by,
                   jobs.note_failure(v_stale.id, 'the process that ran it went away', true);
    end loop;
end
$$;

revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.acquire_run(uuid, text, text, jsonb, boolean, text)
    to postrider_app;
grant execute on function
    jobs.claim_runs(text, integer, integer, uuid[], integer[], text[], text[], uuid),
    jobs.end_runs(text, uuid[], integer[], jsonb[], text[], boolean[]),
    jobs.heartbeat_runs(text, uuid[], integer[]),
    jobs.recover_runs(interval, integer)
    to postrider_worker;
