-- Claims of send jobs: a worker chooses tenants with due send jobs, one after the other and without locks, then requeues what is overdue and
-- claims send jobs tenant by tenant. Heartbeats keep the claims alive.
--
-- Several rows are looked up in a lateral subquery, one index lookup per row, here and in other functions. A join may read
-- all rows of the tenant in the order of their ids instead, which the planner prefers when it plans while the table looks
-- empty, and the session keeps that plan.

create or replace function execution.tenants_with_due_jobs(
    p_limit integer, p_except uuid[] default '{}', p_except_run_tenants uuid[] default '{}',
    p_except_runs uuid[] default '{}')
returns table (tenant_id uuid, jobs integer, is_overdue boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now       constant timestamptz := now();
    v_tenant_id uuid := '00000000-0000-0000-0000-000000000000'::uuid;
    v_due_at    timestamptz;
    v_overdue   uuid[];
    v_tenants   uuid[] := '{}'::uuid[];
    v_jobs      integer[] := '{}'::integer[];
    v_except    uuid[];
    v_share     integer;
    v_left      integer := p_limit;
    v_found     integer;
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_overdue := array(
        select distinct oldest.tenant_id
          from ((select job.tenant_id
                   from execution.job_queue as job
                  where job.status = 'locked'
                    and job.locked_at < v_now - interval '5 minutes'
                  order by job.locked_at
                  limit 100)
                union all
                (select retry.tenant_id
                   from execution.job_queue as retry
                  where retry.status = 'failed'
                    and retry.run_after <= v_now
                  order by retry.run_after
                  limit 100)) as oldest);
    -- One index lookup per tenant that has a queued send job.
    loop
        select job.tenant_id, job.run_after
          into v_tenant_id, v_due_at
          from execution.job_queue as job
         where job.status = 'queued'
           and job.tenant_id > v_tenant_id
         order by job.tenant_id, job.run_after
         limit 1;
        exit when not found;
        if v_due_at <= v_now and v_tenant_id <> all (p_except) then
            v_tenants := v_tenants || v_tenant_id;
        end if;
    end loop;
    v_tenants := array(
        select waiting.tenant_id
          from unnest(v_tenants) as waiting (tenant_id)
               left join execution.claim_order as place on place.tenant_id = waiting.tenant_id
         order by place.last_claim_at nulls first, waiting.tenant_id);

    -- Round 1 gives each tenant an equal share. Round 2 gives the rest to tenants that have more send jobs.
    v_share := greatest(1, p_limit / greatest(1, cardinality(v_tenants)));
    for v_round in 1..2 loop
        for v_place in 1..cardinality(v_tenants) loop
            exit when v_left < 1;
            if v_round = 1 then
                v_jobs := v_jobs || 0;
            end if;
            continue when v_round = 2 and v_jobs[v_place] < v_share;
            v_except := array(
                select excepted.run_id
                  from unnest(p_except_run_tenants, p_except_runs) as excepted (tenant_id, run_id)
                 where excepted.tenant_id = v_tenants[v_place]);
            v_found := (
                select count(*)::integer
                  from (select
                          from execution.job_queue as job
                         where job.tenant_id = v_tenants[v_place]
                           and job.status = 'queued'
                           and job.run_after <= v_now
                           -- The case hides the condition from the planner, so that it reads the index in order and
                           -- stops at the limit.
                           and case when cardinality(v_except) = 0 then true else job.run_id <> all (v_except) end
                         order by job.run_after, job.id
                         limit v_jobs[v_place] + least(case v_round when 1 then v_share else p_limit end, v_left)) as due);
            v_left := v_left - (v_found - v_jobs[v_place]);
            v_jobs[v_place] := v_found;
        end loop;
    end loop;

    for v_place in 1..cardinality(v_jobs) loop
        continue when v_jobs[v_place] = 0;
        tenant_id := v_tenants[v_place];
        jobs := v_jobs[v_place];
        is_overdue := tenant_id = any (v_overdue);
        v_overdue := array_remove(v_overdue, tenant_id);
        return next;
    end loop;
    return query select overdue.tenant_id, 0, true from unnest(v_overdue) as overdue (tenant_id);
end
$$;
comment on function execution.tenants_with_due_jobs(integer, uuid[], uuid[], uuid[]) is
    'Chooses up to p_limit send jobs that are due and returns their number per tenant. The tenant that was served longest '
    'ago comes first; each gets an equal share, and the rest goes to tenants that have more send jobs. Leaves out the tenants '
    'in p_except and the runs in p_except_run_tenants and p_except_runs. is_overdue marks tenants with send jobs for '
    'requeue_overdue_jobs; call it and choose again. Locks nothing; claim_queued_jobs then claims per tenant.';
revoke all on function execution.tenants_with_due_jobs(integer, uuid[], uuid[], uuid[]) from public;
grant execute on function execution.tenants_with_due_jobs(integer, uuid[], uuid[], uuid[]) to postrider_worker;

create or replace function execution.requeue_overdue_jobs(p_tenant_id uuid, p_worker_id text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := now();
    v_job record;
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    for v_job in
        with stale as (
            select job.id, job.run_id, job.attempts, job.max_attempts, job.locked_by
              from execution.job_queue as job
             where job.tenant_id = p_tenant_id
               and job.status = 'locked'
               and job.locked_at < v_now - interval '5 minutes'
             order by job.locked_at
             limit 100
               for update skip locked
        )
        -- Ordered by run, because ending a run locks it: two concurrent calls cannot deadlock.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A hanging worker may hold locks on some of these items. Skip its send job instead of waiting, so that one such
        -- worker cannot block every claim; a later call tries again.
        begin
            perform
               from execution.channel_outbox as item
              where item.tenant_id = p_tenant_id
                and item.job_id = v_job.id
                and item.status = 'queued'
                and item.in_doubt_since is null
              order by item.id
                for no key update nowait;
        exception when lock_not_available then
            continue;
        end;
        if execution.is_canceled(p_tenant_id, v_job.run_id) then
            perform execution.end_attempt(p_tenant_id, v_job.id, p_worker_id, interval '0', null);
        elsif exists (select
                        from execution.campaign_runs as run
                             join execution.campaign_phases as phase
                               on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                       where run.tenant_id = p_tenant_id
                         and run.id = v_job.run_id
                         and phase.status = 'paused'
                         for share of phase)
        then
            -- The worker did not release the send job when its phase was paused. That uses up no attempt.
            perform execution.doubt_leftovers(p_tenant_id, v_job.id, p_worker_id);
            update execution.job_queue as job
               set status = 'queued',
                   attempts = job.attempts - 1,
                   locked_by = null,
                   locked_at = null,
                   run_after = 'infinity'
             where job.tenant_id = p_tenant_id
               and job.id = v_job.id;
            perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'its phase is paused; no heartbeat for five minutes from ' || v_job.locked_by);
        elsif v_job.attempts < v_job.max_attempts then
            perform execution.doubt_leftovers(p_tenant_id, v_job.id, p_worker_id);
            update execution.job_queue as job
               set status = 'queued',
                   locked_by = null,
                   locked_at = null,
                   last_error = 'its worker sent no heartbeat for five minutes'
             where job.tenant_id = p_tenant_id
               and job.id = v_job.id;
            perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'no heartbeat for five minutes from ' || v_job.locked_by);
        else
            perform execution.end_attempt(p_tenant_id, v_job.id, p_worker_id, interval '0',
                                          'its worker sent no heartbeat for five minutes');
        end if;
    end loop;
    foreach v_id in array array(
        select retry.id
          from execution.job_queue as retry
         where retry.tenant_id = p_tenant_id
           and retry.status = 'failed'
           and retry.run_after <= v_now
         order by retry.run_after
         limit 100
           for update skip locked)
    loop
        update execution.job_queue as job
           set status = 'queued'
         where job.tenant_id = p_tenant_id
           and job.id = v_id
     returning job.run_id, job.id
          into v_job;
        perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.queued', null);
    end loop;
