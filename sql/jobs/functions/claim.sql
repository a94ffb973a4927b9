-- Claims of job runs by runners, and the heartbeats that keep a claim alive.

create or replace function jobs.claim_runs(
    p_worker text, p_limit integer, p_room integer, p_tenants uuid[], p_rooms integer[], p_kinds text[],
    p_builtins text[], p_after uuid)
returns table (id uuid, tenant_id uuid, function_name text, lock_key text, input_params jsonb, retry_count integer,
               claims integer, scheduled_for timestamptz, function_id uuid, kind text, target text,
               timeout_seconds integer, sealed_secret bytea)
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
    -- The second round ends at p_after, so that each tenant is visited once.
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
                   -- Not now(): the claim may have waited for locks since its transaction began.
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
comment on function jobs.claim_runs(text, integer, integer, uuid[], integer[], text[], text[], uuid) is
    'Claims up to p_limit due runs that no runner holds, tenant by tenant in id order, starting after tenant '
    'p_after. Takes at most p_rooms runs of each tenant in p_tenants and p_room of every other tenant. Claims only '
    'functions that the runner can run (p_kinds, p_builtins), and runs whose function was removed, so that they '
    'end.';
revoke all on function jobs.claim_runs(text, integer, integer, uuid[], integer[], text[], text[], uuid) from public;
grant execute on function
    jobs.claim_runs(text, integer, integer, uuid[], integer[], text[], text[], uuid)
    to postrider_worker;

create or replace function jobs.heartbeat_runs(p_worker text, p_ids uuid[], p_claims integer[])
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
comment on function jobs.heartbeat_runs(text, uuid[], integer[]) is
    'Records a heartbeat for the runs that the runner holds under these claims, and returns the ids of those it '
    'still holds. A row that another transaction has locked keeps its old heartbeat, so that one run cannot delay '
    'the others.';
revoke all on function jobs.heartbeat_runs(text, uuid[], integer[]) from public;
grant execute on function jobs.heartbeat_runs(text, uuid[], integer[]) to postrider_worker;
