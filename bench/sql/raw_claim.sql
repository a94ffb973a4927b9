update raw.outbox as event
   set claimed_at = now(),
       claimed_by = $1
 where event.id = any (array(
           select ready.id
             from raw.outbox as ready
            where ready.processed_at is null
              and coalesce(ready.process_after, '-infinity'::timestamptz) <= now()
              and (ready.claimed_at is null or ready.claimed_at < now() - interval '5 minutes')
            order by coalesce(ready.process_after, '-infinity'::timestamptz), ready.id
            limit $2
              for update skip locked))
returning event.id, event.aggregate_type, event.aggregate_id, event.event_type, event.payload, event.retry_count
