-- How a job ends, and with the last of them its run and its phase. What comes out follows from the items alone.
-- Safe beside running workers: it adds functions and touches no table.

-- Items of a job that nobody will answer for any more: from now on they are in doubt.
create function execution.doubt_leftovers(p_job_id uuid, p_actor text)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    -- Settlements lock items in the order of their ids too, so that the two never wait in a circle.
    with leftover as (
        select item.id
          from execution.channel_outbox as item
         where item.job_id = p_job_id
           and item.status = 'queued'
           and item.in_doubt_since is null
         order by item.id
           for no key update
    ), doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = now(),
               error = 'the worker that reserved it is gone'
          from leftover
         where item.id = leftover.id
           and item.status = 'queued'
           and item.in_doubt_since is null
     returning item.id, item.tenant_id, item.run_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select doubted.tenant_id, doubted.run_id, p_job_id, doubted.id, p_actor, 'item.in_doubt',
           'the worker that reserved it is gone'
      from doubted;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- When the last job of a run has ended, the run has; and with it its phase.
create function execution.finish_run(p_run_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_jobs record;
    v_status text;
    v_phase record;
    v_phase_status text;
begin
    -- The lock comes first: of two jobs that end at once, the later one sees both.
    select run.*
      into strict v_run
      from execution.campaign_runs as run
     where run.id = p_run_id
       for no key update;
    if exists (select
                 from execution.job_queue as job
                where job.run_id = p_run_id
                  and job.status in ('queued', 'locked', 'failed'))
    then
        return;
    end if;
    select bool_and(job.outcome = 'completed') as all_completed,
           bool_and(job.outcome = 'failed') as all_failed,
           coalesce(sum(job.succeeded + job.skipped), 0) as went_well
      into v_jobs
      from execution.job_queue as job
     where job.tenant_id = v_run.tenant_id
       and job.run_id = p_run_id;
    v_status := case when v_jobs.all_completed then 'completed' when v_jobs.all_failed then 'failed' else 'partial' end;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where id = p_run_id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);

    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_run.tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    if v_phase.status <> 'in_progress' then
        return;
    end if;
    v_phase_status := case
                          when v_status = 'completed' then 'completed'
                          -- What nobody tried, or nobody knows about, is no better than what failed.
                          when v_status = 'partial'
                               and v_run.intended - v_jobs.went_well <= v_phase.failure_tolerance * v_run.intended
                               then 'completed'
                          else 'failed'
                      end;
    update execution.campaign_phases
       set status = v_phase_status,
           updated_at = now()
     where tenant_id = v_phase.tenant_id
       and id = v_phase.id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'phase.' || v_phase_status, v_phase.phase);
end
$$;

-- How the items of a job stand. The job is read apart from them: its list of items would be unpacked once for each.
create function execution.count_items(p_job_id uuid)
returns table (intended integer, succeeded integer, failed integer, skipped integer, in_doubt integer, missing integer)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
        select job.intended, items.succeeded, items.failed, items.skipped, items.in_doubt, job.intended - items.known
          from (select cardinality(item_ids) as intended
                  from execution.job_queue
                 where id = p_job_id) as job,
               (select count(*) filter (where status in ('sent', 'called', 'posted'))::integer as succeeded,
                       count(*) filter (where status = 'failed')::integer as failed,
                       count(*) filter (where status = 'skipped')::integer as skipped,
                       count(*) filter (where status = 'queued')::integer as in_doubt,
                       count(*)::integer as known
                  from execution.channel_outbox
                 where job_id = p_job_id) as items;
end
$$;

-- Gives every item of a job that was never reserved its end: nobody is going to. Its key is used from now on, so that a worker
-- that wakes up late cannot send it either.
create function execution.fail_missing(p_job_id uuid, p_error text)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into execution.channel_outbox
           (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, idempotency_key, status, error, attempt,
            finalized_at)
    select job.tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
           execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'failed',
           left('its job gave up before it was tried: ' || p_error, 2000), job.attempts, now()
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
           cross join unnest(job.item_ids) as item (id)
     where job.id = p_job_id
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing
$$;

