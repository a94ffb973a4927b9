select reply.id,
       reply.channel_message_id,
       reply.account_id,
       reply.provider,
       reply.recipient_id,
       reply.payload,
       reply.status,
       reply.attempt_count,
       reply.max_attempts,
       reply.next_attempt_at as "next_attempt_at: jiff_sqlx::Timestamp",
       reply.last_error,
       reply.locked_at as "locked_at: jiff_sqlx::Timestamp",
       reply.locked_by,
       reply.in_doubt_since as "in_doubt_since: jiff_sqlx::Timestamp",
       reply.provider_message_id,
       reply.delivery_status,
       reply.delivery_status_at as "delivery_status_at: jiff_sqlx::Timestamp",
       reply.delivery_error,
       reply.correlation_id,
       reply.sent_at as "sent_at: jiff_sqlx::Timestamp",
       reply.created_at as "created_at: jiff_sqlx::Timestamp",
       reply.updated_at as "updated_at: jiff_sqlx::Timestamp"
  from channels.channel_outbox as reply
 where reply.tenant_id = $1
   and ($2::uuid is null or reply.id = $2)
   and ($3::text is null or reply.status = $3)
   and ($4::uuid is null or reply.account_id = $4)
   and ($5::text is null or reply.provider = $5)
   and ($6::uuid is null or reply.id < $6)
 order by reply.id desc
 limit $7
