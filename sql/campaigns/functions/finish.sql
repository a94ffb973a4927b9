-- The end of send jobs, and with the last send job the end of the run. The items alone decide the result.

create or replace function execution.doubt_leftovers(p_tenant_id uuid, p_job_id uuid, p_actor text)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_count integer;
begin
    -- Settlements lock items in the order of their ids too, so that the two cannot deadlock.
    with leftover as (
        select item.tenant_id, item.id
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.job_id = p_job_id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is not null
         order by item.id
           for no key update
    ), doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = v_now,
               error = 'the worker that reserved it is gone'
          from leftover
         where item.tenant_id = p_tenant_id
           and item.id = leftover.id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is not null
     returning item.id, item.run_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, doubted.run_id, p_job_id, doubted.id, p_actor, 'item.in_doubt',
           'the worker that reserved it is gone'
      from doubted;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function execution.doubt_leftovers(uuid, uuid, text) is
    'Marks the reserved items of a send job as in doubt, because the worker that reserved them is gone. Returns their '
    'number.';
revoke all on function execution.doubt_leftovers(uuid, uuid, text) from public;

-- The send job is read apart from its items: otherwise the array of items would be unpacked once per item.
create or replace function execution.count_items(p_tenant_id uuid, p_job_id uuid)
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
                 where tenant_id = p_tenant_id
                   and id = p_job_id) as job,
               (select count(*) filter (where status in ('sent', 'called', 'posted'))::integer as succeeded,
                       count(*) filter (where status = 'failed')::integer as failed,
                       count(*) filter (where status = 'skipped')::integer as skipped,
                       count(*) filter (where status = 'queued' and (reserved_by is not null or in_doubt_since is not null))::integer
                           as in_doubt,
                       -- An item that was put back is tried again like one that was never begun.
                       count(*) filter (where status <> 'queued' or reserved_by is not null or in_doubt_since is not null)::integer
                           as known
                  from execution.channel_outbox
                 where tenant_id = p_tenant_id
                   and job_id = p_job_id) as items;
end
$$;
comment on function execution.count_items(uuid, uuid) is
    'Counts the items of a send job by result.';
revoke all on function execution.count_items(uuid, uuid) from public;

create or replace function execution.fail_missing(p_tenant_id uuid, p_job_id uuid, p_error text)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update execution.channel_outbox
       set status = 'failed',
           error = left('its send job ended before the item was sent: ' || coalesce(error || '; ', '') || p_error, 2000),
           finalized_at = now()
     where tenant_id = p_tenant_id
       and job_id = p_job_id
       and status = 'queued'
       and in_doubt_since is null
       and reserved_by is null;
    insert into execution.channel_outbox
           (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, idempotency_key, status, error, attempt,
            finalized_at)
    select job.tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
           execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'failed',
           left('its send job ended before the item was tried: ' || p_error, 2000), job.attempts, now()
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           cross join unnest(job.item_ids) as item (id)
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing
$$;
comment on function execution.fail_missing(uuid, uuid, text) is
    'Fails the items of a send job that were put back, and adds a failed row for every item that was never reserved. This uses the keys, so that a late worker '
    'cannot send the items either.';
revoke all on function execution.fail_missing(uuid, uuid, text) from public;

