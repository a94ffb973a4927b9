-- Retention: removes job runs, firings, dead letters and alerts that are over and old.

create or replace function jobs.prune_runs(p_older_than interval, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_removed bigint := 0;
    v_more    bigint;
begin
    -- A lock key whose completed run was removed can run again, so runs of the current grain must stay.
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
    -- The caller repeats until none of the steps removed p_limit rows.
    return greatest(v_removed, v_more);
end
$$;
comment on function jobs.prune_runs(interval, integer) is
    'Removes up to p_limit each of ended runs, decided firings, resolved dead letters and resolved alerts older '
    'than p_older_than. A run with an open dead letter stays. Returns the largest of the four counts, so that the '
    'caller repeats until it is less than p_limit.';
revoke all on function jobs.prune_runs(interval, integer) from public;
grant execute on function jobs.prune_runs(interval, integer) to postrider_worker;
