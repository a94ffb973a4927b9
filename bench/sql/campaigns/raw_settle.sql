update raw.channel_outbox
   set status = 'sent',
       provider_message_id = id::text,
       finalized_at = now()
 where id = any ($1)
