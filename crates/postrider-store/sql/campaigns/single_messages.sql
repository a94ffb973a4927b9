-- Single messages with their items, which have the keys that follow from their ids. Every join follows a key.
select message.id as "id!",
       message.workspace_id as "workspace_id!",
       message.key,
       coalesce(item.status, message.ended_as, case when message.run_id is null then 'waiting' else 'queued' end) as "status!",
       message.channel as "channel!",
       account.name as "account?",
       message.provider as "provider!",
       message.recipient,
       message.asset_id,
       message.content,
       message.variables as "variables!",
       message.send_after as "send_after!: jiff_sqlx::Timestamp",
       message.created_at as "created_at!: jiff_sqlx::Timestamp",
       message.actor as "actor!",
       message.run_id,
       item.id as "item_id?",
       item.provider_message_id as "provider_message_id?",
       item.error as "error?",
       item.in_doubt_since as "in_doubt_since?: jiff_sqlx::Timestamp",
       coalesce(item.finalized_at, message.ended_at) as "ended_at: jiff_sqlx::Timestamp"
  from unnest($2::uuid[]) as wanted (id)
       cross join lateral (
           select found.*
             from execution.messages as found
            where found.tenant_id = $1
              and found.id = wanted.id
            offset 0) as message
       left join tenancy.provider_accounts as account
         on account.tenant_id = $1 and account.id = message.provider_account_id
       left join lateral (
           select found.id, found.status, found.provider_message_id, found.error, found.in_doubt_since, found.finalized_at
             from execution.channel_outbox as found
            where message.run_id is not null
              and found.tenant_id = $1
              and found.workspace_id = message.workspace_id
              and found.idempotency_key = execution.outbox_key(message.run_id, message.id, 'message', null)
            offset 0) as item on true
 order by message.created_at desc, message.id desc
