-- Claims of job runs by runners, and the heartbeats that keep a claim alive.

create or replace function jobs.can_run(p_kind text, p_target text, p_kinds text[], p_builtins text[])
returns boolean
language sql
immutable
parallel safe
return p_kind is null or (p_kind = any (p_kinds) and (p_kind <> 'builtin' or p_target = any (p_builtins)));
comment on function jobs.can_run(text, text, text[], text[]) is
    'Returns whether a runner with these kinds and Rust functions takes runs of a function. Every runner takes runs whose '
    'function was removed (p_kind is null), so that they end.';
revoke all on function jobs.can_run(text, text, text[], text[]) from public;

create or replace function jobs.tenants_with_due_runs(
    p_limit integer, p_per_tenant integer, p_tenant_ids uuid[], p_per_tenant_ids integer[], p_kinds text[],
    p_builtins text[], p_after uuid)
returns table (tenant_id uuid, runs integer)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now             constant timestamptz := now();
    -- The second round ends at p_after, so that each tenant is visited once.
    v_is_second_round boolean := p_after is null;
    v_limit           integer;
    v_left            integer := p_limit;
begin
    tenant_id := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
    while v_left > 0 loop
        select waiting.tenant_id
          into tenant_id
          from jobs.job_runs as waiting
         where ((waiting.status = 'running' and waiting.locked_by is null) or waiting.retry_at is not null)
           and waiting.tenant_id > tenants_with_due_runs.tenant_id
           and (not v_is_second_round or p_after is null or waiting.tenant_id <= p_after)
         order by waiting.tenant_id, coalesce(waiting.retry_at, waiting.started_at)
         limit 1;
        if not found then
            exit when v_is_second_round;
            v_is_second_round := true;
            tenant_id := '00000000-0000-0000-0000-000000000000';
            continue;
        end if;
        v_limit := least(v_left, coalesce(p_per_tenant_ids[array_position(p_tenant_ids, tenant_id)], p_per_tenant));
        continue when v_limit < 1;
        select count(*)::integer
          into runs
          from (select
                  from jobs.job_runs as due
                  left join jobs.functions as function on function.tenant_id = due.tenant_id and function.name = due.function_name
                 where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
                   and due.tenant_id = tenants_with_due_runs.tenant_id
                   and coalesce(due.retry_at, due.started_at) <= v_now
                   and jobs.can_run(function.kind, function.target, p_kinds, p_builtins)
                 order by coalesce(due.retry_at, due.started_at)
                 limit v_limit) as due;
        continue when runs = 0;
        v_left := v_left - runs;
        return next;
    end loop;
end
$$;
comment on function jobs.tenants_with_due_runs(integer, integer, uuid[], integer[], text[], text[], uuid) is
    'Chooses up to p_limit due runs that no runner holds, and returns their number per tenant, in the order of tenant ids '
    'starting after tenant p_after. Chooses at most p_per_tenant_ids runs of each tenant in p_tenant_ids and p_per_tenant of '
    'every other tenant, only of functions that the runner can run (p_kinds, p_builtins). Locks nothing; claim_runs then '
    'claims per tenant.';
revoke all on function jobs.tenants_with_due_runs(integer, integer, uuid[], integer[], text[], text[], uuid) from public;
grant execute on function
    jobs.tenants_with_due_runs(integer, integer, uuid[], integer[], text[], text[], uuid)
    to postrider_worker;

create or replace function jobs.claim_runs(
    p_tenant_id uuid, p_worker text, p_limit integer, p_kinds text[], p_builtins text[])
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
-- A kept plan could read all runs of the tenant, which looks equally good while the tenant has few.
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now          constant timestamptz := now();
    v_heartbeat_at timestamptz;
    v_ids          uuid[];
begin
    perform tenancy.limit_idle_time('15s');
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'p_worker must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    select array_agg(due.id)
      into v_ids
      from (select due.id
              from jobs.job_runs as due
              left join jobs.functions as function on function.tenant_id = due.tenant_id and function.name = due.function_name
             where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
               and due.tenant_id = p_tenant_id
               and coalesce(due.retry_at, due.started_at) <= v_now
               and jobs.can_run(function.kind, function.target, p_kinds, p_builtins)
             order by coalesce(due.retry_at, due.started_at)
             limit p_limit
               for update of due skip locked) as due;
    -- Not v_now: the transaction may have begun long before.
    v_heartbeat_at := clock_timestamp();
    return query
        with claimed as (
            update jobs.job_runs as run
               set status = 'running',
                   retry_count = run.retry_count + (run.status = 'failed')::integer,
                   retry_at = null,
                   started_at = v_now,
                   completed_at = null,
                   locked_by = p_worker,
                   heartbeat_at = v_heartbeat_at,
                   claims = run.claims + 1
              from unnest(v_ids) as due (id)
             where run.tenant_id = p_tenant_id
               and run.id = due.id
            returning run.*
        )
        select run.id, run.tenant_id, run.function_name, run.lock_key, run.input_params, run.retry_count, run.claims,
               run.scheduled_for, function.id, function.kind, function.target, function.timeout_seconds, function.sealed_secret
          from claimed as run
          left join jobs.functions as function on function.tenant_id = p_tenant_id and function.name = run.function_name;
end
$$;
comment on function jobs.claim_runs(uuid, text, integer, text[], text[]) is
    'Claims up to p_limit due runs of a tenant that no runner holds, longest due first. Claims only functions that the '
    'runner can run (p_kinds, p_builtins), and runs whose function was removed, so that they end.';
revoke all on function jobs.claim_runs(uuid, text, integer, text[], text[]) from public;
grant execute on function jobs.claim_runs(uuid, text, integer, text[], text[]) to postrider_worker;

create or replace function jobs.heartbeat_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text)
returns table (tenant_id uuid, id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    perform tenancy.limit_idle_time('15s');
    -- locked_by implies status 'running'. A predicate on status would make the planner search the index of running
    -- runs.
    return query
        with held as materialized (
            select run.tenant_id, run.id
              from unnest(p_tenant_ids, p_ids, p_claims) as given (tenant_id, id, claim)
              join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
             where run.claims = given.claim
               and run.locked_by = p_worker
        ), free as materialized (
            select run.tenant_id, run.id
              from held
              join jobs.job_runs as run on run.tenant_id = held.tenant_id and run.id = held.id
             where run.locked_by = p_worker
               for update of run skip locked
        ), beaten as (
            update jobs.job_runs as run
               set heartbeat_at = v_now
              from free
             where run.tenant_id = free.tenant_id
               and run.id = free.id
        )
        select held.tenant_id, held.id from held;
end
$$;
comment on function jobs.heartbeat_runs(uuid[], uuid[], integer[], text) is
    'Records a heartbeat for the runs, of any number of tenants, that the runner holds under these claims, and returns '
    'those that it still holds. A row that another transaction has locked keeps its old heartbeat, so that one run cannot '
    'delay the others.';
revoke all on function jobs.heartbeat_runs(uuid[], uuid[], integer[], text) from public;
grant execute on function jobs.heartbeat_runs(uuid[], uuid[], integer[], text) to postrider_worker;
