-- How jobs stand, for the metrics; and removing what is over and old.
-- Safe beside running workers: it adds functions and touches no table.

-- How jobs stand, over all tenants, for the metrics.
create function jobs.measure_jobs()
returns table (waiting bigint, running bigint, retry_pending bigint, failed_day bigint, retried_day bigint, total_day bigint,
               long_running bigint, oldest_heartbeat_seconds double precision, overdue_seconds double precision, waiting_firings bigint,
               open_errors bigint, open_alerts bigint, doubtful_notifications bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from jobs.job_runs where status = 'running' and locked_by is null),
           (select count(*) from jobs.job_runs where status = 'running' and locked_by is not null),
           (select count(*) from jobs.job_runs where retry_at is not null),
           recent.failed, recent.retried, recent.total,
           (select count(*) from jobs.job_runs where status = 'running' and started_at < now() - interval '30 minutes'),
           coalesce((select extract(epoch from now() - min(heartbeat_at)) from jobs.job_runs where heartbeat_at is not null), 0)::double precision,
           coalesce((select extract(epoch from now() - min(next_fire_at)) from jobs.schedules
                      where enabled and next_fire_at <= now()), 0)::double precision,
           (select count(*) from jobs.schedule_firings where outcome = 'waiting'),
           (select count(*) from jobs.sync_errors where not is_resolved),
           (select count(*) from jobs.alert_instances where status in ('active', 'open', 'triggered')),
           (select count(*) from jobs.alert_notifications where status = 'queued' and in_doubt_since is not null)
      from (select count(*) filter (where run.status = 'failed') as failed,
                   count(*) filter (where run.retry_count > 0) as retried,
                   count(*) as total
              from jobs.job_runs as run
             where run.created_at > now() - interval '24 hours') as recent
$$;

-- Removes up to so many runs that are over and older than this, and as many of what is known about old firings, letters that were
-- resolved and alerts that were. A run with an open letter stays.
create function jobs.prune_runs(p_older_than interval, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_removed bigint := 0;
    v_more    bigint;
begin
    -- What is forgotten does not keep its grain from running again.
    if p_older_than is null or p_older_than < interval '2 days' or p_limit is null or p_limit < 1 then
        raise exception 'say how old a run must be, at least two days, and how many to remove at most' using errcode = 'invalid_parameter_value';
    end if;
    with old as materialized (
        select old.id
          from jobs.job_runs as old
         where old.created_at < now() - p_older_than
           and old.completed_at < now() - p_older_than
           and old.retry_at is null
           and not exists (select from jobs.sync_errors as error
                            where error.tenant_id = old.tenant_id
                              and error.source_entity_type = 'job_run'
                              and error.source_entity_id = old.id
                              and not error.is_resolved)
         order by old.created_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.job_runs as run using old where run.id = old.id;
    get diagnostics v_removed = row_count;
    with old as materialized (
        select old.tenant_id, old.schedule_id, old.fire_at
          from jobs.schedule_firings as old
         where old.outcome <> 'waiting'
           and old.fire_at < now() - p_older_than
         order by old.fire_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.schedule_firings as firing
     using old
     where firing.tenant_id = old.tenant_id and firing.schedule_id = old.schedule_id and firing.fire_at = old.fire_at;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.sync_errors as old
         where old.is_resolved and old.resolved_at < now() - p_older_than
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.sync_errors as error using old where error.id = old.id;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.alert_instances as old
         where old.status = 'resolved' and old.resolved_at < now() - p_older_than
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.alert_instances as alert using old where alert.id = old.id;
    get diagnostics v_more = row_count;
    -- The largest number: whoever calls goes on until a step was not full.
    return greatest(v_removed, v_more);
end
$$;

revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.measure_jobs(),
    jobs.prune_runs(interval, integer)
    to postrider_worker;
