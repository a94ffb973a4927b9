-- Dependencies of schedules: a firing waits until each function in depends_on has a completed run in an overlapping
-- grain.

create or replace function jobs.are_dependencies_met(
    p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamptz)
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select not exists (
        select
          from unnest(p_depends_on) as wanted (name)
         -- Not `not exists`: as a join, it may read the completed runs of all functions of the tenant.
         where (select true
                  from jobs.job_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.function_name = wanted.name
                   and run.status = 'completed'
                   and jobs.grain_overlaps(run.grain, run.grain_start, jobs.grain_start(p_grain, p_fire_at),
                                           jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain))
                 limit 1) is null)
$$;
comment on function jobs.are_dependencies_met(uuid, text[], text, timestamptz) is
    'Returns whether every function in p_depends_on has a completed run in a grain that overlaps the grain of the '
    'firing. Schedulers call it often, so it gives no reasons; unmet_dependencies does.';
revoke all on function jobs.are_dependencies_met(uuid, text[], text, timestamptz) from public;

create or replace function jobs.unmet_dependencies(
    p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamptz)
returns table (function_name text, why text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with own as (
        select jobs.grain_start(p_grain, p_fire_at) as since,
               jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain) as until
    )
    select wanted.name,
           coalesce((select case
                                when run.status = 'running' then 'it is running'
                                when run.retry_at is not null then 'it failed and waits for its retry'
                                when run.status = 'failed' then 'it failed'
                                else 'it was cancelled'
                            end || ' (run ' || run.id || ')'
                       from jobs.job_runs as run, own
                      where run.tenant_id = p_tenant_id
                        and run.function_name = wanted.name
                        and jobs.grain_overlaps(run.grain, run.grain_start, own.since, own.until)
                      order by run.created_at desc
                      limit 1),
                    'it has not run yet')
      from unnest(p_depends_on) as wanted (name), own
     where not exists (select
                         from jobs.job_runs as run
                        where run.tenant_id = p_tenant_id
                          and run.function_name = wanted.name
                          and run.status = 'completed'
                          and jobs.grain_overlaps(run.grain, run.grain_start, own.since, own.until))
$$;
comment on function jobs.unmet_dependencies(uuid, text[], text, timestamptz) is
    'Returns the functions in p_depends_on that have no completed run in a grain that overlaps the grain of the '
    'firing, each with the reason.';
revoke all on function jobs.unmet_dependencies(uuid, text[], text, timestamptz) from public;

create or replace function jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamptz)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return (
        select string_agg('waits for ' || unmet.function_name || ': ' || unmet.why, '; ' order by unmet.function_name)
          from jobs.schedules as schedule
          join jobs.functions as function on function.tenant_id = schedule.tenant_id and function.name = schedule.function_name
         cross join lateral jobs.unmet_dependencies(schedule.tenant_id, schedule.depends_on,
                                                    coalesce(schedule.grain, function.grain), p_fire_at) as unmet
         where schedule.tenant_id = p_tenant_id
           and schedule.id = p_schedule_id);
end
$$;
comment on function jobs.why_waiting(uuid, uuid, timestamptz) is
    'Describes the dependencies for which a firing waits; null if it waits for none.';
revoke all on function jobs.why_waiting(uuid, uuid, timestamptz) from public;
grant execute on function jobs.why_waiting(uuid, uuid, timestamptz) to postrider_app, postrider_worker, postrider_read;
