-- The workers that hold work of one tenant. Each kind of lock is in an index that holds the locked rows alone; the first two indexes are
-- those of all tenants, whose locks are few.
with held as (
    (select job.locked_by as name, 'job' as kind, job.locked_at as heard_at
       from execution.job_queue as job
      where job.tenant_id = $1
        and job.status = 'locked'
      limit 10000)
     union all
    (select run.locked_by, 'job run', run.heartbeat_at
       from jobs.job_runs as run
      where run.tenant_id = $1
        and run.heartbeat_at is not null
      limit 10000)
     union all
    (select reply.locked_by, 'reply', reply.locked_at
       from channels.channel_outbox as reply
      where reply.tenant_id = $1
        and reply.status = 'sending'
      limit 10000)
)
select held.name as "name!",
       count(*) filter (where held.kind = 'job') as "jobs!",
       count(*) filter (where held.kind = 'job run') as "job_runs!",
       count(*) filter (where held.kind = 'reply') as "replies!",
       max(held.heard_at) as "last_heard_at!: jiff_sqlx::Timestamp"
  from held
 group by held.name
 order by held.name collate "C"
 limit $2
