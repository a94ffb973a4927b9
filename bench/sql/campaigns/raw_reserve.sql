insert into raw.channel_outbox
       (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
        reserved_by, attempt, message_hash)
select item.id, $1, $1, $1, item.job_id, 'email', 'null', item.id, item.recipient, item.idempotency_key,
       $2, 1, item.message_hash
  from unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bytea[])
       as item (id, job_id, recipient, idempotency_key, message_hash)
