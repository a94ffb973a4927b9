-- The errors of a run's failed items, the most frequent first, each with three of its items. A send job that has ended without a failure
-- is passed over. Errors are counted for each send job, so that no more than three ids are kept of each send job and error.
with failed as materialized (
    select job.position, items.error, items.total, items.ids
      from execution.job_queue as job
           cross join lateral (
               select coalesce(item.error, '') as error,
                      count(*) as total,
                      (array_agg(item.id order by item.id))[1:3] as ids
                 from execution.channel_outbox as item
                where item.tenant_id = job.tenant_id
                  and item.job_id = job.id
                  and item.status = 'failed'
                group by coalesce(item.error, '')) as items
     where job.tenant_id = $1
       and job.run_id = $2
       and (job.status not in ('completed', 'dead')
            or job.succeeded + job.failed + job.skipped <> cardinality(job.item_ids)
            or job.failed > 0)
), counted as (
    select failed.error, sum(failed.total)::bigint as total
      from failed
     group by failed.error
     order by total desc, failed.error
     limit $3
)
select counted.error as "error!",
       counted.total as "total!",
       array(select example.id
               from failed
                    cross join lateral unnest(failed.ids) as example (id)
              where failed.error = counted.error
              order by failed.position, example.id
              limit 3) as "item_ids!"
  from counted
 order by counted.total desc, counted.error