end
$$;
comment on function execution.requeue_overdue_jobs(uuid, text) is
    'Takes over the locks of a tenant''s send jobs that are older than five minutes, up to 100 at a time, and queues up to '
    '100 retries that are due. Items that such a worker had reserved become in doubt. Send jobs of a canceled run end.';
revoke all on function execution.requeue_overdue_jobs(uuid, text) from public;
grant execute on function execution.requeue_overdue_jobs(uuid, text) to postrider_worker;

create or replace function execution.account_version(p_tenant_id uuid, p_run_id uuid, p_failover boolean)
returns integer
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select account.version
      from execution.campaign_runs as run
           join tenancy.provider_accounts as account
             on account.tenant_id = run.tenant_id
            and account.id = case when p_failover then run.failover_account_id else run.provider_account_id end
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
$$;
comment on function execution.account_version(uuid, uuid, boolean) is
    'Returns the current version of the account, or of the failover account, of a run. Null if there is none.';
revoke all on function execution.account_version(uuid, uuid, boolean) from public;

-- `p_except_runs` are runs whose account has enough send jobs already.
create or replace function execution.claim_queued_jobs(
    p_tenant_id uuid, p_worker_id text, p_limit integer default 10, p_except_runs uuid[] default '{}')
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
    v_now constant timestamptz := now();
    v_served_at timestamptz;
    v_ids uuid[];
    v_id uuid;
    v_job record;
    v_run_ids uuid[] := '{}'::uuid[];
    v_run_id uuid;
    v_run record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_worker_id), '') = '' then
        raise exception 'a worker must name itself to claim send jobs'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.status = 'queued'
           and job.run_after <= v_now
           -- The case hides the condition from the planner, so that it reads the index in order and stops at the limit.
           and case when cardinality(p_except_runs) = 0 then true else job.run_id <> all (p_except_runs) end
         order by job.run_after, job.id
         limit p_limit
           for update skip locked);
    if cardinality(v_ids) = 0 then
        return;
    end if;

    foreach v_id in array v_ids loop
        update execution.job_queue as job
           set status = 'locked',
               attempts = job.attempts + 1,
               locked_by = p_worker_id,
               locked_at = v_now,
               waits_for = null,
               account_version = execution.account_version(p_tenant_id, job.run_id, false),
               failover_version = execution.account_version(p_tenant_id, job.run_id, true)
         where job.tenant_id = p_tenant_id
           and job.id = v_id
     returning job.run_id, job.attempts
          into v_job;
        perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_id, null, p_worker_id, 'job.locked',
                                'attempt ' || v_job.attempts);
        if v_job.run_id <> all (v_run_ids) then
            v_run_ids := v_run_ids || v_job.run_id;
        end if;
    end loop;
    -- Ordered by id, so that two concurrent claims cannot deadlock.
    for v_run_id in select started.id from unnest(v_run_ids) as started (id) order by started.id loop
        update execution.campaign_runs as run
           set status = 'running',
               started_at = v_now
         where run.tenant_id = p_tenant_id
           and run.id = v_run_id
           and run.status = 'queued'
     returning run.campaign_id, run.phase_id
          into v_run;
        if found then
            perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, v_run_id, null, null, p_worker_id,
                                    'run.running', null);
        end if;
    end loop;
    -- Record the time of the claim. Another worker that is serving the tenant at the same time updates this row, so a locked row is
    -- skipped.
    perform
       from execution.claim_order as place
      where place.tenant_id = p_tenant_id
        for update skip locked;
    if found then
        v_served_at := clock_timestamp();
        update execution.claim_order as place
           set last_claim_at = v_served_at
         where place.tenant_id = p_tenant_id;
    end if;

    return query
        select job.id, p_tenant_id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
               job.channel, job.asset_id, job.provider_account_id, job.provider, job.scheduled_for, job.key_part,
               job.correlation_id
          from unnest(v_ids) as claimed (id)
               cross join lateral (
                   select job.id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
                          run.channel, run.asset_id, run.provider_account_id, run.provider, run.scheduled_for, run.key_part,
                          run.correlation_id
                     from execution.job_queue as job
                          join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                    where job.tenant_id = p_tenant_id
                      and job.id = claimed.id
                   offset 0) as job;
