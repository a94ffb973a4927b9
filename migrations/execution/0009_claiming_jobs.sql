-- How workers take jobs and keep them.
-- Safe beside running workers: it adds functions and touches no table.

-- Takes up to `p_limit` jobs, tenant by tenant in turns: whose turn was longest ago comes first, so that a tenant with
-- a million items does not starve one with ten. Before that, locks older than five minutes are taken away and retries
-- that are due are queued again. An attempt is counted here, when it begins, so that a job that kills its worker does
-- not come for ever.
--
-- `p_except` are tenants that have enough of this worker's attention already.
--
-- Here and below, rows are looked up with `= any (array[…])` instead of `=`. An equality lets the planner read the whole table
-- in the order of its ids and compare, and that is what it does when it plans while the table looks empty, for as long as the
-- session keeps the plan. This way a look-up per row is the only plan there is, and a claim need not plan
-- anew every time.
create function execution.claim_queued_jobs(p_worker_id text, p_limit integer default 10, p_except uuid[] default '{}')
returns table (
    job_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_type text, attempts integer, max_attempts integer,
    item_ids uuid[], channel text, asset_id uuid, provider_account_id uuid, provider text, scheduled_for timestamptz,
    key_part text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_job record;
    v_run_id uuid;
    v_run record;
    v_tenants uuid[];
    v_tenant uuid;
    v_share integer;
    v_found uuid[];
    v_ids uuid[] := '{}';
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    if coalesce(btrim(p_worker_id), '') = '' then
        raise exception 'a worker must name itself to claim jobs'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;

    for v_job in
        with stale as (
            select job.id, job.tenant_id, job.run_id, job.attempts, job.max_attempts, job.locked_by
              from execution.job_queue as job
             where job.status = 'locked'
               and job.locked_at < now() - interval '5 minutes'
             order by job.locked_at
             limit 100
               for update skip locked
        )
        -- Run by run, because the end of a run locks it: two sweeps at once never wait in a circle.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A worker that stands still may do so inside a transaction that settles some of these items. It is not waited for,
        -- or one such worker would hold up every other one here; the job comes again.
        begin
            perform
               from execution.channel_outbox as item
              where item.job_id = v_job.id
                and item.status = 'queued'
                and item.in_doubt_since is null
              order by item.id
                for no key update nowait;
        exception when lock_not_available then
            continue;
        end;
        if v_job.attempts < v_job.max_attempts then
            perform execution.doubt_leftovers(v_job.id, p_worker_id);
            update execution.job_queue
               set status = 'queued',
                   locked_by = null,
                   locked_at = null,
                   last_error = 'its worker was not heard of for five minutes'
             where id = v_job.id;
            perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'not heard of for five minutes: ' || v_job.locked_by);
        else
            perform execution.end_attempt(v_job.id, p_worker_id, interval '0', 'its worker was not heard of for five minutes');
        end if;
    end loop;
    with due as (
        select retry.id
          from execution.job_queue as retry
         where retry.status = 'failed'
           and retry.run_after <= now()
         order by retry.run_after
         limit 100
           for update skip locked
    ), requeued as (
        update execution.job_queue as job
           set status = 'queued'
          from due
         where job.id = any (array[due.id])
     returning job.tenant_id, job.run_id, job.id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select requeued.tenant_id, requeued.run_id, requeued.id, p_worker_id, 'job.queued'
      from requeued;

    -- Each tenant that has a job waiting is found with one step in the index.
    v_tenants := array(
        with recursive waiting as (
            (select job.tenant_id, job.run_after
               from execution.job_queue as job
              where job.status = 'queued'
              order by job.tenant_id, job.run_after
              limit 1)
            union all
            select next.tenant_id, next.run_after
              from waiting
                   cross join lateral (
                       select job.tenant_id, job.run_after
                         from execution.job_queue as job
                        where job.status = 'queued'
                          and job.tenant_id > waiting.tenant_id
                        order by job.tenant_id, job.run_after
                        limit 1) as next
        )
        select waiting.tenant_id
          from waiting
               left join execution.turns as turn on turn.tenant_id = waiting.tenant_id
         where waiting.run_after <= now()
           and waiting.tenant_id <> all (p_except)
         order by turn.last_turn_at nulls first, waiting.tenant_id);

    -- First an equal share for each, then whatever is left for whoever has more.
    v_share := greatest(1, p_limit / greatest(1, cardinality(v_tenants)));
    for round in 1..2 loop
        foreach v_tenant in array v_tenants loop
            exit when cardinality(v_ids) >= p_limit;
            v_found := array(
                select job.id
                  from execution.job_queue as job
                 where job.tenant_id = v_tenant
                   and job.status = 'queued'
                   and job.run_after <= now()
                   and job.id <> all (v_ids)
                 order by job.run_after, job.id
                 limit least(v_share, p_limit - cardinality(v_ids))
                   for update skip locked);
            v_ids := v_ids || v_found;
        end loop;
        v_share := p_limit;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    update execution.job_queue as job
       set status = 'locked',
           attempts = job.attempts + 1,
           locked_by = p_worker_id,
           locked_at = now()
     where job.id = any (v_ids);
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.locked', 'attempt ' || job.attempts
      from execution.job_queue as job
     where job.id = any (v_ids);
    -- In the order of their ids, so that two claims never wait in a circle.
    for v_run_id in
        select distinct job.run_id from execution.job_queue as job where job.id = any (v_ids) order by job.run_id
    loop
        update execution.campaign_runs as run
           set status = 'running',
               started_at = now()
         where run.id = v_run_id
           and run.status = 'queued'
     returning run.tenant_id, run.campaign_id, run.phase_id
          into v_run;
        if found then
            perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, v_run_id, null, null, p_worker_id,
                                    'run.running', null);
        end if;
    end loop;
    -- Turns are noted in the order in which they were taken. Whoever is being served by another worker at this moment has
    -- its turn noted by that one.
    update execution.turns as turn
       set last_turn_at = (select clock_timestamp()) + array_position(v_tenants, turn.tenant_id) * interval '1 microsecond'
     where turn.tenant_id in (select noted.tenant_id
                                from execution.turns as noted
                               where noted.tenant_id = any (array(select job.tenant_id
                                                                    from execution.job_queue as job
                                                                   where job.id = any (v_ids)))
                                 for update skip locked);

    return query
        select job.id, job.tenant_id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
               run.channel, run.asset_id, run.provider_account_id, run.provider, run.scheduled_for, run.key_part,
               run.correlation_id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = any (array[job.run_id])
         where job.id = any (v_ids);
end
$$;

-- Keeps locks fresh. Answers with those that the worker still holds.
create function execution.heartbeat_jobs(p_worker_id text, p_job_ids uuid[], p_attempts integer[])
returns setof uuid
language sql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    update execution.job_queue as job
       set locked_at = now()
      from unnest(p_job_ids, p_attempts) as held (id, attempt)
     where job.id = any (array[held.id])
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = held.attempt
 returning job.id
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.claim_queued_jobs(text, integer, uuid[]),
    execution.heartbeat_jobs(text, uuid[], integer[])
    to postrider_worker;
