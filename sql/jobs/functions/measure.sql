-- Measurements of job runs: the health view of a tenant, and the numbers for the metrics of the server.

create or replace view jobs.job_health with (security_invoker = true) as
select function_name,
       status,
       count(*) as count,
       avg(duration_ms) as avg_duration_ms,
       max(duration_ms) as max_duration_ms,
       sum(case when retry_count > 0 then 1 else 0 end) as retried_count,
       tenant_id
  from jobs.job_runs
 where created_at > now() - interval '24 hours'
 group by tenant_id, function_name, status
 order by tenant_id, function_name, status;
comment on view jobs.job_health is
    'Job runs of the last 24 hours by tenant, function and status, of the tenants that the reader may see.';
grant select on jobs.job_health to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.measure_jobs()
returns table (waiting bigint, running bigint, retry_pending bigint, failed_day bigint, retried_day bigint,
               total_day bigint, long_running bigint, oldest_heartbeat_seconds double precision,
               overdue_seconds double precision, waiting_firings bigint, open_errors bigint, open_alerts bigint,
               doubtful_notifications bigint)
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
              from tenancy.tenants as tenant
              join jobs.job_runs as run on run.tenant_id = tenant.id
             where run.created_at > now() - interval '24 hours') as recent
$$;
comment on function jobs.measure_jobs() is
    'Returns counts and ages of job runs, schedules, firings, dead letters, alerts and notifications of all '
    'tenants, for the metrics. Locks nothing.';
revoke all on function jobs.measure_jobs() from public;
grant execute on function jobs.measure_jobs() to postrider_worker;