end
$$;
comment on function execution.claim_queued_jobs(uuid, text, integer, uuid[]) is
    'Claims up to p_limit send jobs of a tenant that are due, longest due first, and records the time. '
    'tenants_with_due_jobs chooses the tenants. The attempt counts at the claim, so that a send job that kills its worker does '
    'not return for ever.';
revoke all on function execution.claim_queued_jobs(uuid, text, integer, uuid[]) from public;
grant execute on function execution.claim_queued_jobs(uuid, text, integer, uuid[]) to postrider_worker;

create or replace function execution.heartbeat_jobs(
    p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[])
returns table (tenant_id uuid, id uuid)
language sql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    update execution.job_queue as job
       set locked_at = now()
      from (select held.tenant_id, held.id
              from (select given.*
                      from unnest(p_tenant_ids, p_job_ids, p_attempts) as given (tenant_id, id, attempt)
                     order by given.tenant_id, given.id) as held
                   cross join lateral (
                       select
                         from execution.job_queue as mine
                        where mine.tenant_id = held.tenant_id
                          and mine.id = held.id
                          and mine.status = 'locked'
                          and mine.locked_by = p_worker_id
                          and mine.attempts = held.attempt
                          for no key update) as mine
            offset 0) as mine
     where job.tenant_id = mine.tenant_id
       and job.id = mine.id
 returning job.tenant_id, job.id
$$;
comment on function execution.heartbeat_jobs(uuid[], text, uuid[], integer[]) is
    'Renews the locks of a worker''s send jobs, of any number of tenants, and returns the send jobs that the worker still holds. It '
    'locks send jobs in the order of tenants and ids, as reservations do, so that the two cannot deadlock.';
revoke all on function execution.heartbeat_jobs(uuid[], text, uuid[], integer[]) from public;
grant execute on function execution.heartbeat_jobs(uuid[], text, uuid[], integer[]) to postrider_worker;

create or replace function execution.require_held(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.limit_idle_time();
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = p_job_id
        and job.status = 'locked'
        and job.locked_by = p_worker_id
        and job.attempts = p_attempt
        for no key update;
    if not found then
        raise exception 'send job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
end
$$;
comment on function execution.require_held(uuid, uuid, text, integer) is
    'Locks a send job of a tenant, and raises PR001 unless the worker holds it under this attempt.';
revoke all on function execution.require_held(uuid, uuid, text, integer) from public;
