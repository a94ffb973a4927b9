update raw.replies
   set status = 'sent',
       sent_at = now(),
       provider_message_id = id::text,
       locked_at = null,
       locked_by = null,
       updated_at = now()
 where id = any ($2)
   and locked_by = $1
