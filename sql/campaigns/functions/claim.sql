-- Claims of send jobs and their heartbeats.

-- `p_except` are tenants of which the worker has enough jobs already, `p_except_runs` are runs whose account has
-- enough.
--
-- Rows are looked up with `= any (array[…])` instead of `=`, here and in other functions. With an equality the planner
-- may read the whole table in the order of its ids and compare, which it does when it plans while the table looks
-- empty, and the session keeps that plan. With `any` an index lookup per row is the only plan, so a claim need not be
-- planned anew every time.
create or replace function execution.claim_queued_jobs(
    p_worker_id text, p_limit integer default 10, p_except uuid[] default '{}', p_except_runs uuid[] default '{}')
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
    v_ids uuid[] := '{}'::uuid[];
begin
    perform tenancy.limit_idle_time();
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
        -- Ordered by run, because ending a run locks it: two concurrent sweeps cannot deadlock.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A hanging worker may hold locks on some of these items. Skip its job instead of waiting, so that one such
        -- worker cannot block every claim; a later claim tries again.
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
        if exists (select
                     from execution.campaign_runs as run
                          join execution.campaign_phases as phase
                            on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                    where run.id = v_job.run_id
                      and phase.status = 'paused'
                      for share of phase)
        then
            -- The worker did not release the job when its phase was paused. That uses up no attempt.
            perform execution.doubt_leftovers(v_job.id, p_worker_id);
            update execution.job_queue
               set status = 'queued',
                   attempts = attempts - 1,
                   locked_by = null,
                   locked_at = null,
                   run_after = 'infinity'
             where id = v_job.id;
            perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'its phase is paused; not heard of for five minutes: ' || v_job.locked_by);
        elsif v_job.attempts < v_job.max_attempts then
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

    -- A loose index scan: one index lookup per tenant that has a queued job.
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

    -- Round 1 gives each tenant an equal share. Round 2 gives the rest to tenants that have more jobs.
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
                   -- The case hides the condition from the planner, so that it reads the index in order and stops
                   -- at the limit.
                   and case when cardinality(p_except_runs) = 0 then true else job.run_id <> all (p_except_runs) end
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
           locked_at = now(),
           waits_for = null
     where job.id = any (v_ids);
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.locked', 'attempt ' || job.attempts
      from execution.job_queue as job
     where job.id = any (v_ids);
    -- Ordered by id, so that two concurrent claims cannot deadlock.
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
    -- Record the order in which the tenants were served. Another worker that is serving a tenant at the same time
    -- updates that tenant's row, so a locked row is skipped.
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
comment on function execution.claim_queued_jobs(text, integer, uuid[], uuid[]) is
    'Claims up to p_limit send jobs that are due, in turn for each tenant: the tenant that was served longest ago '
    'comes first. Before that, it takes over locks older than five minutes and queues retries that are due. It counts '
    'the attempt at the claim, so that a job that kills its worker does not return for ever.';
revoke all on function execution.claim_queued_jobs(text, integer, uuid[], uuid[]) from public;
grant execute on function execution.claim_queued_jobs(text, integer, uuid[], uuid[]) to postrider_worker;

create or replace function execution.heartbeat_jobs(p_worker_id text, p_job_ids uuid[], p_attempts integer[])
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
      from (select mine.id
              from unnest(p_job_ids, p_attempts) as held (id, attempt)
                   join execution.job_queue as mine on mine.id = any (array[held.id])
             where mine.status = 'locked'
               and mine.locked_by = p_worker_id
               and mine.attempts = held.attempt
             order by mine.id
               for no key update of mine) as mine
     where job.id = any (array[mine.id])
 returning job.id
$$;
comment on function execution.heartbeat_jobs(text, uuid[], integer[]) is
    'Renews the locks of a worker''s jobs and returns the jobs that the worker still holds. It locks jobs in the order '
    'of their ids, as reservations do, so that the two cannot deadlock.';
revoke all on function execution.heartbeat_jobs(text, uuid[], integer[]) from public;
grant execute on function execution.heartbeat_jobs(text, uuid[], integer[]) to postrider_worker;

create or replace function execution.require_held(p_job_id uuid, p_worker_id text, p_attempt integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.limit_idle_time();
    perform
       from execution.job_queue as job
      where job.id = p_job_id
        and job.status = 'locked'
        and job.locked_by = p_worker_id
        and job.attempts = p_attempt
        for no key update;
    if not found then
        raise exception 'job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
end
$$;
comment on function execution.require_held(uuid, text, integer) is
    'Locks a job, and raises PR001 unless the worker holds it under this attempt.';
revoke all on function execution.require_held(uuid, text, integer) from public;
