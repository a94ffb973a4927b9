-- Retention: removes job runs, firings, dead letters and alerts that are over and old.

create or replace function jobs.tenants_with_old_runs(p_older_than interval)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select from jobs.job_runs as old
                    where old.tenant_id = tenant.id
                      and old.created_at < now() - p_older_than
                      and old.completed_at < now() - p_older_than
                      and old.retry_at is null)
        or exists (select from jobs.schedule_firings as old
                    where old.tenant_id = tenant.id
                      and old.outcome <> 'waiting'
                      and old.fire_at < now() - p_older_than)
        or exists (select from jobs.sync_errors as old
                    where old.tenant_id = tenant.id
                      and old.is_resolved
                      and old.resolved_at < now() - p_older_than)
        or exists (select from jobs.alert_instances as old
                    where old.tenant_id = tenant.id
                      and old.status = 'resolved'
                      and old.resolved_at < now() - p_older_than)
$$;
comment on function jobs.tenants_with_old_runs(interval) is
    'Returns the tenants with runs, firings, dead letters or alerts that prune_runs may remove. Locks nothing; prune_runs '
    'then removes per tenant.';
revoke all on function jobs.tenants_with_old_runs(interval) from public;
grant execute on function jobs.tenants_with_old_runs(interval) to postrider_worker;

create or replace function jobs.prune_runs(p_tenant_id uuid, p_older_than interval, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- A plan from the time when a table was empty may use any index of the tenant.
set plan_cache_mode = force_custom_plan
as $$
declare
    v_before  constant timestamptz := now() - p_older_than;
    v_removed bigint := 0::bigint;
    v_more    bigint;
begin
    -- A lock key whose completed run was removed can run again, so runs of the current grain must stay.
    if p_older_than is null or p_older_than < interval '2 days' then
        raise exception 'p_older_than must be at least two days' using errcode = 'invalid_parameter_value';
    end if;
    if p_limit is null or p_limit < 1 then
        raise exception 'p_limit must be at least 1' using errcode = 'invalid_parameter_value';
    end if;
    with old as materialized (
        select old.id
          from jobs.job_runs as old
         where old.tenant_id = p_tenant_id
           and old.created_at < v_before
           and old.completed_at < v_before
           and old.retry_at is null
           and not exists (select from jobs.sync_errors as error
                            where error.tenant_id = p_tenant_id
                              and error.source_entity_type = 'job_run'
                              and error.source_entity_id = old.id
                              and not error.is_resolved)
         order by old.created_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.job_runs as run using old where run.tenant_id = p_tenant_id and run.id = old.id;
    get diagnostics v_removed = row_count;
    with old as materialized (
        select old.schedule_id, old.fire_at
          from jobs.schedule_firings as old
         where old.tenant_id = p_tenant_id
           and old.outcome <> 'waiting'
           and old.fire_at < v_before
         order by old.fire_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.schedule_firings as firing
     using old
     where firing.tenant_id = p_tenant_id and firing.schedule_id = old.schedule_id and firing.fire_at = old.fire_at;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.sync_errors as old
         where old.tenant_id = p_tenant_id and old.is_resolved and old.resolved_at < v_before
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.sync_errors as error using old where error.tenant_id = p_tenant_id and error.id = old.id;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.alert_instances as old
         where old.tenant_id = p_tenant_id and old.status = 'resolved' and old.resolved_at < v_before
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.alert_instances as alert using old where alert.tenant_id = p_tenant_id and alert.id = old.id;
    get diagnostics v_more = row_count;
    -- The caller repeats until none of the steps removed p_limit rows.
    return greatest(v_removed, v_more);
end
$$;
comment on function jobs.prune_runs(uuid, interval, integer) is
    'Removes up to p_limit each of ended runs, decided firings, resolved dead letters and resolved alerts of a tenant older '
    'than p_older_than. A run with an open dead letter stays. Returns the largest of the four counts, so that the '
    'caller repeats until it is less than p_limit.';
revoke all on function jobs.prune_runs(uuid, interval, integer) from public;
grant execute on function jobs.prune_runs(uuid, interval, integer) to postrider_worker;
