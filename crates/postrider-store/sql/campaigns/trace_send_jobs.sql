-- Send jobs of runs with the counts of their items. When there are too many, those that are not completed come first.
select job.id as "id!",
       job.run_id as "run_id!",
       job.position as "position!",
       job.job_type as "job_type!",
       job.status as "status!",
       job.outcome,
       job.attempts as "attempts!",
       job.max_attempts as "max_attempts!",
       nullif(job.run_after, 'infinity') as "run_after: jiff_sqlx::Timestamp",
       job.locked_by,
       job.locked_at as "locked_at: jiff_sqlx::Timestamp",
       job.finished_at as "finished_at: jiff_sqlx::Timestamp",
       job.last_error,
       cardinality(job.item_ids)::bigint as "intended!",
       items.succeeded as "succeeded!",
       items.failed as "failed!",
       items.skipped as "skipped!",
       items.reserved - items.in_doubt as "in_flight!",
       items.in_doubt as "in_doubt!",
       job.total as "total!"
  from (select job.*, count(*) over (partition by job.run_id) as total
          from execution.job_queue as job
         where job.tenant_id = $1
           and job.run_id = any ($2)
           and ($3::uuid is null or job.id = $3)
         order by job.status = 'completed', job.run_id, job.position
         limit $4) as job
       cross join lateral (
           select count(*) filter (where item.status in ('sent', 'called', 'posted')) as succeeded,
                  count(*) filter (where item.status = 'failed') as failed,
                  count(*) filter (where item.status = 'skipped') as skipped,
                  count(*) filter (where item.status = 'queued') as reserved,
                  count(execution.doubted_since(
                          item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
                          job.locked_by, job.locked_at, job.attempts)) as in_doubt
             from execution.channel_outbox as item
            where item.tenant_id = job.tenant_id
              and item.job_id = job.id) as items
 order by job.run_id, job.position
