-- Items in doubt, in the order of reservations. Marked rows have an index of their own. A row that is not marked yet, because its worker
-- has only just stopped its heartbeats, belongs to a send job that has not ended.
with marked as (
    select item.id
      from execution.channel_outbox as item
     where item.tenant_id = $1
       and item.in_doubt_since is not null
       and ($5::uuid is null or item.run_id = $5)
), silent as (
    select item.id
      from execution.campaign_runs as run
           join execution.job_queue as job on job.tenant_id = run.tenant_id and job.run_id = run.id
           cross join lateral (
               select item.id
                 from execution.channel_outbox as item
                where item.tenant_id = job.tenant_id
                  and item.job_id = job.id
                  and item.status = 'queued'
                  and item.in_doubt_since is null
                  and execution.doubted_since(
                      item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
                      job.locked_by, job.locked_at, job.attempts) is not null
                -- One index lookup per send job, as below.
                offset 0
           ) as item
     where run.tenant_id = $1
       and run.status in ('queued', 'running')
       and ($5::uuid is null or run.id = $5)
       and ($6::uuid is null or run.campaign_id = $6)
       and job.status in ('queued', 'locked', 'failed')
), doubted as (
    select item.*,
           job.status as job_status,
           job.locked_by as job_locked_by,
           job.attempts as job_attempts,
           execution.doubted_since(
               item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
               job.locked_by, job.locked_at, job.attempts) as since
      from (select id from marked union all select id from silent) as wanted
           -- One index lookup per item: a join could read every item of the tenant.
           cross join lateral (
               select found.*
                 from execution.channel_outbox as found
                where found.tenant_id = $1
                  and found.id = wanted.id
                offset 0
           ) as item
           join execution.job_queue as job on job.tenant_id = item.tenant_id and job.id = item.job_id
)
select item.id as "id!",
       item.run_id as "run_id!",
       item.job_id as "job_id!",
       run.campaign_id,
       campaign.name as "campaign?",
       phase.phase as "phase?",
       item.channel as "channel!",
       coalesce(doubt.provider, item.provider) as "provider!",
       item.recipient_id,
       item.recipient,
       item.idempotency_key as "idempotency_key!",
       item.reserved_by,
       item.attempt,
       item.created_at as "reserved_at!: jiff_sqlx::Timestamp",
       item.since as "doubted_since!: jiff_sqlx::Timestamp",
       extract(epoch from now() - item.since)::bigint as "age_seconds!",
       item.since + run.quiet_time as "quiet_until!: jiff_sqlx::Timestamp",
       now() >= item.since + run.quiet_time as "is_quiet!",
       case
           when item.in_doubt_since is not null then coalesce(item.error, 'there was no answer')
           when item.job_status = 'locked' and item.job_locked_by = item.reserved_by and item.job_attempts = item.attempt
               then 'its worker is not heard of'
           else 'its send job is not held by the worker that reserved it'
       end as "reason!",
       coalesce(doubt.is_for_person, false) as "is_for_person!",
       coalesce(doubt.looks, 0) as "looks!",
       doubt.note,
       count(*) over () as "total!"
  from doubted as item
       join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
       left join execution.campaigns as campaign
         on campaign.tenant_id = run.tenant_id and campaign.id = run.campaign_id
       left join execution.campaign_phases as phase
         on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
       left join execution.doubts as doubt on doubt.tenant_id = item.tenant_id and doubt.outbox_id = item.id
 where item.since is not null
   and ($6::uuid is null or run.campaign_id = $6)
   and ($7::text is null or coalesce(doubt.provider, item.provider) = $7)
   -- $8: providers with a wanted way of settling; $9: those that settle without a person; $10: whether a person's are wanted.
   and ($8::text[] is null
        or case
               when coalesce(doubt.is_for_person, false) or coalesce(doubt.provider, item.provider) <> all ($9::text[]) then $10
               else coalesce(doubt.provider, item.provider) = any ($8)
           end)
   and ($11::boolean is null or (now() >= item.since + run.quiet_time) = $11)
   and ($3::timestamptz is null or (item.created_at, item.id) > ($3, $4::uuid))
 order by item.created_at, item.id
 limit $2
