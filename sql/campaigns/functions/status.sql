-- The progress of runs, the launch certificate, and measurements for the metrics.

-- An ended send job has its counters in its own row, so only the items of the other send jobs are counted: the cost depends on
-- the work that is left. A dead send job may leave items in doubt that are settled after its counters were written, so its
-- items are counted until none is in doubt.
--
-- The planner does not know that most send jobs are passed over, and would compile (jit) a plan for all of them.
create or replace function execution.run_progress(p_tenant_id uuid, p_run_ids uuid[])
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
    select tenancy.require_tenant(p_tenant_id);
    select run.id,
           run.intended,
           jobs.queued,
           jobs.locked,
           jobs.retrying,
           coalesce(archive.jobs_completed, jobs.completed),
           coalesce(archive.jobs_dead, jobs.dead),
           coalesce(archive.sent + archive.called + archive.posted, jobs.succeeded),
           coalesce(archive.failed, jobs.failed),
           coalesce(archive.skipped, jobs.skipped),
           jobs.in_doubt,
           jobs.in_flight
      from execution.campaign_runs as run
           left join execution.run_archives as archive on archive.tenant_id = run.tenant_id and archive.run_id = run.id
           cross join lateral (
               select count(*) filter (where job.status = 'queued') as queued,
                      count(*) filter (where job.status = 'locked') as locked,
                      count(*) filter (where job.status = 'failed') as retrying,
                      count(*) filter (where job.status = 'completed') as completed,
                      count(*) filter (where job.status = 'dead') as dead,
                      coalesce(sum(case when done.is_done then job.succeeded else items.succeeded end), 0)::bigint as succeeded,
                      coalesce(sum(case when done.is_done then job.failed else items.failed end), 0)::bigint as failed,
                      coalesce(sum(case when done.is_done then job.skipped else items.skipped end), 0)::bigint as skipped,
                      coalesce(sum(items.in_doubt), 0)::bigint as in_doubt,
                      coalesce(sum(items.reserved - items.in_doubt), 0)::bigint as in_flight
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
                                 count(*) filter (where item.status = 'queued'
                                                    and (item.reserved_by is not null or item.in_doubt_since is not null)) as reserved,
                                 count(execution.doubted_since(
                                           item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at,
                                           job.status, job.locked_by, job.locked_at, job.attempts)) as in_doubt
                            from execution.channel_outbox as item
                           where item.tenant_id = job.tenant_id
                             and item.job_id = job.id
                             and not done.is_done) as items
                where job.tenant_id = run.tenant_id
                  and job.run_id = run.id) as jobs
     where run.tenant_id = p_tenant_id
       and run.id = any (p_run_ids)
$$;
comment on function execution.run_progress(uuid, uuid[]) is
    'Counts the send jobs and items of runs of the tenant by status.';
revoke all on function execution.run_progress(uuid, uuid[]) from public;
grant execute on function execution.run_progress(uuid, uuid[]) to postrider_app, postrider_worker, postrider_read;

