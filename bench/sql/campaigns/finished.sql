-- Items of ended runs. Their ids are older than every new id.
insert into execution.channel_outbox
       (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key, status,
        provider_message_id, reserved_by, attempt, message_hash, finalized_at)
select (lpad(to_hex(1763000000000 + n / 100), 12, '0') || '7' || substr(digest, 1, 3) || '8' || substr(digest, 4, 15))::uuid,
       $1,
       $2,
       md5((n / 200000)::text)::uuid,
       md5((n / 500)::text)::uuid,
       'email',
       'null',
       digest::uuid,
       'person' || n || '@example.com',
       encode(sha256(digest::bytea), 'hex'),
       'sent',
       digest,
       'worker-019a7c00-0000-7000-8000-000000000000',
       1,
       sha256(digest::bytea),
       now()
  from (select n, md5(n::text) as digest from generate_series(1, $3::bigint) as n) as item