-- Ends a job that its holder has locked, or puts it off. What comes out follows from its items alone.
create function execution.end_attempt(p_job_id uuid, p_actor text, p_retry_after interval, p_error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job record;
    v_items record;
    v_outcome text;
    v_status text;
begin
    select job.id, job.tenant_id, job.run_id, job.attempts, job.max_attempts
      into strict v_job
      from execution.job_queue as job
     where job.id = p_job_id;
    select * into strict v_items from execution.count_items(p_job_id);
    if v_items.in_doubt > 0 then
        -- Counted again, because an answer may have come in between.
        perform execution.doubt_leftovers(p_job_id, p_actor);
        select * into strict v_items from execution.count_items(p_job_id);
    end if;

    if v_items.in_doubt + v_items.missing = 0 then
        v_outcome := case
                         when v_items.failed = 0 then 'completed'
                         when v_items.failed = v_items.intended then 'failed'
                         else 'partial'
                     end;
        v_status := case v_outcome when 'failed' then 'dead' else 'completed' end;
    elsif v_job.attempts < v_job.max_attempts then
        v_status := 'failed';
    else
        perform execution.fail_missing(p_job_id, coalesce(p_error, 'no attempts are left'));
        select * into strict v_items from execution.count_items(p_job_id);
        v_outcome := case when v_items.succeeded > 0 then 'partial' else 'failed' end;
        v_status := 'dead';
    end if;

    if v_status = 'completed' then
        update execution.job_queue
           set status = 'completed',
               outcome = v_outcome,
               locked_by = null,
               locked_at = null,
               succeeded = v_items.succeeded,
               failed = v_items.failed,
               skipped = v_items.skipped,
               finished_at = now()
         where id = p_job_id;
    else
        update execution.job_queue
           set status = 'failed',
               locked_by = null,
               locked_at = null,
               run_after = now() + p_retry_after,
               last_error = left(coalesce(p_error, case when v_items.in_doubt > 0 then v_items.in_doubt || ' items in doubt' end,
                                          last_error), 2000)
         where id = p_job_id;
        if v_status = 'dead' then
            update execution.job_queue
               set status = 'dead',
                   outcome = v_outcome,
                   succeeded = v_items.succeeded,
                   failed = v_items.failed,
                   skipped = v_items.skipped,
                   finished_at = now()
             where id = p_job_id;
        end if;
    end if;
    perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, p_job_id, null, p_actor, 'job.' || v_status,
                            coalesce(p_error, v_outcome));
    if v_status in ('completed', 'dead') then
        perform execution.finish_run(v_job.run_id, p_actor);
    end if;
    return v_status;
end
$$;

-- Raises unless this worker holds this job under this attempt.
create function execution.require_held(p_job_id uuid, p_worker_id text, p_attempt integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
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

-- Ends a job whose items have all been tried. Computes its status, and its run's, from the items: completed, dead, or failed
-- with another attempt to come while something is in doubt.
create function execution.complete_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_job_id, p_worker_id, p_retry_after, null);
end
$$;

-- Ends an attempt that could not go on. The job comes again, or is dead when no attempts are left.
create function execution.fail_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_job_id, p_worker_id, p_retry_after, coalesce(nullif(btrim(p_error), ''), 'failed'));
end
$$;

-- Hands a job back before its end: the worker is stopping, or cannot do this kind of job. It burns no attempt.
create function execution.release_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '0')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    perform execution.doubt_leftovers(p_job_id, p_worker_id);
    update execution.job_queue
       set status = 'queued',
           attempts = attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = greatest(run_after, now() + p_retry_after)
     where id = p_job_id;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.released'
      from execution.job_queue as job
     where job.id = p_job_id;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.complete_job(uuid, text, integer, interval),
    execution.fail_job(uuid, text, integer, text, interval),
    execution.release_job(uuid, text, integer, interval)
    to postrider_worker;