create or replace function execution.end_attempt(
    p_tenant_id uuid, p_job_id uuid, p_actor text, p_retry_after interval, p_error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_job record;
    v_items record;
    v_outcome text;
    v_status text;
begin
    select job.run_id, job.attempts, job.max_attempts
      into strict v_job
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id;
    select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
    if v_items.in_doubt > 0 then
        -- Count again, because a settlement may have committed in between.
        perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_actor);
        select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
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
        perform execution.fail_missing(p_tenant_id, p_job_id, coalesce(p_error, 'no attempts are left'));
        select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
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
               finished_at = v_now
         where tenant_id = p_tenant_id
           and id = p_job_id;
    else
        update execution.job_queue
           set status = 'failed',
               locked_by = null,
               locked_at = null,
               run_after = v_now + p_retry_after,
               last_error = left(coalesce(p_error, case when v_items.in_doubt > 0 then v_items.in_doubt || ' items in doubt' end,
                                          last_error), 2000)
         where tenant_id = p_tenant_id
           and id = p_job_id;
        if v_status = 'dead' then
            update execution.job_queue
               set status = 'dead',
                   outcome = v_outcome,
                   succeeded = v_items.succeeded,
                   failed = v_items.failed,
                   skipped = v_items.skipped,
                   finished_at = v_now
             where tenant_id = p_tenant_id
               and id = p_job_id;
        end if;
    end if;
    perform execution.audit(p_tenant_id, null, null, v_job.run_id, p_job_id, null, p_actor, 'job.' || v_status,
                            coalesce(p_error, v_outcome));
    if v_status in ('completed', 'dead') then
        perform execution.finish_run(p_tenant_id, v_job.run_id, p_actor);
    end if;
    return v_status;
end
$$;
comment on function execution.end_attempt(uuid, uuid, text, interval, text) is
    'Ends the attempt of a locked send job and returns its status, computed from its items: completed, dead, or failed '
    'with another attempt to come. The end of the last send job ends the run.';
revoke all on function execution.end_attempt(uuid, uuid, text, interval, text) from public;

create or replace function execution.complete_job(
    p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer,
    p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_tenant_id, p_job_id, p_worker_id, p_retry_after, null);
end
$$;
comment on function execution.complete_job(uuid, uuid, text, integer, interval) is
    'Ends a send job whose items were all tried, and returns its status: completed, dead, or failed with a retry while an '
    'item is in doubt.';
revoke all on function execution.complete_job(uuid, uuid, text, integer, interval) from public;
grant execute on function execution.complete_job(uuid, uuid, text, integer, interval) to postrider_worker;

create or replace function execution.fail_job(
    p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_error text,
    p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_tenant_id, p_job_id, p_worker_id, p_retry_after, coalesce(nullif(btrim(p_error), ''), 'failed'));
end
$$;
comment on function execution.fail_job(uuid, uuid, text, integer, text, interval) is
    'Ends an attempt that could not continue, and returns the status of the send job: failed with a retry, or dead if no '
    'attempts are left.';
revoke all on function execution.fail_job(uuid, uuid, text, integer, text, interval) from public;
grant execute on function execution.fail_job(uuid, uuid, text, integer, text, interval) to postrider_worker;

create or replace function execution.finish_run(p_tenant_id uuid, p_run_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_status text;
    v_phase_status text;
begin
    -- Lock the run first: of two send jobs that end at once, the later one sees both.
    select run.*
      into strict v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
       for no key update;
    -- Read the index from its end, where the send job is that is claimed last: while a transaction holds an old
    -- snapshot, the entries of all ended send jobs still lie before it.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.run_id = p_run_id
        and job.status in ('queued', 'locked', 'failed')
      order by job.run_after desc, job.id desc
      limit 1;
    if found then
        return;
    end if;
    select case
               when bool_and(job.outcome = 'completed') then 'completed'
               when bool_and(job.outcome = 'failed') then 'failed'
               else 'partial'
           end
      into v_status
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.run_id = p_run_id;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where tenant_id = p_tenant_id
       and id = p_run_id;
    perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);
    perform
       from execution.campaigns
      where tenant_id = p_tenant_id
        and id = v_run.campaign_id
        for no key update;
    select phase.status
      into strict v_phase_status
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    -- A paused phase ends when it is resumed.
    if v_phase_status = 'in_progress' then
        perform execution.end_phase(p_tenant_id, v_run.phase_id, p_actor);
    end if;
end
$$;
comment on function execution.finish_run(uuid, uuid, text) is
    'Ends the run if its last send job has ended, and with it the phase if the phase is in progress.';
revoke all on function execution.finish_run(uuid, uuid, text) from public;
