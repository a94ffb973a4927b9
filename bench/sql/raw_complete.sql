update raw.outbox
   set processed_at = now()
 where id = any ($2)
   and claimed_by = $1
