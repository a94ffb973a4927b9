select message.id,
       message.account_id,
       message.provider,
       message.provider_message_id,
       message.sender_id,
       message.recipient_id,
       message.thread,
       message.text,
       message.status,
       message.user_id,
       message.role,
       message.reply,
       message.last_error,
       message.correlation_id,
       message.deliveries,
       message.executions,
       reply.id as "reply_id?",
       message.created_at as "created_at: jiff_sqlx::Timestamp",
       message.updated_at as "updated_at: jiff_sqlx::Timestamp"
  from channels.channel_messages as message
       left join channels.channel_outbox as reply
         on reply.tenant_id = message.tenant_id and reply.channel_message_id = message.id
 where message.tenant_id = $1
   and ($2::uuid is null or message.id = $2)
   and ($3::text is null or message.status = $3)
   and ($4::uuid is null or message.account_id = $4)
   and ($5::text is null or message.sender_id = $5)
   and ($6::uuid is null or message.id < $6)
 order by message.id desc
 limit $7
