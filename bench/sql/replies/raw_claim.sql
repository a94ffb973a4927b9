update raw.replies as reply
   set status = 'sending',
       locked_at = now(),
       locked_by = $1,
       claims = reply.claims + 1,
       updated_at = now()
 where reply.id = any (array(
           select due.id
             from raw.replies as due
            where due.status in ('pending', 'sending')
              and due.status = 'pending'
              and due.tenant_id = $3
              and due.account_id = $4
              and due.next_attempt_at <= now()
            order by due.next_attempt_at, due.id
            limit $2
              for update skip locked))
returning reply.id, reply.channel_message_id, reply.account_id, reply.provider, reply.recipient_id, reply.payload,
          reply.attempt_count, reply.correlation_id
