-- Recovery of messages: the sweeper chooses tenants, takes up executions whose lease has expired and enqueues kept
-- replies, and an operator retries failed messages.

create or replace function channels.tenants_with_expired_leases(p_keeps_reply boolean, p_limit integer)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select message.tenant_id
      from channels.channel_messages as message
     where message.leased_until < now()
       and (message.reply is not null) = p_keeps_reply
     group by message.tenant_id
     order by min(message.leased_until)
     limit p_limit
$$;
revoke all on function channels.tenants_with_expired_leases(boolean, integer) from public;
grant execute on function channels.tenants_with_expired_leases(boolean, integer) to postrider_worker;
comment on function channels.tenants_with_expired_leases(boolean, integer) is
    'Chooses up to p_limit tenants with messages whose lease has expired, the oldest lease first, without locking '
    'anything: messages that keep a reply, or messages to execute.';

create or replace function channels.claim_unfinished_messages(p_tenant_id uuid, p_limit integer, p_lease interval)
returns table (message_id uuid, account_id uuid, provider text, sender_id text, recipient_id text, thread text,
               text text, verdict text, execution integer, user_id text, role text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_now     constant timestamptz := now();
    v_message channels.channel_messages;
begin
    for v_message in
        select message.*
          from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.leased_until < v_now
           and message.reply is null
         order by message.leased_until
         limit p_limit
           for update skip locked
    loop
        if not exists (select from tenancy.provider_accounts as account
                        where account.tenant_id = p_tenant_id and account.id = v_message.account_id) then
            update channels.channel_messages as message
               set status = 'dispatch_failed',
                   last_error = 'its account was removed',
                   is_executing = false,
                   leased_until = null,
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
            continue;
        end if;
        -- A message of an account without an executor waits until there is one.
        if not exists (select from channels.channel_executors as executor
                        where executor.tenant_id = p_tenant_id
                          and (executor.account_id = v_message.account_id or executor.account_id is null)) then
            update channels.channel_messages as message
               set is_executing = false,
                   leased_until = v_now + interval '1 minute'
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
            continue;
        end if;
        return query
            select v_message.id, v_message.account_id, v_message.provider, v_message.sender_id, v_message.recipient_id,
                   v_message.thread, v_message.text, admitted.verdict, admitted.execution, admitted.user_id,
                   admitted.role, v_message.correlation_id
              from channels.admit_message(p_tenant_id, v_message.id, v_message.account_id, v_message.sender_id, p_lease)
                   as admitted;
    end loop;
end
$$;
revoke all on function channels.claim_unfinished_messages(uuid, integer, interval) from public;
grant execute on function channels.claim_unfinished_messages(uuid, integer, interval) to postrider_worker;
comment on function channels.claim_unfinished_messages(uuid, integer, interval) is
    'Takes up to p_limit messages of a tenant whose execution lease has expired, because the process that executed '
    'them is gone. Returns the same verdicts as admit_message.';

create or replace function channels.enqueue_kept_replies(p_tenant_id uuid, p_reply_ids uuid[], p_max_attempts integer)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_now     constant timestamptz := now();
    v_message record;
    v_count   integer := 0;
begin
    for v_message in
        select message.id, message.reply
          from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.leased_until < v_now
           and message.reply is not null
         order by message.leased_until
         limit cardinality(p_reply_ids)
           for update skip locked
    loop
        begin
            perform channels.enqueue_reply(
                p_tenant_id, v_message.id, p_reply_ids[v_count + 1], v_message.reply, p_max_attempts);
            v_count := v_count + 1;
        exception when integrity_constraint_violation then
            update channels.channel_messages as message
               set last_error = left('its reply cannot be enqueued: ' || sqlerrm, 1000),
                   leased_until = v_now + interval '1 minute',
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
        end;
    end loop;
    return v_count;
end
$$;
revoke all on function channels.enqueue_kept_replies(uuid, uuid[], integer) from public;
grant execute on function channels.enqueue_kept_replies(uuid, uuid[], integer) to postrider_worker;
comment on function channels.enqueue_kept_replies(uuid, uuid[], integer) is
    'Puts kept replies of a tenant into the outbox, at most one per given reply id, and returns their number. A reply '
    'that the outbox refuses waits a minute, so that it does not delay the others.';

create or replace function channels.retry_message(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set is_executing = false,
           leased_until = v_now,
           updated_at = v_now
     where message.tenant_id = p_tenant_id
       and message.id = p_id
       and message.status = 'dispatch_failed'
       and not (message.is_executing and message.leased_until > v_now);
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'message.retried', 'message:' || p_id);
    return true;
end
$$;
revoke all on function channels.retry_message(uuid, uuid, text) from public;
grant execute on function channels.retry_message(uuid, uuid, text) to postrider_app;
comment on function channels.retry_message(uuid, uuid, text) is
    'Makes a failed message due now, for an operator. Returns false if the tenant has no such failed message or the '
    'message is being executed.';
