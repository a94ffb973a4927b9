-- Settling what is in doubt, and saying how far a run is and whether it is launched.
-- Safe beside running workers: it adds functions and touches no table.

-- Since when an item is in doubt: since it was marked so; or since its worker was last heard of, when that is a minute ago;
-- or since it was reserved, when its job has gone on without it. Null while its worker is at work, and after its end.
create function execution.doubted_since(
    p_item execution.channel_outbox, p_job_status text, p_locked_by text, p_locked_at timestamptz, p_job_attempts integer)
returns timestamptz
language sql
stable
parallel safe
return case
           when (p_item).status <> 'queued' then null
           when (p_item).in_doubt_since is not null then (p_item).in_doubt_since
           when p_job_status = 'locked' and p_locked_by = (p_item).reserved_by and p_job_attempts = (p_item).attempt
               then case
                        when p_locked_at < now() - interval '60 seconds' then greatest(p_locked_at, (p_item).created_at)
                    end
           else (p_item).created_at
       end;

-- Settles an item in doubt by evidence: as `sent` (the channel's word for success is used) or as `failed`. That it was
-- done may be shown at any time; that it was not, only when the quiet time is over and nothing can arrive any more.
create function execution.resolve_in_doubt(
    p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_item record;
    v_status text;
begin
    if coalesce(p_as, '') not in ('sent', 'failed') then
        raise exception 'an item is resolved as sent or as failed, not as %', coalesce(p_as, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(btrim(p_note), '') = '' or coalesce(btrim(p_actor), '') = '' then
        raise exception 'a resolution needs a note that says how it is known, and who says so'
            using errcode = 'invalid_parameter_value';
    end if;
    -- The job before its item, as everybody does; and so the later of two that settle its last items sees both.
    perform
       from execution.job_queue as job
      where job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = v_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    select item.*, run.quiet_time, job.status as job_status,
           execution.doubted_since(item, job.status, job.locked_by, job.locked_at, job.attempts) as since
      into v_item
      from execution.channel_outbox as item
           join execution.job_queue as job on job.id = item.job_id
           join execution.campaign_runs as run on run.id = item.run_id
     where item.tenant_id = v_tenant_id
       and item.id = p_outbox_id
       for no key update of item;
    if not found then
        raise exception 'there is no item %', p_outbox_id
            using errcode = 'no_data_found', hint = '`postrider in-doubt list` shows what is in doubt.';
    end if;
    if v_item.status <> 'queued' then
        raise exception 'item % is % already', p_outbox_id, v_item.status
            using errcode = 'invalid_parameter_value',
                  hint = 'An item that has ended is never reopened; `postrider trace` shows its story.';
    end if;
    if v_item.since is null then
        raise exception 'item % is not in doubt: its worker is at work', p_outbox_id
            using errcode = 'invalid_parameter_value', hint = 'Look again in a minute.';
    end if;
    if p_as = 'failed' and now() < v_item.since + v_item.quiet_time then
        raise exception 'item % may still arrive until %', p_outbox_id,
                        to_char((v_item.since + v_item.quiet_time) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            using errcode = 'invalid_parameter_value',
                  hint = 'That it was not sent counts only after the quiet time. That it was sent counts at once.';
    end if;

    v_status := case p_as when 'sent' then execution.success_of(v_item.channel) else 'failed' end;
    update execution.channel_outbox
       set status = v_status,
           provider_message_id = left(p_provider_message_id, 500),
           error = case when p_as = 'failed' then left(p_note, 2000) end,
           finalized_at = now(),
           in_doubt_since = null
     where id = p_outbox_id;
    perform execution.audit(v_tenant_id, null, null, v_item.run_id, v_item.job_id, p_outbox_id, p_actor,
                            'item.resolved_as_' || v_status, p_note);
    -- Its job waits for nothing else any more: it may complete now.
    if v_item.job_status = 'failed'
       and not exists (select
                         from execution.channel_outbox as item
                        where item.job_id = v_item.job_id
                          and item.status = 'queued')
    then
        update execution.job_queue
           set run_after = least(run_after, now())
         where id = v_item.job_id
           and status = 'failed';
    end if;
    return v_status;
end
$$;

-- How far runs of the tenant are. A job that is done through and through has its counts in its own row, and only the items
-- of the others are counted: a look costs as much as what is under way, however much is done. A dead job may leave items
-- in doubt, which are settled after its counts were written, so its items are counted until none is left.
--
-- The planner does not know that most jobs are passed over, and would compile a plan for all of them.
create function execution.run_progress(p_run_ids uuid[])
returns table (
    run_id uuid, intended bigint, jobs_queued bigint, jobs_locked bigint, jobs_retrying bigint, jobs_completed bigint,
    jobs_dead bigint, succeeded bigint, failed bigint, skipped bigint, in_doubt bigint, in_flight bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select run.id,
           run.intended,
           jobs.*
      from execution.campaign_runs as run
           cross join lateral (
               select count(*) filter (where job.status = 'queued'),
                      count(*) filter (where job.status = 'locked'),
                      count(*) filter (where job.status = 'failed'),
                      count(*) filter (where job.status = 'completed'),
                      count(*) filter (where job.status = 'dead'),
                      coalesce(sum(case when done.is_done then job.succeeded else items.succeeded end), 0)::bigint,
                      coalesce(sum(case when done.is_done then job.failed else items.failed end), 0)::bigint,
                      coalesce(sum(case when done.is_done then job.skipped else items.skipped end), 0)::bigint,
                      coalesce(sum(items.in_doubt), 0)::bigint,
                      coalesce(sum(items.reserved - items.in_doubt), 0)::bigint
                 from execution.job_queue as job
                      cross join lateral (
                          select case job.status
                                     when 'completed' then true
                                     when 'dead' then job.succeeded + job.failed + job.skipped = cardinality(job.item_ids)
                                     else false
                                 end as is_done) as done
                      cross join lateral (
                          select count(*) filter (where item.status in ('sent', 'called', 'posted')) as succeeded,
                                 count(*) filter (where item.status = 'failed') as failed,
                                 count(*) filter (where item.status = 'skipped') as skipped,
                                 count(*) filter (where item.status = 'queued') as reserved,
                                 count(execution.doubted_since(item, job.status, job.locked_by, job.locked_at, job.attempts))
                                     as in_doubt
                            from execution.channel_outbox as item
                           where item.job_id = job.id
                             and not done.is_done) as items
                where job.tenant_id = run.tenant_id
                  and job.run_id = run.id) as jobs
     where run.tenant_id = tenancy.required_tenant_id()
       and run.id = any (p_run_ids)
$$;

-- The launch certificate: whether the run has ended, whether every intended item has, and whether a second call is
-- impossible, with the counts that show it.
create function execution.verify_launch(p_run_id uuid)
returns table (
    run_id uuid, run_status text, intended bigint, sent bigint, called bigint, posted bigint, failed bigint, skipped bigint,
    in_doubt bigint, missing bigint, run_is_terminal boolean, every_item_is_terminal boolean, duplicates_are_impossible boolean,
    launched boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if not exists (select from execution.campaign_runs as run where run.id = p_run_id and tenancy.may_act_for(run.tenant_id)) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        with items as (
            select count(*) filter (where item.status = 'sent') as sent,
                   count(*) filter (where item.status = 'called') as called,
                   count(*) filter (where item.status = 'posted') as posted,
                   count(*) filter (where item.status = 'failed') as failed,
                   count(*) filter (where item.status = 'skipped') as skipped,
                   count(*) filter (where item.status = 'queued') as in_doubt,
                   count(distinct item.recipient_id) as known
              from execution.channel_outbox as item
             where item.run_id = p_run_id
        ), guarded as (
            -- The wall is the unique key, and the triggers that keep rows and their keys where they are.
            select count(*) = 5 as holds
              from (select from pg_constraint as wall
                     where wall.conrelid = 'execution.channel_outbox'::regclass
                       and wall.conname = 'channel_outbox_one_row_per_key'
                       and pg_get_constraintdef(wall.oid) = 'UNIQUE (tenant_id, workspace_id, idempotency_key)'
                     union all
                    select from pg_trigger as wall
                     where wall.tgrelid = 'execution.channel_outbox'::regclass
                       and wall.tgname in ('channel_outbox_ends_are_final', 'channel_outbox_reservations_are_facts',
                                           'channel_outbox_is_never_removed_from', 'channel_outbox_is_never_emptied')
                       and wall.tgenabled in ('O', 'A')) as walls
        )
        select run.id,
               run.status,
               run.intended::bigint,
               items.sent, items.called, items.posted, items.failed, items.skipped, items.in_doubt,
               run.intended - items.known,
               run.status in ('completed', 'partial', 'failed'),
               items.in_doubt = 0 and run.intended = items.known,
               guarded.holds,
               run.status in ('completed', 'partial', 'failed') and items.in_doubt = 0 and run.intended = items.known
               and guarded.holds
          from execution.campaign_runs as run, items, guarded
         where run.id = p_run_id;
end
$$;

-- How much waits and how much is in doubt, over all tenants, for the metrics.
create function execution.measure_jobs()
returns table (jobs_waiting bigint, jobs_locked bigint, oldest_lock_seconds double precision, items_in_doubt bigint,
               oldest_doubt_seconds double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from execution.job_queue where status = 'queued'),
           (select count(*) from execution.job_queue where status = 'locked'),
           (select coalesce(extract(epoch from now() - min(locked_at)), 0) from execution.job_queue where status = 'locked'),
           (select count(*) from execution.channel_outbox where in_doubt_since is not null),
           (select coalesce(extract(epoch from now() - min(in_doubt_since)), 0)
              from execution.channel_outbox
             where in_doubt_since is not null)
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.doubted_since(execution.channel_outbox, text, text, timestamptz, integer),
    execution.run_progress(uuid[]),
    execution.verify_launch(uuid)
    to postrider_app, postrider_worker, postrider_read;
grant execute on function
    execution.resolve_in_doubt(uuid, text, text, text, text)
    to postrider_app;
grant execute on function
    execution.measure_jobs()
    to postrider_worker;