create or replace function execution.verify_launch(p_tenant_id uuid, p_run_id uuid)
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
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from execution.campaign_runs as run where run.tenant_id = p_tenant_id and run.id = p_run_id) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        with archive as (
            -- The counts of a run whose items retention deletes.
            select archived.*
              from execution.run_archives as archived
             where archived.tenant_id = p_tenant_id
               and archived.run_id = p_run_id
        ), items as (
            select count(*) filter (where item.status = 'sent') as sent,
                   count(*) filter (where item.status = 'called') as called,
                   count(*) filter (where item.status = 'posted') as posted,
                   count(*) filter (where item.status = 'failed') as failed,
                   count(*) filter (where item.status = 'skipped') as skipped,
                   count(*) filter (where item.status = 'queued'
                                      and (item.reserved_by is not null or item.in_doubt_since is not null)) as in_doubt,
                   count(distinct item.recipient_id)
                       filter (where item.status <> 'queued' or item.reserved_by is not null or item.in_doubt_since is not null) as known
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = p_run_id
               and not exists (select from archive)
        ), guarded as (
            -- Duplicates are prevented by the unique key, the triggers that keep rows and keys unchanged, the trigger that refuses
            -- reservations on a restored copy, and the one that refuses jobs of an archived run.
            select count(*) = 7 and tenancy.sending_refusal() is null as holds
              from (select from pg_constraint as wall
                     where wall.conrelid = 'execution.channel_outbox'::regclass
                       and wall.conname = 'channel_outbox_one_row_per_key'
                       and pg_get_constraintdef(wall.oid) = 'UNIQUE (idempotency_key, tenant_id, workspace_id)'
                     union all
                    select from pg_trigger as wall
                     where (wall.tgrelid = 'execution.channel_outbox'::regclass
                            and wall.tgname in ('channel_outbox_ends_are_final', 'channel_outbox_reservations_are_facts',
                                                'channel_outbox_is_never_removed_from', 'channel_outbox_is_never_emptied',
                                                'channel_outbox_waits_for_adoption')
                            or wall.tgrelid = 'execution.job_queue'::regclass
                               and wall.tgname = 'job_queue_has_none_of_archived_runs')
                       and wall.tgenabled in ('O', 'A')) as walls
        ), counted as (
            select items.sent, items.called, items.posted, items.failed, items.skipped, items.in_doubt,
                   run.intended - items.known as missing
              from items, execution.campaign_runs as run
             where run.tenant_id = p_tenant_id
               and run.id = p_run_id
               and not exists (select from archive)
             union all
            select archive.sent, archive.called, archive.posted, archive.failed, archive.skipped, 0, archive.missing
              from archive
        )
        select run.id,
               run.status,
               run.intended::bigint,
               counted.sent, counted.called, counted.posted, counted.failed, counted.skipped, counted.in_doubt,
               counted.missing,
               run.status in ('completed', 'partial', 'failed'),
               counted.in_doubt = 0 and counted.missing = 0,
               guarded.holds,
               run.status in ('completed', 'partial', 'failed') and counted.in_doubt = 0 and counted.missing = 0
               and guarded.holds
          from execution.campaign_runs as run, counted, guarded
         where run.tenant_id = p_tenant_id
           and run.id = p_run_id;
end
$$;
comment on function execution.verify_launch(uuid, uuid) is
    'The launch certificate of a run of the tenant: whether the run has ended, whether every intended item has ended, and whether a '
    'second call is impossible, with the counts that show it. On a restored copy it does not certify that a second '
    'call is impossible.';
revoke all on function execution.verify_launch(uuid, uuid) from public;
grant execute on function execution.verify_launch(uuid, uuid) to postrider_app, postrider_worker, postrider_read;

create or replace function execution.launch_evidence(p_tenant_id uuid, p_run_id uuid)
returns table (
    installation_id uuid, epoch integer, cause text, epoch_began_at timestamptz, system_identifier text, database_name text,
    refusal text, last_mark_at timestamptz, items_adopted bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from execution.campaign_runs as run where run.tenant_id = p_tenant_id and run.id = p_run_id) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        select epoch.installation_id, epoch.number, epoch.cause, epoch.began_at, here.system_identifier, here.database_name,
               tenancy.sending_refusal(),
               (select max(known.marked_at) from tenancy.process_marks as known where known.epoch_id = epoch.id),
               (select count(*)
                  from execution.campaign_audit_log as line
                 where line.tenant_id = p_tenant_id
                   and line.run_id = p_run_id
                   and line.action = 'item.adopted')
          from tenancy.database_identity() as here
               left join (select newest.* from tenancy.epochs as newest order by newest.number desc limit 1) as epoch on true;
end
$$;
comment on function execution.launch_evidence(uuid, uuid) is
    'Returns the basis of a run''s launch certificate: the installation and its epoch, the reason why a restored copy '
    'certifies nothing, the time at which a process last compared the database with its witness, and the number of '
    'items that an adoption put in doubt.';
revoke all on function execution.launch_evidence(uuid, uuid) from public;
grant execute on function execution.launch_evidence(uuid, uuid) to postrider_app, postrider_worker, postrider_read;

create or replace function execution.measure_jobs()
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
comment on function execution.measure_jobs() is
    'Counts queued send jobs, locked send jobs and items in doubt, with the age of the oldest, over all tenants, for the '
    'metrics.';
revoke all on function execution.measure_jobs() from public;
grant execute on function execution.measure_jobs() to postrider_worker;
