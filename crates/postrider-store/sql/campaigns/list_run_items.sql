-- A page of a run's items, one send job after the other. A send job that is done through and through has its counts in its own row, so that one without
-- items in the wanted state is passed over: a few failures in a million are found without reading the million.
select item.id as "id!",
       item.job_id as "job_id!",
       job.position as "position!",
       item.recipient_id,
       item.recipient,
       item.idempotency_key as "idempotency_key!",
       item.status as "status!",
       item.provider as "provider!",
       item.provider_message_id,
       item.error,
       item.reserved_by,
       item.attempt,
       item.created_at as "created_at!: jiff_sqlx::Timestamp",
       item.finalized_at as "finalized_at: jiff_sqlx::Timestamp",
       item.since as "doubted_since: jiff_sqlx::Timestamp",
       delivery.status as "delivery_status?",
       delivery.detail as "delivery_detail?",
       delivery.reported_at as "delivery_at?: jiff_sqlx::Timestamp"
  from (select job.*
          from execution.job_queue as job
         where job.tenant_id = $1
           and job.run_id = $2
           and ($3::integer is null or job.position >= $3)
           and ($5::text is null
                or job.status not in ('completed', 'dead')
                or job.succeeded + job.failed + job.skipped <> cardinality(job.item_ids)
                or case
                       when $5 = 'failed' then job.failed > 0
                       when $5 = 'skipped' then job.skipped > 0
                       when $5 in ('queued', 'in_doubt') then false
                       else job.succeeded > 0
                   end)
           and ($8::uuid is null or job.id = $8)
           and ($9::text is null
                or job.status not in ('completed', 'dead')
                or job.succeeded + job.failed + job.skipped <> cardinality(job.item_ids)
                or job.failed + job.skipped > 0)
         order by job.position) as job
       cross join lateral (
           select item.*, doubted.since
             from execution.channel_outbox as item
                  cross join lateral (
                      select execution.doubted_since(
                          item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
                          job.locked_by, job.locked_at, job.attempts)) as doubted (since)
            where item.tenant_id = job.tenant_id
              and item.job_id = job.id
              and ($3::integer is null or job.position > $3 or item.id > $4)
              and case $5::text
                      when 'in_doubt' then doubted.since is not null
                      when 'queued' then item.status = 'queued' and doubted.since is null
                      else $5 is null or item.status = $5
                  end
              and ($7::text is null or item.recipient = $7)
              and ($9::text is null or strpos(lower(item.error), lower($9)) > 0)
            order by item.id
            limit $6) as item
       left join lateral (
           select reported.status, reported.detail, reported.reported_at
             from execution.deliveries as reported
            where reported.tenant_id = $1
              and reported.outbox_id = item.id
           offset 0) as delivery on true
 order by job.position, item.id
 limit $6
