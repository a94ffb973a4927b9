-- Receiving: a message is recorded, executed outside the database, and ends with its reply in the outbox. A provider
-- waits for the response to each step, so no function waits long for a lock; a reply that cannot be enqueued in time is
-- kept with its message.

create or replace function channels.receive_message(
    p_tenant_id uuid, p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text,
    p_recipient_id text, p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer)
returns table (message_id uuid, verdict text, execution integer, user_id text, role text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_provider text;
    v_message  channels.channel_messages;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select account.provider
      into v_provider
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id;
    if not found then
        raise exception 'there is no such account' using errcode = 'no_data_found';
    end if;
    -- One statement, so that Postgres finds an earlier delivery by the index of the constraint.
    insert into channels.channel_messages as message
           (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text, correlation_id)
    values (p_id, p_tenant_id, p_account_id, v_provider, p_provider_message_id, p_sender_id, p_recipient_id, p_thread, p_text,
            p_correlation_id)
    on conflict on constraint channel_messages_one_per_delivery do update
       set deliveries = message.deliveries + 1
    returning message.* into v_message;
    if v_message.deliveries > 1 then
        if v_message.status = 'dispatch_failed' and v_message.reply is not null then
            perform channels.enqueue_reply(p_tenant_id, v_message.id, p_reply_id, v_message.reply, p_max_attempts);
            return query select v_message.id, 'enqueued'::text, v_message.executions, v_message.user_id, v_message.role,
                                v_message.correlation_id;
            return;
        end if;
        if v_message.status not in ('accepted', 'dispatch_failed') or v_message.is_executing and v_message.leased_until > now() then
            return query select v_message.id, 'duplicate'::text, v_message.executions, v_message.user_id, v_message.role,
                                v_message.correlation_id;
            return;
        end if;
    end if;
    return query
        select v_message.id, admitted.verdict, admitted.execution, admitted.user_id, admitted.role, v_message.correlation_id
          from channels.admit_message(p_tenant_id, v_message.id, v_message.account_id, v_message.sender_id, p_lease)
               as admitted;
end
$$;
revoke all on function channels.receive_message(
    uuid, uuid, uuid, uuid, text, text, text, text, text, uuid, interval, integer) from public;
grant execute on function channels.receive_message(
    uuid, uuid, uuid, uuid, text, text, text, text, text, uuid, interval, integer) to postrider_app;
comment on function channels.receive_message(
    uuid, uuid, uuid, uuid, text, text, text, text, text, uuid, interval, integer) is
    'Records a message that a provider delivered and returns a verdict. `execute`: the caller executes it under this '
    'execution number until the lease ends. `denied`: the sender has no link or not the required role. `duplicate`: '
    'nothing to do. `enqueued`: the kept reply is in the outbox now.';

create or replace function channels.admit_message(
    p_tenant_id uuid, p_message_id uuid, p_account_id uuid, p_sender_id text, p_lease interval)
returns table (verdict text, execution integer, user_id text, role text)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now      constant timestamptz := now();
    v_link     channels.channel_links;
    v_required text;
    v_status   text;
    v_reason   text;
begin
    select executor.required_role
      into v_required
      from channels.channel_executors as executor
     where executor.tenant_id = p_tenant_id
       and (executor.account_id = p_account_id or executor.account_id is null)
     order by executor.account_id nulls last
     limit 1;
    if not found then
        raise exception 'nothing executes the messages of this account'
            using errcode = 'no_data_found',
                  hint = 'Say what does: PUT /api/v2/channels/executors, or `postrider channels executor`.';
    end if;
    select link.*
      into v_link
      from channels.channel_links as link
     where link.tenant_id = p_tenant_id
       and link.account_id = p_account_id
       and link.sender_id = p_sender_id;
    if not found then
        v_status := 'denied_unlinked';
        v_reason := 'no user is linked to this sender';
    elsif array_position(array['viewer', 'operator', 'admin'], v_link.role)
          < array_position(array['viewer', 'operator', 'admin'], v_required) then
        v_status := 'denied_rbac';
        v_reason := format('%s is %s, and it takes %s', v_link.user_id, v_link.role, v_required);
    end if;
    if v_status is not null then
        return query
            update channels.channel_messages as message
               set status = v_status,
                   user_id = v_link.user_id,
                   role = v_link.role,
                   last_error = v_reason,
                   is_executing = false,
                   leased_until = null,
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = p_message_id
            returning 'denied'::text, message.executions, message.user_id, message.role;
        return;
    end if;
    return query
        update channels.channel_messages as message
           set executions = message.executions + 1,
               is_executing = true,
               leased_until = v_now + p_lease,
               user_id = v_link.user_id,
               role = v_link.role,
               updated_at = v_now
         where message.tenant_id = p_tenant_id
           and message.id = p_message_id
        returning 'execute'::text, message.executions, message.user_id, message.role;
end
$$;
revoke all on function channels.admit_message(uuid, uuid, uuid, text, interval) from public;
comment on function channels.admit_message(uuid, uuid, uuid, text, interval) is
    'Decides whether the sender may have the message executed, and if so leases the message to a new execution. '
    'Returns the verdict `execute` or `denied`.';

create or replace function channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text)
returns integer
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return (select count(*)::integer
              from (select from channels.channel_messages as message
                     where message.tenant_id = p_tenant_id
                       and message.account_id = p_account_id
                       and message.sender_id = p_sender_id
                       and message.created_at > now() - interval '1 minute'
                     limit 1000) as recent);
