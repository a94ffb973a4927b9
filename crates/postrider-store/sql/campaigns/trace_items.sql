-- Items of send jobs. If there are too many, the items that an operator may have to look at come first.
select item.id as "id!",
       item.job_id as "job_id!",
       item.recipient_id,
       item.recipient,
       item.idempotency_key as "idempotency_key!",
       item.status as "status!",
       item.provider_message_id,
       item.error,
       item.reserved_by,
       item.attempt,
       item.payload,
       item.result,
       item.created_at as "created_at!: jiff_sqlx::Timestamp",
       item.finalized_at as "finalized_at: jiff_sqlx::Timestamp",
       item.since as "doubted_since: jiff_sqlx::Timestamp"
  from (select item.*,
               execution.doubted_since(
                   item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
                   job.locked_by, job.locked_at, job.attempts) as since
          from execution.job_queue as job
               join execution.channel_outbox as item on item.tenant_id = job.tenant_id and item.job_id = job.id
         where job.tenant_id = $1
           and job.id = any ($2)
           and ($3::uuid is null or item.id = $3)
         order by case item.status when 'queued' then 1 when 'failed' then 2 when 'skipped' then 3 else 4 end,
                  item.created_at, item.id
         limit $4) as item
 order by item.created_at, item.id