end
$$;
revoke all on function channels.recent_messages(uuid, uuid, text) from public;
grant execute on function channels.recent_messages(uuid, uuid, text) to postrider_app, postrider_worker;
comment on function channels.recent_messages(uuid, uuid, text) is
    'Counts the messages of a sender in the last minute, up to a thousand.';

create or replace function channels.finish_message(
    p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform
       from channels.channel_messages as message
      where message.tenant_id = p_tenant_id
        and message.id = p_message_id
        and message.executions = p_execution
        and message.status in ('accepted', 'dispatch_failed')
        for update;
    if not found then
        return false;
    end if;
    perform channels.enqueue_reply(p_tenant_id, p_message_id, p_reply_id, p_payload, p_max_attempts);
    return true;
end
$$;
revoke all on function channels.finish_message(uuid, uuid, integer, uuid, jsonb, integer) from public;
grant execute on function channels.finish_message(uuid, uuid, integer, uuid, jsonb, integer)
    to postrider_app, postrider_worker;
comment on function channels.finish_message(uuid, uuid, integer, uuid, jsonb, integer) is
    'Ends a message with its reply. Returns false and changes nothing if a newer execution has the message or the '
    'message has ended.';

create or replace function channels.deny_message(
    p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set status = 'denied_sentinel',
           last_error = left(p_reason, 1000),
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id
       and message.executions = p_execution
       and message.status in ('accepted', 'dispatch_failed');
    return found;
end
$$;
revoke all on function channels.deny_message(uuid, uuid, integer, text) from public;
grant execute on function channels.deny_message(uuid, uuid, integer, text) to postrider_app, postrider_worker;
comment on function channels.deny_message(uuid, uuid, integer, text) is
    'Ends a message that the sentinel refused. Returns false and changes nothing if a newer execution has the message '
    'or the message has ended.';

create or replace function channels.fail_message(
    p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_now      constant timestamptz := now();
    v_retry_at constant timestamptz := case
                                           when p_reply is not null then v_now + interval '1 minute'
                                           when p_execution < 5
                                               then v_now + interval '1 minute' * power(2, p_execution - 1)
                                       end;
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set status = 'dispatch_failed',
           reply = p_reply,
           last_error = left(p_error, 1000),
           is_executing = false,
           leased_until = v_retry_at,
           updated_at = v_now
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id
       and message.executions = p_execution
       and message.status in ('accepted', 'dispatch_failed');
    return found;
end
$$;
revoke all on function channels.fail_message(uuid, uuid, integer, jsonb, text) from public;
grant execute on function channels.fail_message(uuid, uuid, integer, jsonb, text) to postrider_app, postrider_worker;
comment on function channels.fail_message(uuid, uuid, integer, jsonb, text) is
    'Records that a message could not be executed, or that its reply could not be enqueued and is kept. A kept reply '
    'is retried every minute. An execution is retried after 1, 2, 4 and 8 minutes; after that only the provider or an '
    'operator can retry it. Returns false and changes nothing if a newer execution has the message or the message has '
    'ended.';

create or replace function channels.enqueue_reply(
    p_tenant_id uuid, p_message_id uuid, p_reply_id uuid, p_payload jsonb, p_max_attempts integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_message channels.channel_messages;
begin
    select message.*
      into strict v_message
      from channels.channel_messages as message
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id;
    insert into channels.channel_outbox
           (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, max_attempts, correlation_id)
    values (p_reply_id, p_tenant_id, p_message_id, v_message.account_id, v_message.provider, v_message.recipient_id,
            p_payload, p_max_attempts, v_message.correlation_id);
    update channels.channel_messages as message
       set status = 'executed',
           reply = null,
           last_error = null,
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id;
end
$$;
revoke all on function channels.enqueue_reply(uuid, uuid, uuid, jsonb, integer) from public;
comment on function channels.enqueue_reply(uuid, uuid, uuid, jsonb, integer) is
    'Puts a reply into the outbox and ends its message, in the transaction of the caller: both or neither. The caller '
    'has locked the message.';

create or replace function channels.record_delivery(
    p_tenant_id uuid, p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text,
    p_proves_action boolean, p_at timestamptz, p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_at  constant timestamptz := coalesce(p_at, v_now);
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_outbox as reply
       set provider_message_id = case when p_proves_action then coalesce(reply.provider_message_id, left(p_provider_message_id, 512))
                                      else reply.provider_message_id end,
           -- Reports can arrive out of order.
           delivery_status = case when reply.delivery_status_at > v_at then reply.delivery_status
                                  else left(p_status, 64) end,
           delivery_error = case when reply.delivery_status_at > v_at then reply.delivery_error
                                 else left(p_error, 1000) end,
           delivery_status_at = greatest(reply.delivery_status_at, v_at),
           -- For a dead reply this is the time at which it became dead.
           updated_at = case when reply.status = 'dead' then reply.updated_at else v_now end
     where reply.tenant_id = p_tenant_id
       and reply.account_id = p_account_id
       and reply.id = p_reply_id;
    return found;
end
$$;
revoke all on function channels.record_delivery(uuid, uuid, uuid, text, text, boolean, timestamptz, text) from public;
grant execute on function channels.record_delivery(uuid, uuid, uuid, text, text, boolean, timestamptz, text)
    to postrider_app;
comment on function channels.record_delivery(uuid, uuid, uuid, text, text, boolean, timestamptz, text) is
    'Records a delivery report of a provider about a reply. A report that proves the arrival keeps the reply from '
    'being sent again. Returns false if the account has no such reply.';
